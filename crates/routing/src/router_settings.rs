//! Checked settings of the decision.

use std::time::Duration;

use crate::{
    DecisionsSection, DynamoSettings, LmcacheSettings, MediumWeights, Policy, PrefixRoutingSection,
    QueueSettings, RoutingSection, ScoringSettings, SessionMode,
};

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

impl RoutingSettings {
    /// Returns the settings that follow from the sections about the decision; those of other
    /// sections have their defaults.
    pub fn of(routing: &RoutingSection, prefixes: &PrefixRoutingSection) -> Self {
        Self {
            policy: routing.policy(),
            fallback: Policy::LeastLoaded,
            ring: RingSettings {
                virtual_nodes: prefixes.virtual_nodes,
                load_factor_epsilon: prefixes.load_factor_epsilon,
                seed: routing.hash_seed_of_rings,
            },
            cache_aware: CacheAwareSettings::default(),
            lmcache: routing
                .lmcache
                .as_ref()
                .map_or_else(LmcacheSettings::default, LmcacheSettings::from),
            continuum_ring: prefixes.enabled,
            scoring: ScoringSettings::default(),
            overlap_weight: routing.overlap_weight,
            temperature: routing.temperature,
            speculative: routing.speculative,
            speculative_ttl: routing.speculative_ttl,
            prediction_ttl: Duration::from_secs(120),
            medium_weights: routing.medium_weights,
            dynamo: routing.dynamo,
            session: routing.session.mode,
            queue: QueueSettings::default(),
            track_active_blocks: routing.track_active_blocks,
            kept_candidates: DecisionsSection::default().candidates,
        }
    }
}

impl Default for RoutingSettings {
    /// The defaults of the configuration, and `continuum` with its ring.
    fn default() -> Self {
        Self {
            continuum_ring: true,
            ..Self::of(&RoutingSection::default(), &PrefixRoutingSection::default())
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
        RoutingSettings::default().ring
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
