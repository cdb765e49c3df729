//! Subsection `routing.lmcache`: the controller that policy `lmcache_aware` queries.

use super::{
    KeySchema, ValueKind, WordChoice, key,
    kinds::{PAUSE, RATIO, SECONDS, section},
    word,
};

pub(super) const LMCACHE: &[KeySchema] = &[
    key(
        "mode",
        ValueKind::Word(&[word("occupancy"), word("prefix_lookup")]),
        "occupancy",
        "`occupancy` = by how much each worker holds; `prefix_lookup` = by how much of this prompt it holds, and by the other \
         where nobody holds any.",
    ),
    key(
        "controller_url",
        ValueKind::WorkerUrl,
        "~",
        "The LMCache controller's API, as in `http://lmcache-controller:9000`. Required by the policy; unset = nobody is asked.",
    ),
    key(
        "controller_api_key",
        ValueKind::Secret,
        "~",
        "Sent to the controller as a bearer token.",
    ),
    key(
        "poll_interval",
        PAUSE,
        "10s",
        "Between two questions of how much each worker holds.",
    ),
    key(
        "controller_timeout",
        SECONDS,
        "2000ms",
        "Time for one answer of the controller.",
    ),
    key(
        "lookup_budget",
        SECONDS,
        "250ms",
        "Longest that a request waits to learn who holds its prompt; no longer than `controller_timeout` in any case.",
    ),
    key(
        "cache_weight",
        RATIO,
        "0.7",
        "Weight of how much a worker holds; the rest is that of how little it has to do.",
    ),
    key(
        "worker_map",
        ValueKind::Map(&ValueKind::Text),
        "{}",
        "Worker by LMCache instance id: its name, `host:port` or URL. An instance that is not here counts for the worker whose \
         name or `host:port` is its id.",
    ),
    key(
        "fallback",
        ValueKind::Word(FALLBACKS),
        "power_of_two",
        "The policy where the controller says nothing of anybody.",
    ),
    section(
        "prompt_cache",
        &[
            key(
                "backend",
                ValueKind::Word(&[word("memory"), word("redis")]),
                "memory",
                "Where token ids are kept that engines told. `redis` = in memory, and in the server at `response_cache.redis.url` \
                 for other routers.",
            ),
            key(
                "ttl",
                SECONDS,
                "3600s",
                "How long they count, wherever they are.",
            ),
            key(
                "capacity",
                ValueKind::Int {
                    min: 2,
                    max: 10_000_000,
                },
                "10000",
                "Most prompts in memory.",
            ),
        ],
        "Token ids of prompts whose model has no tokenizer here, so that engines are asked for them once. Counts where \
         `controller_url` is set; elsewhere such ids count for ten minutes.",
    ),
];

/// Fallback policies that need only the prompt of a request.
pub(crate) const FALLBACKS: &[WordChoice] = &[
    word("power_of_two"),
    word("least_loaded"),
    word("round_robin"),
    word("random"),
    word("weighted_round_robin"),
    word("least_latency"),
    word("warm"),
    word("kv_aware"),
    word("cache_aware"),
    WordChoice {
        word: "dynamo_cost",
        also: &["kv"],
        built: super::Availability::Now,
    },
];
