//! The sections about cached model lists and equal requests.

use super::{
    KeySchema, Unit, ValueKind, key,
    kinds::{PAUSE, RATIO, SECONDS, SECONDS_OR_ZERO, section},
};

const TTL: ValueKind = ValueKind::Counted {
    unit: Unit::Seconds,
    min: 1,
    max: 86_400,
};

pub(super) const CACHE: &[KeySchema] = &[
    key(
        "model_cache_ttl",
        SECONDS,
        "300s",
        "How long one worker's own list of models counts.",
    ),
    key(
        "deduplication_ttl",
        SECONDS_OR_ZERO,
        "60s",
        "How long a finished reply answers requests like the one it was for; 0 = only requests while it runs.",
    ),
    key(
        "enable_deduplication",
        ValueKind::Bool,
        "true",
        "Requests that are alike, and that ask for a repeatable answer (`temperature: 0`, or a `seed`), are sent once.",
    ),
];

pub(super) const MODEL_AGGREGATION: &[KeySchema] = &[
    key(
        "cache_ttl",
        SECONDS,
        "60",
        "How long the merged list of models counts.",
    ),
    key(
        "soft_ttl_ratio",
        RATIO,
        "0.8",
        "Share of `cache_ttl` after which it is renewed while it still answers.",
    ),
    key(
        "empty_response_base_ttl_seconds",
        TTL,
        "5",
        "How long an empty list counts, doubling each time it stays empty.",
    ),
    key(
        "empty_response_max_ttl_seconds",
        TTL,
        "60",
        "Longest that an empty list counts.",
    ),
    key(
        "max_cache_entries",
        ValueKind::Int {
            min: 1,
            max: 1_000_000,
        },
        "100",
        "Most lists kept; this version has one.",
    )
    .idle(),
    section(
        "background_refresh",
        &[
            key(
                "enabled",
                ValueKind::Bool,
                "true",
                "Renew the list before it is too old, also while nobody asks.",
            ),
            key(
                "check_interval",
                PAUSE,
                "10s",
                "Time between looks at its age.",
            ),
        ],
        "Renewal in the background.",
    ),
];
