//! The fleet at one moment, as every request reads it.
//!
//! A snapshot is immutable and cheap to take (one atomic load). It knows which workers may serve
//! which model; it does not know load or cache content, which belong to the router and the index.
//!
//! **Invariant**: a candidate of a model is in state `ready`, unless the model's `panic` is set:
//! then none is ready and the last good set is offered instead (a probe may be wrong, a request is
//! proof).

use std::{collections::HashMap, num::NonZeroU16, sync::Arc};

use http::{HeaderName, HeaderValue};
use kv_blocks::{
    BlockSize, DpRank, Moment, Namespace, PromptIdentity, Role, Target, Tier, WorkerId,
};
use net::{Destinations, WorkerUrl};
use time::OffsetDateTime;

use crate::{
    EngineKind, HealthView, MessagesMode, ModelArtefacts, SaltHandling, SaltSupport, ServedModels,
    WorkerState, salt_handling,
};

/// Workers and models at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All workers, in the order of the configuration.
    pub workers: Vec<Arc<WorkerView>>,
    /// Every model id that requests may name: base models, aliases and adapters.
    pub models: HashMap<Arc<str>, Arc<ModelView>>,
}

/// The targets of one model id.
#[derive(Clone, Debug)]
pub struct ModelView {
    /// The id that requests use.
    pub id: Arc<str>,
    /// Targets that may get requests now.
    pub candidates: Vec<ModelCandidate>,
    /// Targets that list the model but may not be used now.
    pub unusable: Vec<UnusableTarget>,
    /// Targets of other workers, which do not serve it: the first 16.
    pub others: Vec<OtherTarget>,
    /// Whether no generating worker of this model is ready, and `candidates` holds the last good
    /// set of them (receipt method `panic`). A prefill worker that is not ready is never offered: a
    /// request can do without.
    pub panic: bool,
    /// Whether some of its workers serve one phase only.
    pub split: bool,
    /// Tokenizer and template, shared by all workers of the model.
    pub artefacts: Arc<ModelArtefacts>,
    /// Longest prompt plus reply in tokens: the smallest among its workers.
    pub max_model_len: Option<u32>,
}

/// One target that may serve a model.
#[derive(Clone, Debug)]
pub struct ModelCandidate {
    /// Worker and rank.
    pub target: Target,
    /// The worker.
    pub worker: Arc<WorkerView>,
    /// Base model, as its cache namespaces name it.
    pub namespace_model: Arc<str>,
    /// The adapter, when the requested id names one.
    pub lora: Option<Arc<str>>,
    /// Longest prompt plus reply in tokens on this worker.
    pub max_model_len: Option<u32>,
}

impl ModelCandidate {
    /// Returns the namespace of a request's blocks on this target.
    pub fn namespace(&self, salt: Option<Arc<str>>, identity: PromptIdentity) -> Namespace {
        Namespace {
            model: Arc::clone(&self.namespace_model),
            lora: self.lora.clone(),
            salt,
            block_size: self.worker.cache.block_size,
            identity,
        }
    }

    /// Returns the view of this rank's cache and event stream.
    pub fn rank(&self) -> RankView {
        self.worker
            .ranks
            .get(self.target.rank.0 as usize)
            .copied()
            .unwrap_or_default()
    }

    /// Returns the source of knowledge about this target's cache.
    pub fn cache(&self) -> CacheSource {
        self.rank().cache
    }

    /// Returns the state of its event stream; `None` when it has none.
    pub fn stream_state(&self) -> Option<&'static str> {
        self.rank().stream
    }

    /// Returns the tokens in one block.
    pub fn block_size(&self) -> BlockSize {
        self.worker.cache.block_size
    }
}

/// A target left out before the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableTarget {
    /// Worker and rank.
    pub target: Target,
    /// Its worker's name.
    pub name: Arc<str>,
    /// Its worker's state, never `Ready`.
    pub state: WorkerState,
}

/// Most targets in [`ModelView::others`]: they are copied into the receipt of each request.
pub(crate) const MOST_OTHERS: usize = 16;

/// A target whose worker does not serve a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherTarget {
    /// Worker and rank.
    pub target: Target,
    /// Its worker's name.
    pub name: Arc<str>,
    /// Whether the model is an adapter of a base model that the worker serves.
    pub lacks_adapter: bool,
}

impl UnusableTarget {
    /// Returns the word of a receipt's `excluded.reason`.
    pub fn reason(&self) -> &'static str {
        match self.state {
            WorkerState::WarmingUp => "warming_up",
            WorkerState::Draining => "draining",
            WorkerState::Ejected => "circuit_open",
            WorkerState::Unknown | WorkerState::Down | WorkerState::Ready => "unhealthy",
        }
    }
}

impl Snapshot {
    /// Returns the worker with this number.
    pub fn worker(&self, id: WorkerId) -> Option<&Arc<WorkerView>> {
        // Numbers ascend in the order of the list.
        let at = self
            .workers
            .binary_search_by_key(&id, |worker| worker.id)
            .ok()?;
        self.workers.get(at)
    }

    /// Returns the worker with this name.
    pub fn worker_named(&self, name: &str) -> Option<&Arc<WorkerView>> {
        self.workers.iter().find(|worker| &*worker.name == name)
    }

    /// Returns the targets of the model with this id.
    pub fn model(&self, id: &str) -> Option<&Arc<ModelView>> {
        self.models.get(id)
    }

    /// Returns the number of workers that get requests.
    pub fn ready(&self) -> usize {
        self.workers
            .iter()
            .filter(|worker| worker.is_ready())
            .count()
    }
}

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
    /// The value of `Host` in its requests.
    pub host: HeaderValue,
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
    /// Port at which other workers read blocks from its first rank; `None` = its engine's default.
    pub p2p_port: Option<NonZeroU16>,
    /// Relative share of work, > 0.
    pub weight: f64,
    /// Size and tiers of its caches.
    pub cache: KvCacheView,
    /// Its data-parallel ranks, at least one; position is the rank.
    pub ranks: Vec<RankView>,
    /// The engine's own counters.
    pub load: EngineLoad,
    /// Whether it was observed to honour salts; unknown where that is not probed.
    pub salt_support: SaltSupport,
}

impl WorkerView {
    /// Returns whether its engine may read blocks from others of its kind: a vLLM engine with an
    /// address that computes and generates.
    pub fn may_fetch(&self) -> bool {
        self.engine.kind == EngineKind::Vllm
            && self.role == Role::Unified
            && self.connection.url.host().is_some()
    }

    /// Returns whether the file names the worker. The address of another one was chosen by who
    /// registered it or by what listed it, and they learn nothing of what answers there.
    pub fn is_configured(&self) -> bool {
        matches!(self.connection.url.destinations(), Destinations::Any)
    }

    /// Creates the view of a worker of which only name and URL are known, since this time.
    pub fn unknown(id: WorkerId, name: Arc<str>, url: WorkerUrl, since: OffsetDateTime) -> Self {
        Self {
            id,
            name,
            connection: WorkerConnection {
                host: HeaderValue::try_from(url.authority())
                    .unwrap_or(HeaderValue::from_static("localhost")),
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
            p2p_port: None,
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
            salt_support: SaltSupport::Unknown,
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

    /// Returns what workers of its kind do with a salt.
    pub fn salt_handling(&self) -> SaltHandling {
        salt_handling(self.engine.kind, self.connection.host.as_bytes())
    }

    /// Returns whether it was shown to keep the blocks of different salts apart.
    pub fn honours_salts(&self) -> bool {
        self.salt_handling() == SaltHandling::Takes && self.salt_support == SaltSupport::Honoured
    }

    /// Returns whether it may get new requests.
    pub fn is_ready(&self) -> bool {
        self.health.state == WorkerState::Ready
    }
}
