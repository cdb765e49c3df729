//! Checked settings of the decision.

use std::time::Duration;

use settings::{Section, default_value};

use crate::{
    DecisionsSection, Job, LmcacheSection, Policy, PredictionSection, PrefixRoutingSection,
    QueueSettings, RoutingSection, ScoringSettings,
};

/// Settings of the decision: sections of the configuration as they are, and values that follow from
/// them.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingSettings {
    /// Section `routing`.
    pub section: RoutingSection,
    /// Section `prefix_routing`. While it is not enabled, `continuum` has no ring: the fallback
    /// routes requests that its score does not decide.
    pub prefix_routing: PrefixRoutingSection,
    /// Section `queue`.
    pub queue: QueueSettings,
    /// Weights of `composite` and `continuum`.
    pub scoring: ScoringSettings,
    /// The policy of jobs that name none.
    pub policy: Policy,
    /// Weight and fallback of `lmcache_aware`.
    pub lmcache: LmcacheSettings,
    /// Thresholds of `cache_aware` between following the cache and following the load.
    pub cache_aware: CacheAwareSettings,
    /// How long an entry lives for a target without events.
    pub prediction_ttl: Duration,
    /// Candidates reported in a decision, at least 2.
    pub kept_candidates: usize,
}

impl RoutingSettings {
    /// Returns the settings that follow from the sections about the decision; those of other
    /// sections have their defaults.
    pub fn of(section: RoutingSection, prefix_routing: PrefixRoutingSection) -> Self {
        let lmcache = section.lmcache.as_ref().map(LmcacheSettings::from);
        Self {
            policy: section.policy(),
            lmcache: lmcache.unwrap_or_default(),
            section,
            prefix_routing,
            queue: QueueSettings::default(),
            scoring: ScoringSettings::default(),
            cache_aware: CacheAwareSettings::default(),
            prediction_ttl: PredictionSection::default().ttl,
            kept_candidates: DecisionsSection::default().candidates,
        }
    }

    /// Returns the policy of a job.
    pub(crate) fn policy_of(&self, job: &Job<'_>) -> Policy {
        job.targets.policy.unwrap_or(self.policy)
    }

    /// Returns the policy that decides for a request of `policy` whose own rule cannot; `None`: its
    /// rule always can.
    pub(crate) fn fallback_of(&self, policy: Policy) -> Option<Policy> {
        match policy {
            Policy::LmcacheAware => Some(self.lmcache.fallback()),
            Policy::PrefixHash | Policy::Composite | Policy::Continuum => {
                Some(self.section.fallback)
            }
            _ => None,
        }
    }

    /// Returns whether requests under this policy are placed by the ring, or counted as those that
    /// it could not place.
    pub fn routes_by_prefix(&self, policy: Policy) -> bool {
        match policy {
            Policy::PrefixHash => true,
            Policy::Continuum => self.prefix_routing.enabled,
            _ => false,
        }
    }

    /// Returns the settings of the policies that hash.
    pub fn ring(&self) -> RingSettings {
        RingSettings {
            virtual_nodes: self.prefix_routing.virtual_nodes,
            load_factor_epsilon: self.prefix_routing.load_factor_epsilon,
            seed: self.section.hash_seed_of_rings,
        }
    }
}

impl Default for RoutingSettings {
    /// The defaults of the configuration, and `continuum` with its ring.
    fn default() -> Self {
        let prefix_routing = PrefixRoutingSection {
            enabled: true,
            ..PrefixRoutingSection::default()
        };
        Self::of(RoutingSection::default(), prefix_routing)
    }
}

/// Points, seed and load bound of the policies that hash.
///
/// Replicas route a key equally only if these settings are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RingSettings {
    /// Points of each target on the ring of `prefix_hash`, 1 to 10,000 (other values are clamped).
    pub virtual_nodes: u32,
    /// How far above its even share of the load a target may go under `prefix_hash`: 0.25 is a
    /// quarter.
    pub load_factor_epsilon: f64,
    /// Seed of every hash that positions a target or a key.
    pub seed: u64,
}

impl Default for RingSettings {
    fn default() -> Self {
        RoutingSettings::default().ring()
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

/// Settings of `lmcache_aware`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LmcacheSettings {
    /// Weight of the cache size against a low load, 0 to 1.
    pub cache_weight: f64,
    /// The policy that decides where the controller has no figures. For one that needs a key of the
    /// request `power_of_two` does.
    pub fallback: Policy,
}

impl Default for LmcacheSettings {
    fn default() -> Self {
        Self {
            cache_weight: default_value(LmcacheSection::KEYS, "cache_weight"),
            fallback: default_value(LmcacheSection::KEYS, "fallback"),
        }
    }
}

impl From<&LmcacheSection> for LmcacheSettings {
    fn from(section: &LmcacheSection) -> Self {
        Self {
            cache_weight: section.cache_weight,
            fallback: section.fallback,
        }
    }
}

impl LmcacheSettings {
    pub(crate) fn fallback(&self) -> Policy {
        match self.fallback {
            Policy::LmcacheAware => Policy::PowerOfTwo,
            keyed if keyed.is_keyed() => Policy::PowerOfTwo,
            fallback => fallback,
        }
    }
}
