//! Settings of single policies and of single models, and the value kinds that they share with
//! section `routing`.

use super::{
    Availability, KeySchema, Range, ValueKind, WordChoice, key,
    kinds::{RATIO, section},
    word,
};

pub(super) const OVERLAP_WEIGHT: ValueKind = ValueKind::Float(Range {
    min: 0.0,
    max: 100.0,
    open: false,
});
pub(super) const TEMPERATURE: ValueKind = ValueKind::Float(Range {
    min: 0.0,
    max: 10.0,
    open: false,
});

/// An entry of `routing.models`; missing keys default to those of `routing`.
pub(super) const MODEL_ROUTING: &[KeySchema] = &[
    key(
        "policy",
        ValueKind::Word(POLICIES),
        "~",
        "Policy; where the two below are unset it counts for them too.",
    ),
    key(
        "prefill_policy",
        ValueKind::Word(POLICIES),
        "~",
        "Policy among prefill workers.",
    ),
    key(
        "decode_policy",
        ValueKind::Word(POLICIES),
        "~",
        "Policy among the workers that generate, where prefill is split off.",
    ),
    key(
        "overlap_weight",
        OVERLAP_WEIGHT,
        "~",
        "Weight of cached prefixes; above 0 it has KV events followed.",
    ),
    key(
        "temperature",
        TEMPERATURE,
        "~",
        "How evenly choices are spread.",
    ),
    key(
        "busy_threshold",
        RATIO,
        "~",
        "KV cache use above which a worker gets none of its requests.",
    ),
    section(
        "medium_weights",
        &[
            key("gpu", RATIO, "~", "Weight of blocks in GPU memory."),
            key("cpu", RATIO, "~", "Weight of blocks in host memory."),
            key(
                "disk",
                RATIO,
                "~",
                "Weight of blocks on disk or in remote storage.",
            ),
        ],
        "What a warm block counts under `kv_aware`, by where it is.",
    ),
];

pub(super) const MEDIUM_WEIGHTS: &[KeySchema] = &[
    key(
        "gpu",
        RATIO,
        "1.0",
        "Weight of blocks in GPU memory, or expected there (`--kv-medium-gpu-weight`).",
    ),
    key(
        "cpu",
        RATIO,
        "0.3",
        "Weight of blocks in host memory (`--kv-medium-cpu-weight`).",
    ),
    key(
        "disk",
        RATIO,
        "0.05",
        "Weight of blocks on disk or in remote storage (`--kv-medium-disk-weight`).",
    ),
];

/// Dynamo has these as flags of later releases than the one whose cost is the default here.
pub(super) const DYNAMO: &[KeySchema] = &[
    key(
        "active_request_weight",
        ValueKind::Float(Range {
            min: 0.0,
            max: 1e6,
            open: false,
        }),
        "0.0",
        "Blocks that each request in flight on a worker adds to its cost.",
    ),
    key(
        "host_cache_hit_weight",
        RATIO,
        "1.0",
        "Share of a token cached in host memory that need not be computed.",
    ),
    key(
        "disk_cache_hit_weight",
        RATIO,
        "1.0",
        "The same of one on disk or in remote storage.",
    ),
];

pub(super) const POLICIES: &[WordChoice] = &[
    word("warm"),
    word("kv_aware"),
    word("least_loaded"),
    word("round_robin"),
    word("random"),
    word("weighted_round_robin"),
    word("least_latency"),
    word("power_of_two"),
    word("consistent_hash"),
    word("rendezvous_hash"),
    WordChoice {
        word: "prefix_hash",
        also: &["prefix_aware_hash"],
        built: Availability::Now,
    },
    word("cache_aware"),
    word("lmcache_aware"),
    WordChoice {
        word: "dynamo_cost",
        also: &["kv"],
        built: Availability::Now,
    },
    word("composite"),
    word("continuum"),
];
