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
        /// `occupancy`: by the tokens that each worker holds. `prefix_lookup`: by the tokens of
        /// this prompt that each worker holds, or by occupancy if no worker holds any.
        mode: LmcacheMode = "occupancy", restart;
        /// URL of the LMCache controller's API, as in `http://lmcache-controller:9000`. Required by
        /// the policy. Unset: no controller is queried.
        controller_url: String = "~" in ValueKind::WorkerUrl, restart;
        /// Key that the controller gets as a bearer token.
        controller_api_key: Option<Secret> = "~", restart;
        /// Interval between occupancy queries.
        poll_interval: Duration = "10s" in PAUSE, restart;
        /// Time limit of one query.
        controller_timeout: Duration = "2000ms", restart;
        /// Longest wait of a request for the lookup of its prompt; at most `controller_timeout`.
        lookup_budget: Duration = "250ms", restart;
        /// Weight of a worker's cached tokens, 0 to 1; the rest is the weight of its low load.
        cache_weight: f64 = "0.7", restart;
        /// Worker of each LMCache instance id, as name, `host:port` or URL. An instance that is not
        /// listed belongs to the worker whose name or `host:port` equals its id.
        worker_map: BTreeMap<String, String> = "{}", restart;
        /// Policy for requests about which the controller reports nothing.
        fallback: Policy = "power_of_two" in ValueKind::Word(FALLBACKS), restart;
        /// Cache of token ids for models without a local tokenizer, so that engines tokenize each
        /// prompt once. Applies if `controller_url` is set; otherwise such ids are cached for ten
        /// minutes.
        prompt_cache: PromptCacheSection, restart;
    }
}

settings::section! {
    /// Section `routing.lmcache.prompt_cache`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PromptCacheSection {
        /// Storage of token ids. `redis`: memory, and for other routers the server at
        /// `response_cache.redis.url`.
        backend: PromptCacheBackend = "memory", restart;
        /// Lifetime of token ids in either storage.
        ttl: Duration = "3600s", restart;
        /// Maximum number of prompts in memory.
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
