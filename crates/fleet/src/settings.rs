//! The parts of a fleet.

use std::{fmt, sync::Arc};

use kv_blocks::{HashScheme, WorkerId};
use kv_index::KvIndex;
use net::Clock;

use crate::{FleetConfig, HubCache, RedisPool, WorkerVerdict};

/// Callback for every verdict: the first of each worker, and one per change of state. Called from
/// supervisor tasks: it must not block.
pub type OnVerdict = Arc<dyn Fn(&WorkerVerdict) + Send + Sync>;

/// A worker and its number in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedWorker {
    /// Its number.
    pub id: WorkerId,
    /// Its name.
    pub name: Arc<str>,
    /// Its base URL.
    pub url: String,
}

/// Arguments of [`crate::Fleet::start`].
pub struct FleetParts {
    /// The workers and their rules.
    pub config: FleetConfig,
    /// Where each model's tokenizer comes from.
    pub models: config::ModelsSection,
    /// The prefix view and its streams.
    pub kv_cache_index: config::KvCacheIndexSection,
    /// The Redis connections of the prefix view, if it is in Redis.
    pub redis: Option<Arc<RedisPool>>,
    /// Bytes of a prompt that the key of its prefix covers.
    pub max_prefix_length: usize,
    /// The local model-hub cache.
    pub hub_cache: HubCache,
    /// The index that event streams fill.
    pub index: Arc<KvIndex>,
    /// The hash scheme of the index.
    pub scheme: HashScheme,
    /// Workers of an earlier process whose blocks are in the index: a worker with the same name and
    /// URL gets the same number, and with it the blocks.
    pub earlier: Vec<NumberedWorker>,
    /// The process's clock.
    pub clock: Clock,
    /// Callback for every verdict.
    pub on_verdict: OnVerdict,
}

impl fmt::Debug for FleetParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetParts")
            .field("workers", &self.config.workers.len())
            .finish_non_exhaustive()
    }
}
