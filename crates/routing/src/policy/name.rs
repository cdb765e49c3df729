//! Names of the policies.

use std::{fmt, str::FromStr};

use settings::WordChoice;

settings::words! {
    /// A policy by name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Policy {
        /// The target with the lowest estimated cost in time.
        Warm = "warm",
        /// The target with the longest cached prefix.
        KvAware = "kv_aware",
        /// The target with the fewest requests in flight.
        LeastLoaded = "least_loaded",
        /// Each target in turn.
        RoundRobin = "round_robin",
        /// Any target.
        Random = "random",
        /// Each target in turn, in proportion to its weight.
        WeightedRoundRobin = "weighted_round_robin",
        /// The target with the shortest recent time to first token.
        LeastLatency = "least_latency",
        /// The less loaded of two random targets.
        PowerOfTwo = "power_of_two",
        /// The owner of the session on a ring.
        ConsistentHash = "consistent_hash",
        /// The target with the highest hash score for the session.
        RendezvousHash = "rendezvous_hash",
        /// The owner of the prompt's beginning, or the next target below its limit.
        PrefixHash = "prefix_hash" | "prefix_aware_hash",
        /// The longest cached prefix where it is long and load is even, else the least loaded.
        CacheAware = "cache_aware",
        /// The target with the best figures of an LMCache controller.
        LmcacheAware = "lmcache_aware",
        /// The target with the fewest blocks to compute and to hold.
        DynamoCost = "dynamo_cost" | "kv",
        /// The best score of cache, load and health.
        Composite = "composite",
        /// As `Composite` where enough is cached, else the owner of the prompt's beginning.
        Continuum = "continuum",
    }
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 16] = [
        Self::RoundRobin,
        Self::Random,
        Self::LeastLoaded,
        Self::KvAware,
        Self::Warm,
        Self::DynamoCost,
        Self::PrefixHash,
        Self::RendezvousHash,
        Self::ConsistentHash,
        Self::PowerOfTwo,
        Self::WeightedRoundRobin,
        Self::LeastLatency,
        Self::CacheAware,
        Self::LmcacheAware,
        Self::Composite,
        Self::Continuum,
    ];

    fn choice(self) -> Option<&'static WordChoice> {
        Self::WORDS
            .iter()
            .find(|choice| choice.word == self.as_str())
    }
}

impl Policy {
    /// Returns whether the policy uses an [`Affinity`](crate::Affinity).
    pub fn is_keyed(self) -> bool {
        matches!(
            self,
            Self::PrefixHash
                | Self::RendezvousHash
                | Self::ConsistentHash
                | Self::Composite
                | Self::Continuum
        )
    }

    /// Returns whether the policy uses the holders of the prompt's beginning
    /// ([`crate::Job::prefix_holders`]).
    pub fn needs_prefix_holders(self) -> bool {
        matches!(self, Self::Composite | Self::Continuum)
    }

    /// Returns whether the policy uses block overlaps, with another criterion where no target has
    /// any.
    pub(crate) fn uses_block_overlap(self) -> bool {
        matches!(
            self,
            Self::KvAware | Self::Warm | Self::DynamoCost | Self::CacheAware
        )
    }

    /// Returns whether the policy uses the figures of an LMCache controller
    /// ([`crate::Candidate::lmcache`]).
    pub fn needs_lmcache(self) -> bool {
        self == Self::LmcacheAware
    }

    /// Returns whether a request for this policy was placed by the rule of `ruling` as a fallback.
    pub(crate) fn fell_back_to(self, ruling: Self) -> bool {
        ruling != self
            && !(self == Self::Continuum && matches!(ruling, Self::Composite | Self::PrefixHash))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy {0:?} is unknown: expected one of {names}", names = known_names())]
pub struct UnknownPolicy(pub String);

/// Returns all names, aliases in brackets.
fn known_names() -> String {
    let named = |policy: Policy| {
        let also = policy.choice().and_then(|choice| choice.also.first());
        also.map_or_else(
            || policy.to_string(),
            |alias| format!("{policy} (or {alias})"),
        )
    };
    Policy::ALL.map(named).join(", ")
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    /// Parses a name; case, `-` and `_` do not matter; `kv` is `dynamo_cost`, `prefix_aware_hash`
    /// is `prefix_hash`.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let is_named = |policy: &Self| policy.choice().is_some_and(|choice| choice.matches(name));
        // A client's value may have any length: the error repeats only enough of it to recognise
        // it.
        Self::ALL
            .into_iter()
            .find(is_named)
            .ok_or_else(|| UnknownPolicy(name.chars().take(64).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_configuration_is_a_policy_and_the_other_way_round() {
        assert_eq!(Policy::WORDS.len(), Policy::ALL.len());
        for choice in Policy::WORDS {
            let policy: Policy = choice
                .word
                .parse()
                .unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(policy.as_str(), choice.word);
            assert!(Policy::ALL.contains(&policy), "{policy}");
        }
    }
}
