//! Section `routing.lmcache`: the controller that policy `lmcache_aware` queries.

use std::{collections::BTreeMap, num::NonZeroUsize, time::Duration};

use settings::{
    Secret, ValueKind, WordChoice,
    kinds::{PAUSE, int},
    word, word_or,
};

use crate::Policy;

/// Fallback policies that need only the prompt of a request.
pub const FALLBACKS: &[WordChoice] = &[
    word("power_of_two"),
    word("least_loaded"),
    word("round_robin"),
    word("random"),
    word("weighted_round_robin"),
    word("least_latency"),
    word("warm"),
    word("kv_aware"),
    word("cache_aware"),
    word_or("dynamo_cost", &["kv"]),
];

settings::section! {
    /// Section `routing.lmcache`.
    #[derive(Clone, Debug, PartialEq)]
    pub optional struct LmcacheSection {
        /// `occupancy` = by how much each worker holds; `prefix_lookup` = by how much of this
        /// prompt it holds, and by the other where nobody holds any.
        mode: LmcacheMode = "occupancy", restart;
        /// The LMCache controller's API, as in `http://lmcache-controller:9000`. Required by the
        /// policy; unset = nobody is asked.
        controller_url: String = "~" in ValueKind::WorkerUrl, restart;
        /// Sent to the controller as a bearer token.
        controller_api_key: Option<Secret> = "~", restart;
        /// Between two questions of how much each worker holds.
        poll_interval: Duration = "10s" in PAUSE, restart;
        /// Time for one answer of the controller.
        controller_timeout: Duration = "2000ms", restart;
        /// Longest that a request waits to learn who holds its prompt; no longer than
        /// `controller_timeout` in any case.
        lookup_budget: Duration = "250ms", restart;
        /// Weight of how much a worker holds; the rest is that of how little it has to do.
        cache_weight: f64 = "0.7", restart;
        /// Worker by LMCache instance id: its name, `host:port` or URL. An instance that is not
        /// here counts for the worker whose name or `host:port` is its id.
        worker_map: BTreeMap<String, String> = "{}", restart;
        /// The policy where the controller says nothing of anybody.
        fallback: Policy = "power_of_two" in ValueKind::Word(FALLBACKS), restart;
        /// Token ids of prompts whose model has no tokenizer here, so that engines are asked for
        /// them once. Counts where `controller_url` is set; elsewhere such ids count for ten
        /// minutes.
        prompt_cache: PromptCacheSection, restart;
    }
}

settings::section! {
    /// Section `routing.lmcache.prompt_cache`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PromptCacheSection {
        /// Where token ids are kept that engines told. `redis` = in memory, and in the server at
        /// `response_cache.redis.url` for other routers.
        backend: PromptCacheBackend = "memory", restart;
        /// How long they count, wherever they are.
        ttl: Duration = "3600s", restart;
        /// Most prompts in memory.
        capacity: NonZeroUsize = "10000" in int(2, 10_000_000), restart;
    }
}

settings::words! {
    /// Kind of query to a controller of LMCache.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LmcacheMode {
        /// Occupancy of each worker.
        Occupancy = "occupancy",
        /// Prefix match of the prompt for each worker, and the occupancy too.
        PrefixLookup = "prefix_lookup",
    }
}

settings::words! {
    /// Storage of token ids from engines.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PromptCacheBackend {
        /// Memory of this process.
        Memory = "memory",
        /// Memory, and the Redis server that routers share.
        Redis = "redis",
    }
}
