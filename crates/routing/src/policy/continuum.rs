//! `continuum`: as `composite` where enough of the prompt is cached, else as `prefix_hash`, or by
//! the fallback for a request without a prefix key.
//!
//! The score of `composite` counts where `kv_cache_index` is enabled, and the ring where
//! `prefix_routing` is. One of the other policies decides every request
//! ([`PolicyRules::deciding_policy`](super::rule::PolicyRules::deciding_policy)), and gives cost and
//! terms.

use settings::word;

use super::{composite, rule::PolicyDefinition};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("continuum"),
    facts: composite::DEFINITION.facts,
    // Never used: it replaces a rule of its own.
    rule: composite::DEFINITION.rule,
};
