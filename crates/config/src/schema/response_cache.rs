//! The section about the cache of replies: of it, this version has the Redis server that other stores share.

use super::{
    Key, Kind, key,
    kinds::{RATIO, SECONDS, section},
    word, word_later,
};

const MILLISECONDS: Kind = Kind::Int { min: 1, max: 3_600_000 };
const BYTES: Kind = Kind::Int { min: 1, max: 1 << 40 };
const ENTRIES: Kind = Kind::Int { min: 1, max: 1 << 32 };

pub(super) const RESPONSE_CACHE: &[Key] = &[
    key("enabled", Kind::Bool, "false", "Keep replies and answer from them.").later(),
    key(
        "backend",
        Kind::Word(&[word("memory"), word_later("redis"), word_later("tiered")]),
        "memory",
        "Where replies are kept.",
    ),
    key("capacity", ENTRIES, "1000", "Most replies kept.").later(),
    key("ttl", SECONDS, "5m", "How long a reply is kept.").later(),
    key("max_response_size", BYTES, "1048576", "Longest reply kept, bytes.").later(),
    key("max_stream_buffer_size", BYTES, "10485760", "Longest stream kept, bytes.").later(),
    key(
        "absent_temperature",
        Kind::Word(&[word("cacheable"), word_later("bypass")]),
        "cacheable",
        "Whether replies to requests without a temperature are kept.",
    ),
    key("lookup_budget", SECONDS, "50ms", "Longest time that a request waits for the cache.").later(),
    key("mac_key", Kind::Secret, "~", "Key that proves that a kept reply is ours.").later(),
    section("redis", REDIS, "The Redis or Valkey server that stores share."),
    key("l1", Kind::Free, "~", "The first tier.").later(),
    key("l2", Kind::Free, "~", "The second tier.").later(),
    key("tiered", Kind::Free, "~", "What moves between the tiers.").later(),
    section(
        "semantic",
        &[
            key("enabled", Kind::Bool, "false", "Answer from replies to prompts that mean the same.").later(),
            key("threshold", RATIO, "0.95", "How alike they must be.").later(),
            key("embedding_model", Kind::Text, "~", "The model that says so.").later(),
            key("max_entries", ENTRIES, "256", "Most replies kept for it.").later(),
            key("ttl", SECONDS, "300s", "How long they are kept.").later(),
            key("timeout", SECONDS, "500ms", "Time for one answer of that model.").later(),
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
    .later(),
    key("fallback_to_memory", Kind::Bool, "true", "Keep replies in memory while the server is away.").later(),
    key("fallback_capacity", ENTRIES, "1000", "Most replies kept there.").later(),
    key("fallback_ttl_seconds", Kind::Int { min: 1, max: 86_400 }, "300", "How long they are kept there.").later(),
];
