//! Subsection `routing.lmcache`.

use std::{collections::BTreeMap, num::NonZeroUsize, time::Duration};

use crate::{RedisSection, Secret};

/// `routing.lmcache`, where a controller is named.
#[derive(Clone, Debug, PartialEq)]
pub struct LmcacheSection {
    /// What the controller is asked.
    pub mode: LmcacheMode,
    /// Its base URL, as [`crate::Source::check_url`] accepted it.
    pub controller_url: String,
    /// Sent to it as a bearer token.
    pub controller_api_key: Option<Secret>,
    /// Between two questions of how much each worker holds.
    pub poll_interval: Duration,
    /// Time for one answer.
    pub controller_timeout: Duration,
    /// Longest that a request waits for one.
    pub lookup_budget: Duration,
    /// Weight of how much a worker holds, 0 to 1.
    pub cache_weight: f64,
    /// Names of workers by the id of their LMCache instance; `host:port` of one that is not known yet.
    pub worker_map: BTreeMap<String, String>,
    /// The policy where the controller says nothing.
    pub fallback: &'static str,
    /// How token ids are kept that engines told.
    pub prompt_cache: PromptCacheSection,
}

/// What a controller of LMCache is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LmcacheMode {
    /// How much each worker holds.
    Occupancy,
    /// How much of a prompt each worker holds, and the other too.
    PrefixLookup,
}

/// `routing.lmcache.prompt_cache`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptCacheSection {
    /// How long token ids count.
    pub ttl: Duration,
    /// Most prompts in memory.
    pub capacity: NonZeroUsize,
    /// Where routers share them; `None` = nowhere.
    pub redis: Option<RedisSection>,
}
