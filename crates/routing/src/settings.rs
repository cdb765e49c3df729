//! Checked settings of the decision.

use std::time::Duration;

use crate::{LmcacheSettings, Policy, QueueSettings, ScoringSettings, SessionMode};

/// Settings of the decision.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingSettings {
    /// The policy of jobs that name none.
    pub policy: Policy,
    /// The policy that decides for `prefix_hash` when a request has no prefix key; `least_loaded`
    /// in place of `prefix_hash` itself.
    pub fallback: Policy,
    /// Points, seed and load bound of the policies that hash.
    pub ring: RingSettings,
    /// Thresholds of `cache_aware` between following the cache and following the load.
    pub cache_aware: CacheAwareSettings,
    /// Weight and fallback of `lmcache_aware`.
    pub lmcache: LmcacheSettings,
    /// Whether `continuum` has the ring; without it the fallback places requests that its score
    /// does not place.
    pub continuum_ring: bool,
    /// Weights of `composite` and `continuum`.
    pub scoring: ScoringSettings,
    /// Weight of cached prefixes, 0 to 100.
    pub overlap_weight: f64,
    /// 0 takes the lowest cost, above 0 draws by cost.
    pub temperature: f64,
    /// Whether a decision is entered in the index before the engine confirms it (targets with
    /// events).
    pub speculative: bool,
    /// How long such an entry lives without confirmation.
    pub speculative_ttl: Duration,
    /// How long an entry lives for a target without events.
    pub prediction_ttl: Duration,
    /// Value of a cached block by its medium.
    pub medium_weights: MediumWeights,
    /// Weights of the additional terms of `dynamo_cost`.
    pub dynamo: DynamoSettings,
    /// The effect of sessions.
    pub session: SessionMode,
    /// Settings of the queue.
    pub queue: QueueSettings,
    /// Whether blocks of active sequences are counted.
    pub track_active_blocks: bool,
    /// Candidates reported in a decision, at least 2.
    pub kept_candidates: usize,
}

impl Default for RoutingSettings {
    fn default() -> Self {
        Self {
            policy: Policy::Warm,
            fallback: Policy::LeastLoaded,
            ring: RingSettings::default(),
            cache_aware: CacheAwareSettings::default(),
            lmcache: LmcacheSettings::default(),
            continuum_ring: true,
            scoring: ScoringSettings::default(),
            overlap_weight: 1.0,
            temperature: 0.0,
            speculative: true,
            speculative_ttl: Duration::from_secs(2),
            prediction_ttl: Duration::from_secs(120),
            medium_weights: MediumWeights::default(),
            dynamo: DynamoSettings::default(),
            session: SessionMode::default(),
            queue: QueueSettings::default(),
            track_active_blocks: true,
            kept_candidates: 16,
        }
    }
}

/// Value of a cached block by its medium. Remote storage weighs as disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MediumWeights {
    /// In the accelerator's memory, or assumed to be there.
    pub gpu: f64,
    /// In host memory.
    pub cpu: f64,
    /// On disk.
    pub disk: f64,
}

impl Default for MediumWeights {
    fn default() -> Self {
        Self {
            gpu: 1.0,
            cpu: 0.3,
            disk: 0.05,
        }
    }
}

/// Weights of the terms of `dynamo_cost` besides blocks to compute and to hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamoSettings {
    /// Blocks that each request in flight on a target adds to its cost.
    pub active_request_weight: f64,
    /// Share of a token cached in host memory that need not be computed, 0 to 1.
    pub host_cache_hit_weight: f64,
    /// Share of a token cached on disk or in remote storage that need not be computed, 0 to 1.
    pub disk_cache_hit_weight: f64,
}

impl Default for DynamoSettings {
    /// Counts blocks only; cached tokens count fully in every tier.
    fn default() -> Self {
        Self {
            active_request_weight: 0.0,
            host_cache_hit_weight: 1.0,
            disk_cache_hit_weight: 1.0,
        }
    }
}

/// Points, seed and load bound of the policies that hash.
///
/// Replicas place a key equally only if these settings are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RingSettings {
    /// Points of each target on the ring of `prefix_hash`, 1 to 10,000 (other values are clamped).
    pub virtual_nodes: u32,
    /// How far above its even share of the load a target may go under `prefix_hash`: 0.25 is a
    /// quarter.
    pub load_factor_epsilon: f64,
    /// Seed of every hash that places a target or a key.
    pub seed: u64,
}

impl Default for RingSettings {
    fn default() -> Self {
        Self {
            virtual_nodes: 150,
            load_factor_epsilon: 0.25,
            seed: 0,
        }
    }
}

/// Thresholds of `cache_aware` between following the cache and following the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheAwareSettings {
    /// Share of the prompt that must be exceeded by a cached prefix for the cache to decide.
    pub match_threshold: f64,
    /// Requests in flight by which the most loaded target must exceed the least loaded, and ...
    pub balance_difference: u32,
    /// ... the ratio between them that must be exceeded, for the load to decide whatever is cached.
    pub balance_ratio: f64,
}

impl Default for CacheAwareSettings {
    fn default() -> Self {
        Self {
            match_threshold: 0.3,
            balance_difference: 64,
            balance_ratio: 1.5,
        }
    }
}
