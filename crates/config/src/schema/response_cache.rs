//! The section about the response cache, and the Redis server that other stores share.

use super::{
    KeySchema, Unit, ValueKind, key,
    kinds::{RATIO, SECONDS, section, size},
    word,
};

const MILLISECONDS: ValueKind = ValueKind::Counted {
    unit: Unit::Milliseconds,
    min: 1,
    max: 3_600_000,
};
const BYTES: ValueKind = ValueKind::Int {
    min: 1,
    max: 1 << 40,
};
const ENTRIES: ValueKind = ValueKind::Int {
    min: 1,
    max: 1 << 32,
};

pub(super) const RESPONSE_CACHE: &[KeySchema] = &[
    key(
        "enabled",
        ValueKind::Bool,
        "false",
        "Keep replies and answer from them.",
    ),
    key(
        "backend",
        ValueKind::Word(&[word("memory"), word("redis"), word("tiered")]),
        "memory",
        "Where replies are kept.",
    ),
    key(
        "capacity",
        ENTRIES,
        "1000",
        "Most replies kept in memory; the least recently used goes first.",
    ),
    key(
        "memory_budget",
        size(1 << 20, 1 << 40),
        "256MiB",
        "Most bytes of replies kept in memory, whether as the backend, as the first tier or while Redis is away.",
    ),
    key("ttl", SECONDS, "5m", "How long a reply is kept."),
    key(
        "max_response_size",
        BYTES,
        "1048576",
        "Longest reply kept, bytes.",
    ),
    key(
        "max_stream_buffer_size",
        BYTES,
        "10485760",
        "Longest stream kept, bytes.",
    ),
    key(
        "absent_temperature",
        ValueKind::Word(&[word("cacheable"), word("bypass")]),
        "cacheable",
        "Whether replies to requests without a temperature are kept.",
    ),
    key(
        "lookup_budget",
        SECONDS,
        "50ms",
        "Longest time that a request waits for the cache.",
    ),
    key(
        "mac_key",
        ValueKind::Secret,
        "~",
        "Key that proves that a kept reply is ours; the same for all routers that share a store. Unset: altered replies \
         are found, made-up ones are not.",
    ),
    section(
        "redis",
        REDIS,
        "The Redis or Valkey server that stores share.",
    ),
    section("l1", L1, "The first tier of `backend: tiered`."),
    section("l2", L2, "The second tier of `backend: tiered`."),
    section("tiered", TIERED, "What moves between the tiers."),
    section(
        "semantic",
        &[
            key(
                "enabled",
                ValueKind::Bool,
                "false",
                "Answer also from replies to questions that mean the same.",
            ),
            key(
                "threshold",
                RATIO,
                "0.95",
                "Least cosine between the two questions.",
            ),
            key(
                "embedding_model",
                ValueKind::Text,
                "~",
                "The model whose vectors are compared, served at `/v1/embeddings` by one of `workers`. Required where enabled.",
            ),
            key(
                "max_entries",
                ValueKind::Int { min: 1, max: 4_096 },
                "256",
                "Most replies kept for it; all are compared.",
            ),
            key("ttl", SECONDS, "300s", "How long they are kept."),
            key(
                "timeout",
                SECONDS,
                "500ms",
                "Longest that a request waits for its vector.",
            ),
        ],
        "Replies to prompts that mean the same.",
    ),
];

const REDIS: &[KeySchema] = &[
    key(
        "url",
        ValueKind::RedisUrl,
        "~",
        "Where the server is. Best as `${NAME}` where it holds a password.",
    ),
    key(
        "tls",
        ValueKind::Bool,
        "false",
        "Encrypt the connection, as with a URL of `rediss://`.",
    ),
    key(
        "pool_size",
        ValueKind::Int { min: 1, max: 1_024 },
        "8",
        "Most connections; half of them serve replies, half `kv_cache_index`; `routing.lmcache.prompt_cache` takes three at most of what is free.",
    ),
    key(
        "connect_timeout_ms",
        MILLISECONDS,
        "3000",
        "Time for one connection, greeting included.",
    ),
    key(
        "command_timeout_ms",
        MILLISECONDS,
        "1000",
        "Time for one answer; a server that takes longer is left out until it answers again.",
    ),
    key(
        "key_prefix",
        ValueKind::KeyPrefix { max: 256 },
        "cr:resp:",
        "What keys of replies begin with; those of `kv_cache_index` always with `cr:kvidx:`, those of `routing.lmcache.prompt_cache` with `cr:tok:`.",
    ),
    key(
        "fallback_to_memory",
        ValueKind::Bool,
        "true",
        "Keep replies in memory while the server is away.",
    ),
    key(
        "fallback_capacity",
        ENTRIES,
        "1000",
        "Most replies kept there.",
    ),
    key(
        "fallback_ttl_seconds",
        ValueKind::Counted {
            unit: Unit::Seconds,
            min: 1,
            max: 86_400,
        },
        "300",
        "How long they are kept there.",
    ),
];

const L1: &[KeySchema] = &[
    key(
        "type",
        ValueKind::Word(&[word("memory"), word("redis")]),
        "memory",
        "Where it is; `redis` = `response_cache.redis`.",
    ),
    key(
        "max_value_size",
        BYTES,
        "1048576",
        "Longest reply kept there, bytes.",
    ),
];

const L2: &[KeySchema] = &[
    key("type", ValueKind::Word(&[word("s3")]), "s3", "What it is."),
    key(
        "endpoint",
        ValueKind::Stream(&["https", "http"]),
        "~",
        "Where the object store is; the bucket is put in the path.",
    ),
    key("bucket", ValueKind::Text, "~", "The bucket in it."),
    key(
        "key_prefix",
        ValueKind::Text,
        "response-cache/",
        "What names of objects begin with.",
    ),
    key(
        "region",
        ValueKind::Text,
        "us-east-1",
        "The region that requests are signed for.",
    ),
    key(
        "access_key",
        ValueKind::Secret,
        "~",
        "Who asks; unset = nobody in particular, requests are not signed.",
    ),
    key("secret_key", ValueKind::Secret, "~", "What proves it."),
    key(
        "ttl_override",
        SECONDS,
        "~",
        "How long a reply is kept there; unset = `response_cache.ttl`.",
    ),
];

const TIERED: &[KeySchema] = &[
    key(
        "promote_on_hit",
        ValueKind::Bool,
        "true",
        "Copy a reply that was found in the second tier to the first.",
    ),
    key(
        "l1_promotion_ttl",
        SECONDS,
        "5m",
        "How long such a copy is kept.",
    ),
];
