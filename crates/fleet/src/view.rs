//! One worker in the snapshot.

use std::{num::NonZeroU16, sync::Arc};

use http::{HeaderName, HeaderValue};
use kv_blocks::{BlockSize, DpRank, Moment, Role, Target, Tier, WorkerId};
use net::WorkerUrl;
use time::OffsetDateTime;

use crate::{EngineKind, MessagesMode};

/// Whether a worker gets requests, and if not, why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkerState {
    /// Not checked yet.
    #[default]
    Unknown,
    /// Passes its checks: the only state that gets requests.
    Ready,
    /// Up and loading, as it reports itself (contract CH4).
    WarmingUp,
    /// Refuses connections or fails its checks.
    Down,
    /// Finishes running requests and gets no new ones.
    Draining,
    /// Passes its checks and fails its requests: excluded for a while.
    Ejected,
}

impl WorkerState {
    /// All states, in the order used in metrics.
    pub const ALL: [Self; 6] = [
        Self::Ready,
        Self::WarmingUp,
        Self::Down,
        Self::Unknown,
        Self::Draining,
        Self::Ejected,
    ];

    /// Returns the word used in replies, metrics and the verdict line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Ready => "ready",
            Self::WarmingUp => "warming_up",
            Self::Down => "down",
            Self::Draining => "draining",
            Self::Ejected => "ejected",
        }
    }
}

/// The source of knowledge about a worker's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheSource {
    /// Its own events, on every rank.
    Events,
    /// Our own decisions.
    #[default]
    Predicted,
}

impl CacheSource {
    /// Returns the word used in replies, receipts and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Predicted => "predicted",
        }
    }
}

/// A base model that a worker lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// The id that requests use.
    pub id: Arc<str>,
    /// Where the engine loaded it from: a directory or a hub id.
    pub root: Option<Arc<str>>,
    /// Longest prompt plus reply, in tokens.
    pub max_model_len: Option<u32>,
    /// Creation time that the worker lists, in Unix seconds.
    pub created: i64,
    /// Owner that the worker lists.
    pub owned_by: Arc<str>,
}

/// A LoRA adapter that a worker lists: an entry with a `parent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedLora {
    /// The id that requests use, and the adapter's name in KV events.
    pub id: Arc<str>,
    /// The base model's id.
    pub parent: Arc<str>,
    /// Creation time that the worker lists, in Unix seconds.
    pub created: i64,
}

/// An engine's load from its metrics, at most `scrape` old.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Requests being computed.
    pub running: Option<u32>,
    /// Requests waiting in the engine.
    pub waiting: Option<u32>,
    /// Share of the KV cache in use by running requests, 0..1.
    pub kv_usage_ratio: Option<f64>,
}

/// An engine's own counters of one rank's prefix cache, in tokens. They grow until it restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixCacheCounters {
    /// When they were read.
    pub at: Moment,
    /// Prompt tokens looked up.
    pub queries: u64,
    /// Prompt tokens found, in whatever tier.
    pub hits: u64,
}

/// One data-parallel rank: the owner of one cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankView {
    /// Source of knowledge about its cache. Distrusted events ([`crate::Fleet::trust`]) do not
    /// count.
    pub cache: CacheSource,
    /// State of its event stream; `None` when it has none.
    pub stream: Option<&'static str>,
    /// Whether missed events can be replayed.
    pub replay: bool,
}

/// One worker at the moment of the snapshot. Plain values: reading needs no lock.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Its number, never used twice.
    pub id: WorkerId,
    /// Its name: from the configuration, else `host:port`.
    pub name: Arc<str>,
    /// The base URL of its HTTP server.
    pub url: WorkerUrl,
    /// Whether its certificate is checked, if it has one.
    pub verified: bool,
    /// The engine kind.
    pub engine: EngineKind,
    /// The engine's version, if known.
    pub version: Option<Arc<str>>,
    /// Whether it gets requests.
    pub state: WorkerState,
    /// When it entered this state.
    pub since: OffsetDateTime,
    /// Base models it serves.
    pub models: Vec<ServedModel>,
    /// Adapters it serves.
    pub loras: Vec<ServedLora>,
    /// The model name of its events: the first base model it lists. Aliases of one engine share it.
    pub namespace_model: Option<Arc<str>>,
    /// How it takes Anthropic messages.
    pub messages: MessagesMode,
    /// Phases it serves.
    pub role: Role,
    /// Port of the server at which decode workers connect to it; `None` = its engine's default.
    pub bootstrap_port: Option<NonZeroU16>,
    /// Relative share of work, > 0.
    pub weight: f64,
    /// Tokens in one of its blocks.
    pub block_size: BlockSize,
    /// Whether the engine or the configuration gives the block size; if false it is assumed.
    pub block_size_known: bool,
    /// Its data-parallel ranks, at least one; position is the rank.
    pub ranks: Vec<RankView>,
    /// Sent in place of the client's own key.
    pub api_key: Option<config::Secret>,
    /// Blocks of the device cache, per rank.
    pub num_blocks: Option<u32>,
    /// Tiers the engine may load blocks back from.
    pub allow_tiers: Vec<Tier>,
    /// The engine's own counters.
    pub load: EngineLoad,
    /// How often its process ended, detected by refused connections; everything that it held ended
    /// with it.
    pub ended: u64,
    /// The last error; `None` after a success.
    pub last_error: Option<Arc<str>>,
}

impl WorkerView {
    /// Returns the header fields that authorize the router at this worker.
    pub fn credentials(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
        crate::credentials(self.engine, self.api_key.as_ref().map(|key| key.expose()))
    }

    /// Returns the owners of its caches, one per data-parallel rank.
    pub fn targets(&self) -> impl Iterator<Item = Target> {
        let worker = self.id;
        (0u32..).zip(&self.ranks).map(move |(rank, _)| Target {
            worker,
            rank: DpRank(rank),
        })
    }

    /// Returns the number of its data-parallel ranks.
    pub fn dp_ranks(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap_or(u32::MAX)
    }

    /// Returns the source of knowledge about its caches: `events` only when every rank's is.
    pub fn cache_source(&self) -> CacheSource {
        if self
            .ranks
            .iter()
            .all(|rank| rank.cache == CacheSource::Events)
        {
            CacheSource::Events
        } else {
            CacheSource::Predicted
        }
    }

    /// Returns whether it only computes prompts, for others to generate from.
    pub fn only_prefills(&self) -> bool {
        self.role == Role::Prefill
    }

    /// Returns whether it may get new requests.
    pub fn is_ready(&self) -> bool {
        self.state == WorkerState::Ready
    }
}
