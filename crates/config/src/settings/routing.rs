//! Section `routing`: choice of a worker.

use std::time::Duration;

use super::{LmcacheSection, SemanticClusters, SharedPrefixRouting};

/// Section `routing`.
#[derive(Clone, Debug)]
pub struct RoutingSection {
    /// Policy for requests that do not name one, by its name on the reference page.
    pub policy: &'static str,
    /// Policy for prefill workers; `None` = `policy`.
    pub prefill_policy: Option<&'static str>,
    /// Policy for decode workers; `None` = `policy`.
    pub decode_policy: Option<&'static str>,
    /// Seed of the hash rings.
    pub hash_seed_of_rings: u64,
    /// Weight of cached prefixes; 0 balances load alone.
    pub overlap_weight: f64,
    /// 0 = always the lowest cost; above, the spread of the draw.
    pub temperature: f64,
    /// Share of its KV cache in use above which a worker gets no request; `None` = off.
    pub busy_threshold: Option<f64>,
    /// Whether blocks in use by running requests count as load.
    pub track_active_blocks: bool,
    /// Longest time spent on tokens for one decision; beyond it the text prefix is used.
    pub tokenize_budget: Duration,
    /// Time without a call after which a reservation is freed.
    pub reservation_ttl: Duration,
    /// Section `routing.session`.
    pub session: SessionSection,
    /// Whether a decision's own blocks count as cached at once.
    pub speculative: bool,
    /// Lifetime of such blocks while unconfirmed.
    pub speculative_ttl: Duration,
    /// Value of a cached block by tier.
    pub medium_weights: MediumWeights,
    /// Settings of `dynamo_cost`.
    pub dynamo: DynamoSection,
    /// Controller queried by `lmcache_aware`; `None` = none.
    pub lmcache: Option<LmcacheSection>,
    /// Workers by the meaning of prompts; `None` = off.
    pub semantic_clusters: Option<SemanticClusters>,
    /// Memory of the last worker by the beginning of prompts; `None` = off.
    pub shared_prefix_routing: Option<SharedPrefixRouting>,
    /// Overrides for single models, by name; a `*` at the end matches anything.
    pub models: Vec<(String, ModelRoutingEntry)>,
}

/// An entry of `routing.models`: `None` = as for all models.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelRoutingEntry {
    /// Policy.
    pub policy: Option<&'static str>,
    /// Policy for prefill workers.
    pub prefill_policy: Option<&'static str>,
    /// Policy for decode workers.
    pub decode_policy: Option<&'static str>,
    /// Weight of cached prefixes.
    pub overlap_weight: Option<f64>,
    /// Spread of the draw.
    pub temperature: Option<f64>,
    /// Share of its KV cache in use above which a worker gets none of the model's requests.
    pub busy_threshold: Option<f64>,
    /// Value of a cached block by tier; missing tiers are as for all models.
    pub medium_weights: Option<MediumWeights>,
}

/// `routing.medium_weights`, each 0..1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MediumWeights {
    /// In the accelerator's memory.
    pub gpu: f64,
    /// In host memory.
    pub cpu: f64,
    /// On disk, or in remote storage.
    pub disk: f64,
}

/// `routing.dynamo`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamoSection {
    /// Blocks that each request in flight adds to a worker's cost.
    pub active_request_weight: f64,
    /// Share of a token cached in host memory that need not be computed.
    pub host_cache_hit_weight: f64,
    /// Share of a token cached on disk or in remote storage that need not be computed.
    pub disk_cache_hit_weight: f64,
}

/// Section `routing.session`: recognition and weight of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSection {
    /// Strength of session affinity.
    pub mode: SessionMode,
    /// Headers that name a session, in lower case; the first one present counts.
    pub headers: Vec<String>,
}

/// Strength of session affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionMode {
    /// A cost term under `warm`.
    Soft,
    /// Takes precedence over the policy.
    Hard,
    /// Ignored.
    Off,
}

/// Section `prefix_routing`: the hash ring.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefixRoutingSection {
    /// Whether the ring routes requests if no policy is set.
    pub enabled: bool,
    /// Length of the hashed beginning of a prompt, in bytes.
    pub max_prefix_length: usize,
    /// How far a worker may exceed its share of requests in flight.
    pub load_factor_epsilon: f64,
    /// Points of each worker on the ring.
    pub virtual_nodes: u32,
    /// Whether system prompts of messages are marked as cacheable.
    pub anthropic_cache_control_injection: bool,
    /// Whether the line that agents' clients change with every request is removed.
    pub strip_volatile_prefix: bool,
}
