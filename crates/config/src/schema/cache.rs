//! The sections about what is kept of model lists and of requests that are alike.

use super::{
    Key, Kind, Unit, key,
    kinds::{PAUSE, RATIO, SECONDS, SECONDS_OR_ZERO, section},
};

const TTL: Kind = Kind::Counted { unit: Unit::Seconds, min: 1, max: 86_400 };

pub(super) const CACHE: &[Key] = &[
    key("model_cache_ttl", SECONDS, "300s", "How long one worker's own list of models counts.").idle(),
    key(
        "deduplication_ttl",
        SECONDS_OR_ZERO,
        "60s",
        "How long a finished reply answers requests like the one it was for; 0 = only requests while it runs.",
    )
    .idle(),
    key(
        "enable_deduplication",
        Kind::Bool,
        "true",
        "Requests that are alike, and that ask for a repeatable answer (`temperature: 0`, or a `seed`), are sent once.",
    )
    .idle(),
];

pub(super) const MODEL_AGGREGATION: &[Key] = &[
    key("cache_ttl", SECONDS, "60", "How long the merged list of models counts.").idle(),
    key("soft_ttl_ratio", RATIO, "0.8", "Share of `cache_ttl` after which it is renewed while it still answers.")
        .idle(),
    key(
        "empty_response_base_ttl_seconds",
        TTL,
        "5",
        "How long an empty list counts, doubling each time it stays empty.",
    )
    .idle(),
    key("empty_response_max_ttl_seconds", TTL, "60", "Longest that an empty list counts.").idle(),
    key("max_cache_entries", Kind::Int { min: 1, max: 1_000_000 }, "100", "Most lists kept.").idle(),
    section(
        "background_refresh",
        &[
            key("enabled", Kind::Bool, "true", "Renew the list before it is too old, also while nobody asks.").idle(),
            key("check_interval", PAUSE, "10s", "Time between looks at its age.").idle(),
        ],
        "Renewal in the background.",
    ),
];
