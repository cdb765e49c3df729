//! What the router knows of a policy besides its costs, and the table of the policies.

use settings::WordChoice;

use super::rule::PolicyRule;
use crate::RoutingSettings;

/// The definition of one policy, beside its rule.
#[derive(Debug)]
pub(super) struct PolicyDefinition {
    /// The name that users write, and its other spellings.
    pub(super) name: WordChoice,
    /// The facts that the policy uses of those that not every policy does.
    pub(super) facts: &'static [PolicyFact],
    /// Creates the rule.
    pub(super) rule: fn(&RoutingSettings) -> Box<dyn PolicyRule>,
}

/// Facts that only some policies use. Most of them take time to gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyFact {
    /// The keys of the request ([`Affinity`](crate::Affinity)).
    Affinity,
    /// The holders of the prompt's beginning.
    PrefixHolders,
    /// Overlaps with the block index, with another criterion where no target has any.
    BlockOverlap,
    /// The figures of an LMCache controller.
    Lmcache,
    /// The recent time to first token of each worker.
    FirstTokenTime,
    /// The share of its requests that each worker took.
    Health,
}

/// Declares [`Policy`](super::Policy): a line for each policy, with its place in
/// [`Policy::ALL`](super::Policy::ALL) and the module with its `DEFINITION`.
macro_rules! policies {
    ($(
        $(#[$doc:meta])*
        $Policy:ident = $place:literal in $module:ident;
    )+) => {
        /// A policy by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Policy {
            $($(#[$doc])* $Policy = $place,)+
        }

        impl Policy {
            /// Words of the configuration.
            pub const WORDS: &'static [settings::WordChoice] = &[$($module::DEFINITION.name),+];

            /// Every policy. The compiler refuses places that are equal or leave one out.
            pub const ALL: [Self; Self::WORDS.len()] = {
                let listed = [$(Self::$Policy),+];
                let (mut all, mut i) = (listed, 0);
                while i < listed.len() {
                    all[listed[i] as usize] = listed[i];
                    i += 1;
                }
                all
            };

            const fn definition(self) -> &'static definition::PolicyDefinition {
                match self {
                    $(Self::$Policy => &$module::DEFINITION,)+
                }
            }
        }
    };
}

pub(super) use policies;
