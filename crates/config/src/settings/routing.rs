//! Section `routing`: how a worker is chosen.

use std::time::Duration;

use super::{LmcacheSection, SemanticClusters, SharedPrefixRouting};

/// Section `routing`.
#[derive(Clone, Debug)]
pub struct RoutingSection {
    /// How a worker is chosen when the request does not say: one of the policies' names as the reference page has them.
    pub policy: &'static str,
    /// The same among workers that compute prompts for others; `None` = `policy`.
    pub prefill_policy: Option<&'static str>,
    /// The same among workers that generate what others computed the prompt of; `None` = `policy`.
    pub decode_policy: Option<&'static str>,
    /// Seed of the hash rings.
    pub hash_seed_of_rings: u64,
    /// Weight of cached prefixes; 0 balances load alone.
    pub overlap_weight: f64,
    /// 0 = always the best; above, how evenly choices are spread.
    pub temperature: f64,
    /// A worker whose KV cache is fuller than this share gets nothing; `None` = off.
    pub busy_threshold: Option<f64>,
    /// Whether blocks in use by running requests count as load.
    pub track_active_blocks: bool,
    /// Longest time spent on tokens for one decision; beyond it the text prefix is used.
    pub tokenize_budget: Duration,
    /// A reservation without a call is given back after this.
    pub reservation_ttl: Duration,
    /// Section `routing.session`.
    pub session: SessionSection,
    /// Whether a decision's own blocks count as warm at once.
    pub speculative: bool,
    /// How long they do, unconfirmed.
    pub speculative_ttl: Duration,
    /// What a cached block is worth by where it sits.
    pub medium_weights: MediumWeights,
    /// Settings of `dynamo_cost`.
    pub dynamo: DynamoSection,
    /// The controller that `lmcache_aware` asks; `None` = nobody is asked.
    pub lmcache: Option<LmcacheSection>,
    /// Workers for prompts that mean alike; `None` = off.
    pub semantic_clusters: Option<SemanticClusters>,
    /// A memory of who served prompts that begin alike; `None` = off.
    pub shared_prefix_routing: Option<SharedPrefixRouting>,
    /// What single models have otherwise, by name; a `*` at its end stands for anything.
    pub models: Vec<(String, ModelRoutingEntry)>,
}

/// An entry of `routing.models`: `None` = as for all models.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelRoutingEntry {
    /// How a worker is chosen.
    pub policy: Option<&'static str>,
    /// The same among workers that compute prompts for others.
    pub prefill_policy: Option<&'static str>,
    /// The same among workers that generate what others computed the prompt of.
    pub decode_policy: Option<&'static str>,
    /// Weight of cached prefixes.
    pub overlap_weight: Option<f64>,
    /// How evenly choices are spread.
    pub temperature: Option<f64>,
    /// A worker whose KV cache is fuller than this share gets none of its requests.
    pub busy_threshold: Option<f64>,
    /// What a cached block is worth by where it sits; what the entry leaves out is as for all models.
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
    /// The same of one on disk or in remote storage.
    pub disk_cache_hit_weight: f64,
}

/// Section `routing.session`: which requests belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSection {
    /// How much that counts.
    pub mode: SessionMode,
    /// Headers that name a session, in lower case; the first that a request has counts.
    pub headers: Vec<String>,
}

/// How much it counts that requests belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionMode {
    /// A little, under `warm`.
    Soft,
    /// More than the policy.
    Hard,
    /// Not at all.
    Off,
}

/// Section `prefix_routing`: the ring.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefixRoutingSection {
    /// Whether requests go by it where no policy is set.
    pub enabled: bool,
    /// Bytes of a prompt's beginning that count.
    pub max_prefix_length: usize,
    /// How far above its share of requests in flight a worker may be.
    pub load_factor_epsilon: f64,
    /// Points of each worker.
    pub virtual_nodes: u32,
    /// System prompts of messages are marked as cacheable.
    pub anthropic_cache_control_injection: bool,
    /// The line that agents' clients change with every request is taken out.
    pub strip_volatile_prefix: bool,
}
