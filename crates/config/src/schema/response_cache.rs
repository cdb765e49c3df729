//! The section about the cache of replies: of it, this version has the Redis server that other stores share.

use super::{
    Key, Kind, Unit, key,
    kinds::{RATIO, SECONDS, section},
    word,
};

const MILLISECONDS: Kind = Kind::Counted { unit: Unit::Milliseconds, min: 1, max: 3_600_000 };
const BYTES: Kind = Kind::Int { min: 1, max: 1 << 40 };
const ENTRIES: Kind = Kind::Int { min: 1, max: 1 << 32 };

pub(super) const RESPONSE_CACHE: &[Key] = &[
    key("enabled", Kind::Bool, "false", "Keep replies and answer from them.").idle(),
    key("backend", Kind::Word(&[word("memory"), word("redis"), word("tiered")]), "memory", "Where replies are kept.")
        .idle(),
    key("capacity", ENTRIES, "1000", "Most replies kept.").idle(),
    key("ttl", SECONDS, "5m", "How long a reply is kept.").idle(),
    key("max_response_size", BYTES, "1048576", "Longest reply kept, bytes.").idle(),
    key("max_stream_buffer_size", BYTES, "10485760", "Longest stream kept, bytes.").idle(),
    key(
        "absent_temperature",
        Kind::Word(&[word("cacheable"), word("bypass")]),
        "cacheable",
        "Whether replies to requests without a temperature are kept.",
    )
    .idle(),
    key("lookup_budget", SECONDS, "50ms", "Longest time that a request waits for the cache.").idle(),
    key("mac_key", Kind::Secret, "~", "Key that proves that a kept reply is ours.").idle(),
    section("redis", REDIS, "The Redis or Valkey server that stores share."),
    section("l1", L1, "The first tier of `backend: tiered`."),
    section("l2", L2, "The second tier of `backend: tiered`."),
    section("tiered", TIERED, "What moves between the tiers."),
    section(
        "semantic",
        &[
            key("enabled", Kind::Bool, "false", "Answer from replies to prompts that mean the same.").idle(),
            key("threshold", RATIO, "0.95", "How alike they must be.").idle(),
            key("embedding_model", Kind::Text, "~", "The model that says so.").idle(),
            key("max_entries", ENTRIES, "256", "Most replies kept for it.").idle(),
            key("ttl", SECONDS, "300s", "How long they are kept.").idle(),
            key("timeout", SECONDS, "500ms", "Time for one answer of that model.").idle(),
        ],
        "Replies to prompts that mean the same.",
    ),
];

const REDIS: &[Key] = &[
    key("url", Kind::RedisUrl, "~", "Where the server is. Best as `${NAME}` where it holds a password."),
    key("tls", Kind::Bool, "false", "Encrypt the connection, as with a URL of `rediss://`."),
    key("pool_size", Kind::Int { min: 1, max: 1_024 }, "8", "Most connections; half of them serve `kv_cache_index`."),
    key("connect_timeout_ms", MILLISECONDS, "3000", "Time for one connection, greeting included."),
    key(
        "command_timeout_ms",
        MILLISECONDS,
        "1000",
        "Time for one answer; a server that takes longer is left out until it answers again.",
    ),
    key(
        "key_prefix",
        Kind::KeyPrefix { max: 256 },
        "cr:resp:",
        "What keys of replies begin with; those of `kv_cache_index` always with `cr:kvidx:`.",
    )
    .idle(),
    key("fallback_to_memory", Kind::Bool, "true", "Keep replies in memory while the server is away.").idle(),
    key("fallback_capacity", ENTRIES, "1000", "Most replies kept there.").idle(),
    key(
        "fallback_ttl_seconds",
        Kind::Counted { unit: Unit::Seconds, min: 1, max: 86_400 },
        "300",
        "How long they are kept there.",
    )
    .idle(),
];

const L1: &[Key] = &[
    key(
        "type",
        Kind::Word(&[word("memory"), word("redis")]),
        "memory",
        "Where it is; `redis` = `response_cache.redis`.",
    )
    .idle(),
    key("max_value_size", BYTES, "1048576", "Longest reply kept there, bytes.").idle(),
];

const L2: &[Key] = &[
    key("type", Kind::Word(&[word("s3")]), "s3", "What it is.").idle(),
    key("endpoint", Kind::Stream(&["https", "http"]), "~", "Where the object store is.").idle(),
    key("bucket", Kind::Text, "~", "The bucket in it.").idle(),
    key("key_prefix", Kind::Text, "response-cache/", "What names of objects begin with.").idle(),
    key("region", Kind::Text, "us-east-1", "The region that requests are signed for.").idle(),
    key("access_key", Kind::Secret, "~", "Who asks.").idle(),
    key("secret_key", Kind::Secret, "~", "What proves it.").idle(),
    key("ttl_override", SECONDS, "~", "How long a reply is kept there; unset = `response_cache.ttl`.").idle(),
];

const TIERED: &[Key] = &[
    key("promote_on_hit", Kind::Bool, "true", "Copy a reply that was found in the second tier to the first.").idle(),
    key("l1_promotion_ttl", SECONDS, "5m", "How long such a copy is kept.").idle(),
];
