//! One worker in the snapshot.

use std::{num::NonZeroU16, sync::Arc};

use http::{HeaderName, HeaderValue};
use kv_blocks::{BlockSize, DpRank, Moment, Role, Target, Tier, WorkerId};
use net::WorkerUrl;
use time::OffsetDateTime;

use crate::{EngineKind, HealthView, MessagesMode, ServedModels, WorkerState};

/// Assumed where neither configuration nor engine gives a block size: the default of the most used
/// engine. The verdict reports the assumption.
const ASSUMED_BLOCK: u64 = 16;

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

/// The way to a worker's HTTP server.
#[derive(Clone, Debug)]
pub struct WorkerConnection {
    /// The base URL.
    pub url: WorkerUrl,
    /// Whether its certificate is checked, if it has one.
    pub verified: bool,
    /// Sent in place of the client's own key.
    pub api_key: Option<config::Secret>,
}

/// The engine that a worker runs.
#[derive(Clone, Debug)]
pub struct EngineView {
    /// The engine kind.
    pub kind: EngineKind,
    /// Its version, if known.
    pub version: Option<Arc<str>>,
    /// How it takes Anthropic messages.
    pub messages: MessagesMode,
}

/// The KV cache of each of a worker's ranks.
#[derive(Clone, Debug)]
pub struct KvCacheView {
    /// Tokens in one block.
    pub block_size: BlockSize,
    /// Whether the engine or the configuration gives the block size; if false it is assumed.
    pub block_size_known: bool,
    /// Blocks of the device cache, per rank.
    pub num_blocks: Option<u32>,
    /// Tiers the engine may load blocks back from.
    pub allow_tiers: Vec<Tier>,
}

/// One worker at the moment of the snapshot. Plain values: reading needs no lock.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Its number, never used twice.
    pub id: WorkerId,
    /// Its name: from the configuration, else `host:port`.
    pub name: Arc<str>,
    /// The way to it.
    pub connection: WorkerConnection,
    /// The engine that it runs.
    pub engine: EngineView,
    /// Whether it gets requests, and its last failures.
    pub health: HealthView,
    /// Models and adapters that it serves.
    pub served: ServedModels,
    /// Phases it serves.
    pub role: Role,
    /// Port of the server at which decode workers connect to it; `None` = its engine's default.
    pub bootstrap_port: Option<NonZeroU16>,
    /// Relative share of work, > 0.
    pub weight: f64,
    /// Size and tiers of its caches.
    pub cache: KvCacheView,
    /// Its data-parallel ranks, at least one; position is the rank.
    pub ranks: Vec<RankView>,
    /// The engine's own counters.
    pub load: EngineLoad,
}

impl WorkerView {
    /// Creates the view of a worker of which only name and URL are known, since this time.
    pub fn unknown(id: WorkerId, name: Arc<str>, url: WorkerUrl, since: OffsetDateTime) -> Self {
        Self {
            id,
            name,
            connection: WorkerConnection {
                url,
                verified: true,
                api_key: None,
            },
            engine: EngineView {
                kind: EngineKind::Generic,
                version: None,
                messages: MessagesMode::default(),
            },
            health: HealthView::unknown(since),
            served: ServedModels::default(),
            role: Role::Unified,
            bootstrap_port: None,
            weight: 1.0,
            cache: KvCacheView {
                block_size: BlockSize::new(ASSUMED_BLOCK)
                    .expect("the assumed block size lies in the range of block sizes"),
                block_size_known: false,
                num_blocks: None,
                allow_tiers: Vec::new(),
            },
            ranks: vec![RankView::default()],
            load: EngineLoad::default(),
        }
    }

    /// Returns the header fields that authorize the router at this worker.
    pub fn credentials(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
        let key = self.connection.api_key.as_ref();
        crate::credentials(self.engine.kind, key.map(|key| key.expose()))
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
        self.health.state == WorkerState::Ready
    }
}
