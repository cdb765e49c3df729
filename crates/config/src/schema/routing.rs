//! What single models may have otherwise than section `routing` says, and the kinds of value that both share.

use super::{
    Built, Choice, Key, Kind, Range, key,
    kinds::RATIO,
    word, word_later,
};

pub(super) const OVERLAP_WEIGHT: Kind = Kind::Float(Range { min: 0.0, max: 100.0, open: false });
pub(super) const TEMPERATURE: Kind = Kind::Float(Range { min: 0.0, max: 10.0, open: false });

/// An entry of `routing.models`: what is left out is that of `routing`.
pub(super) const MODEL_ROUTING: &[Key] = &[
    key("policy", Kind::Word(POLICIES), "~", "Policy; where the two below are unset it counts for them too."),
    key("prefill_policy", Kind::Word(POLICIES), "~", "Policy among prefill workers."),
    key("decode_policy", Kind::Word(POLICIES), "~", "Policy among the workers that generate, where prefill is split off."),
    key("overlap_weight", OVERLAP_WEIGHT, "~", "Weight of cached prefixes; above 0 it has KV events followed."),
    key("temperature", TEMPERATURE, "~", "How evenly choices are spread."),
    key("busy_threshold", RATIO, "~", "KV cache use above which a worker gets none of its requests."),
];

pub(super) const POLICIES: &[Choice] = &[
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
    Choice { word: "prefix_hash", also: &["prefix_aware_hash"], built: Built::Now },
    word("cache_aware"),
    word_later("lmcache_aware"),
    Choice { word: "dynamo_cost", also: &["kv"], built: Built::Now },
    word("composite"),
    word("continuum"),
];
