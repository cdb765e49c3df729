//! The rules of all policies, and which of them decides.

use kv_blocks::WorkerId;

use super::{Policy, input::PolicyInput, rule::PolicyRule};
use crate::RoutingSettings;

/// One rule per policy, with its memory, by the policy's place in [`Policy::ALL`].
#[derive(Debug)]
pub(crate) struct PolicyRules([Box<dyn PolicyRule>; Policy::ALL.len()]);

impl PolicyRules {
    pub(crate) fn new(settings: &RoutingSettings) -> Self {
        Self(Policy::ALL.map(|policy| (policy.definition().rule)(settings)))
    }

    pub(crate) fn of(&self, policy: Policy) -> &dyn PolicyRule {
        &*self.0[policy as usize]
    }

    pub(crate) fn of_mut(&mut self, policy: Policy) -> &mut dyn PolicyRule {
        &mut *self.0[policy as usize]
    }

    /// Returns the policy whose rule decides for a request of `policy`: this one, or another if it
    /// needs a key that the request does not have, or a score that does not decide.
    pub(crate) fn deciding_policy(
        &self,
        policy: Policy,
        settings: &RoutingSettings,
        scene: &PolicyInput<'_>,
    ) -> Policy {
        let decides = |policy: Policy| self.of(policy).decides(scene);
        let fallback = match settings.fallback {
            Policy::PrefixHash | Policy::Composite | Policy::Continuum => Policy::LeastLoaded,
            fallback => fallback,
        };
        match policy {
            // Its score uses streams of prefixes only.
            Policy::Continuum if scene.prefix_holders.is_some() && decides(Policy::Composite) => {
                Policy::Composite
            }
            Policy::Continuum if settings.prefix_routing.enabled && decides(Policy::PrefixHash) => {
                Policy::PrefixHash
            }
            Policy::Continuum => fallback,
            policy if decides(policy) => policy,
            Policy::LmcacheAware => settings.lmcache.fallback(),
            _ => fallback,
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.0.iter_mut().for_each(|rule| rule.forget(worker));
    }
}
