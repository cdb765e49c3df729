//! Subsection `routing.lmcache`.

use std::{collections::BTreeMap, num::NonZeroUsize, time::Duration};

use crate::{RedisSection, Secret};

/// `routing.lmcache`, if a controller is configured.
#[derive(Clone, Debug, PartialEq)]
pub struct LmcacheSection {
    /// Kind of query to the controller.
    pub mode: LmcacheMode,
    /// Its base URL, as [`crate::ConfigSource::check_url`] accepted it.
    pub controller_url: String,
    /// Bearer token sent to it.
    pub controller_api_key: Option<Secret>,
    /// Time between two occupancy queries.
    pub poll_interval: Duration,
    /// Time limit for one answer.
    pub controller_timeout: Duration,
    /// Longest wait of a request for a lookup.
    pub lookup_budget: Duration,
    /// Weight of a worker's occupancy, 0 to 1.
    pub cache_weight: f64,
    /// Names of workers by the id of their LMCache instance; `host:port` of one that is not known
    /// yet.
    pub worker_map: BTreeMap<String, String>,
    /// Policy used if the controller gives no answer.
    pub fallback: &'static str,
    /// Cache of token ids from engines.
    pub prompt_cache: PromptCacheSection,
}

/// Kind of query to a controller of LMCache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LmcacheMode {
    /// Occupancy of each worker.
    Occupancy,
    /// Prefix match of the prompt for each worker, and the occupancy too.
    PrefixLookup,
}

/// `routing.lmcache.prompt_cache`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptCacheSection {
    /// Lifetime of token ids.
    pub ttl: Duration,
    /// Most prompts in memory.
    pub capacity: NonZeroUsize,
    /// Redis server that shares them between routers; `None` = not shared.
    pub redis: Option<RedisSection>,
}
