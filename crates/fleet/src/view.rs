//! What one worker looks like to a reader of the snapshot.

use std::{num::NonZeroU16, sync::Arc};

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
    /// Answers its checks: the only state that gets requests.
    Ready,
    /// Up and loading: it says so itself (contract CH4).
    WarmingUp,
    /// Refuses connections or fails its checks.
    Down,
    /// Finishes what it has and gets nothing new.
    Draining,
    /// Passes its checks and fails its requests: left out for a while.
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

    /// The word used in replies, metrics and the verdict line.
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

/// Where the knowledge of a worker's cache comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheSource {
    /// Its own events, on every rank.
    Events,
    /// Our own decisions.
    #[default]
    Predicted,
}

impl CacheSource {
    /// The word used in replies, receipts and metrics.
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
    /// The id requests use.
    pub id: Arc<str>,
    /// Where the engine loaded it from: a directory or a hub id.
    pub root: Option<Arc<str>>,
    /// Longest prompt plus reply, in tokens.
    pub max_model_len: Option<u32>,
    /// Unix seconds, as the worker says.
    pub created: i64,
    /// As the worker says.
    pub owned_by: Arc<str>,
}

/// A LoRA adapter that a worker lists: an entry with a `parent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedLora {
    /// The id requests use, and the adapter's name in KV events.
    pub id: Arc<str>,
    /// The base model's id.
    pub parent: Arc<str>,
    /// Unix seconds, as the worker says.
    pub created: i64,
}

/// What an engine said about itself in its metrics, at most `scrape` old.
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
    /// Those of them that were found, in whatever tier.
    pub hits: u64,
}

/// One data-parallel rank: the owner of one cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankView {
    /// Where knowledge of its cache comes from. Events that are not believed ([`crate::Fleet::trust`]) do not count.
    pub cache: CacheSource,
    /// State of its event stream; `None` when it has none.
    pub stream: Option<&'static str>,
    /// Whether missed events can be asked for.
    pub replay: bool,
}

/// One worker at the moment of the snapshot. Plain values: reading needs no lock.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Its number, never used twice.
    pub id: WorkerId,
    /// Its name: from the configuration, else `host:port`.
    pub name: Arc<str>,
    /// Where its HTTP server is.
    pub url: WorkerUrl,
    /// Whether its certificate is checked, if it has one.
    pub verified: bool,
    /// What kind of engine answers there.
    pub engine: EngineKind,
    /// The engine's version, when it says.
    pub version: Option<Arc<str>>,
    /// Whether it gets requests.
    pub state: WorkerState,
    /// Since when it is in this state.
    pub since: OffsetDateTime,
    /// Base models it serves.
    pub models: Vec<ServedModel>,
    /// Adapters it serves.
    pub loras: Vec<ServedLora>,
    /// The model name of its events: the first base model it lists. Aliases of one engine share it.
    pub namespace_model: Option<Arc<str>>,
    /// How it is asked for Anthropic's messages.
    pub messages: MessagesMode,
    /// Phases it serves.
    pub role: Role,
    /// Port of the server at which decode workers meet it; `None` = its engine's default.
    pub bootstrap_port: Option<NonZeroU16>,
    /// Relative share of work, > 0.
    pub weight: f64,
    /// Tokens in one of its blocks.
    pub block_size: BlockSize,
    /// Whether the block size was said by the engine or the configuration; if false it is assumed.
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
    /// Times that nobody listened there any more: the process had ended, and with it all that it had been given.
    pub ended: u64,
    /// What went wrong last; `None` after a success.
    pub last_error: Option<Arc<str>>,
}

impl WorkerView {
    /// The owners of its caches, one per data-parallel rank.
    pub fn targets(&self) -> impl Iterator<Item = Target> {
        let worker = self.id;
        (0u32..).zip(&self.ranks).map(move |(rank, _)| Target {
            worker,
            rank: DpRank(rank),
        })
    }

    /// Number of its data-parallel ranks.
    pub fn dp_ranks(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap_or(u32::MAX)
    }

    /// Where knowledge of its caches comes from: `events` only when every rank's does.
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

    /// Whether it only computes prompts, for others to generate from.
    pub fn only_prefills(&self) -> bool {
        self.role == Role::Prefill
    }

    /// Whether new requests may go there.
    pub fn is_ready(&self) -> bool {
        self.state == WorkerState::Ready
    }
}
