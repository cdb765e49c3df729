//! The rules of all policies, and which of them decides.

use kv_blocks::WorkerId;

use super::{
    Policy, PolicyInput, cache_aware, composite, consistent_hash, dynamo_cost, kv_aware,
    least_latency, least_loaded, lmcache_aware, power_of_two, prefix_hash, random, rendezvous_hash,
    round_robin, rule::PolicyRule, warm, weighted_round_robin,
};
use crate::RoutingSettings;

impl Policy {
    /// Returns the policy whose rule decides for this request: this one, or another if it needs a
    /// key that the request does not have, or a score that does not decide (`scored`).
    pub(crate) fn deciding_policy(
        self,
        settings: &RoutingSettings,
        scene: &PolicyInput<'_>,
        scored: impl Fn(&PolicyInput<'_>) -> bool,
    ) -> Self {
        let fallback = match settings.fallback {
            Self::PrefixHash | Self::Composite | Self::Continuum => Self::LeastLoaded,
            fallback => fallback,
        };
        let keyed = scene.affinity.prefix_key.is_some();
        match self {
            Self::PrefixHash if !keyed => fallback,
            Self::Composite if !scored(scene) => fallback,
            Self::LmcacheAware if !lmcache_aware::decides(scene) => settings.lmcache.fallback(),
            // Its score uses streams of prefixes only.
            Self::Continuum if scene.prefix_holders.is_some() && scored(scene) => Self::Composite,
            Self::Continuum if keyed && settings.continuum_ring => Self::PrefixHash,
            Self::Continuum => fallback,
            _ => self,
        }
    }
}

/// One rule per policy, with its memory.
#[derive(Debug)]
pub(crate) struct PolicyRules {
    round_robin: round_robin::RoundRobin,
    random: random::Random,
    least_loaded: least_loaded::LeastLoaded,
    kv_aware: kv_aware::KvAware,
    warm: warm::Warm,
    dynamo_cost: dynamo_cost::DynamoCost,
    prefix_hash: prefix_hash::PrefixHash,
    rendezvous_hash: rendezvous_hash::RendezvousHash,
    consistent_hash: consistent_hash::ConsistentHash,
    power_of_two: power_of_two::PowerOfTwo,
    weighted_round_robin: weighted_round_robin::WeightedRoundRobin,
    least_latency: least_latency::LeastLatency,
    cache_aware: cache_aware::CacheAware,
    lmcache_aware: lmcache_aware::LmcacheAware,
    composite: composite::Composite,
}

impl PolicyRules {
    pub(crate) fn new(settings: &RoutingSettings) -> Self {
        Self {
            round_robin: Default::default(),
            random: Default::default(),
            least_loaded: Default::default(),
            kv_aware: kv_aware::KvAware::new(settings.ring),
            warm: Default::default(),
            dynamo_cost: dynamo_cost::DynamoCost::new(settings.dynamo),
            prefix_hash: prefix_hash::PrefixHash::new(settings.ring),
            rendezvous_hash: rendezvous_hash::RendezvousHash::new(settings.ring),
            consistent_hash: consistent_hash::ConsistentHash::new(settings.ring),
            power_of_two: Default::default(),
            weighted_round_robin: Default::default(),
            least_latency: Default::default(),
            cache_aware: cache_aware::CacheAware::new(settings.cache_aware, settings.ring),
            lmcache_aware: lmcache_aware::LmcacheAware::new(settings.lmcache.cache_weight),
            composite: composite::Composite::new(settings.scoring),
        }
    }

    /// Returns whether the score of `composite` decides for this request.
    pub(crate) fn scored(&self, scene: &PolicyInput<'_>) -> bool {
        self.composite.decides(scene)
    }

    pub(crate) fn of(&mut self, policy: Policy) -> &mut dyn PolicyRule {
        match policy {
            Policy::RoundRobin => &mut self.round_robin,
            Policy::Random => &mut self.random,
            Policy::LeastLoaded => &mut self.least_loaded,
            Policy::KvAware => &mut self.kv_aware,
            Policy::Warm => &mut self.warm,
            Policy::DynamoCost => &mut self.dynamo_cost,
            Policy::PrefixHash => &mut self.prefix_hash,
            Policy::RendezvousHash => &mut self.rendezvous_hash,
            Policy::ConsistentHash => &mut self.consistent_hash,
            Policy::PowerOfTwo => &mut self.power_of_two,
            Policy::WeightedRoundRobin => &mut self.weighted_round_robin,
            Policy::LeastLatency => &mut self.least_latency,
            Policy::CacheAware => &mut self.cache_aware,
            Policy::LmcacheAware => &mut self.lmcache_aware,
            // Under `continuum` one of the other policies decides.
            Policy::Composite | Policy::Continuum => &mut self.composite,
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        for policy in Policy::ALL {
            self.of(policy).forget(worker);
        }
    }
}
