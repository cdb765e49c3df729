//! Names of the policies.

use std::{fmt, str::FromStr};

use settings::{CheckedValue, Setting, ValueKind};

use super::{Policy, rule::PolicyFact};

impl Policy {
    /// Returns the word of the configuration.
    pub const fn as_str(self) -> &'static str {
        self.definition().name.word
    }

    /// Returns whether the policy uses an [`Affinity`](crate::Affinity).
    pub fn is_keyed(self) -> bool {
        self.uses(PolicyFact::Affinity)
    }

    /// Returns whether the policy uses the holders of the prompt's beginning
    /// ([`crate::JobAffinity::prefix_holders`]).
    pub fn needs_prefix_holders(self) -> bool {
        self.uses(PolicyFact::PrefixHolders)
    }

    /// Returns whether the rule of the policy uses the blocks or the tokens of the prompt. Another
    /// policy may decide instead: see [`crate::Router::reads_prompt`].
    pub(crate) fn reads_prompt(self) -> bool {
        self.uses(PolicyFact::BlockOverlap) || self.uses(PolicyFact::Lmcache)
    }

    /// Returns whether the policy uses the figures of an LMCache controller
    /// ([`crate::Candidate::lmcache`]).
    pub fn needs_lmcache(self) -> bool {
        self.uses(PolicyFact::Lmcache)
    }

    /// Returns whether the policy uses these facts.
    pub(crate) fn uses(self, fact: PolicyFact) -> bool {
        self.definition().facts.contains(&fact)
    }

    /// Returns whether the rule of `deciding_policy` was the fallback for a request of this policy.
    pub(crate) fn fell_back_to(self, deciding_policy: Self) -> bool {
        deciding_policy != self
            && !(self == Self::Continuum
                && matches!(deciding_policy, Self::Composite | Self::PrefixHash))
    }
}

impl Setting for Policy {
    const KIND: ValueKind = ValueKind::Word(Self::WORDS);

    fn read(value: &CheckedValue) -> Option<Self> {
        let word = value.word()?;
        Self::ALL.into_iter().find(|policy| policy.as_str() == word)
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
        policy.definition().name.also.first().map_or_else(
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
        let is_named = |policy: &Self| policy.definition().name.matches(name);
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
    fn the_rules_that_read_the_prompt_are_those_that_see_caches() {
        let reads: Vec<_> = Policy::ALL
            .into_iter()
            .filter(|policy| policy.reads_prompt())
            .map(Policy::as_str)
            .collect();
        let expected = [
            "kv_aware",
            "warm",
            "dynamo_cost",
            "cache_aware",
            "lmcache_aware",
            "composite",
            "continuum",
            "lmetric",
            "dualmap",
            "sticky",
        ];
        assert_eq!(reads, expected);
    }

    #[test]
    fn every_word_of_the_configuration_is_a_policy_and_the_other_way_round() {
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
