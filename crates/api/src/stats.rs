//! Counters.

use std::{collections::BTreeMap, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /admin/stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CounterTotals {
    /// Every counter of `/metrics` by name, summed over its labels.
    pub totals: BTreeMap<String, u64>,
}

/// `GET /admin/prefix-routing/stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrefixRoutingStats {
    /// Whether `prefix_routing` is on.
    pub enabled: bool,
    /// Its settings.
    pub config: PrefixConfig,
    /// Its decisions.
    pub routing_decisions: PrefixDecisions,
    /// The requests in flight by worker that routing by prefix placed there.
    pub backend_distribution: Vec<BackendLoad>,
    /// Number of distinct prompt beginnings, estimated within 2 %.
    pub unique_prefixes: u64,
}

/// Settings of prefix routing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrefixConfig {
    /// Longest beginning of a prompt that counts, bytes.
    pub max_prefix_length: usize,
    /// Load above the mean that a worker may have, as a share.
    pub load_factor_epsilon: f64,
    /// Points of one worker on the hash ring.
    pub virtual_nodes: u32,
    /// Always false: the router injects no cache control.
    pub anthropic_cache_control_injection: bool,
}

/// Decisions of prefix routing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PrefixDecisions {
    /// All of them.
    pub total: u64,
    /// Placed by the hash of the prefix.
    pub prefix_hash: u64,
    /// Moved on because the worker had too much load.
    pub overflow: u64,
    /// Placed by another rule.
    pub fallback: u64,
    /// `overflow` as a share of the placed ones, with four decimals.
    pub overflow_rate: String,
}

/// Load of one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackendLoad {
    /// The worker's name.
    pub backend: Arc<str>,
    /// Its running requests.
    pub in_flight_requests: u64,
}
