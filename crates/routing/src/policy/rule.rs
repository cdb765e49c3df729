//! How the policy of a request is found, and what its rule reads: the table of the policies, their
//! rules, and the inputs of a rule.

use std::fmt::Debug;

use kv_blocks::{Target, WorkerId};
use settings::WordChoice;

use super::{
    Policy,
    cost::{CandidateCost, CostUnit},
};
use crate::{
    Affinity, MediumWeights, PrefixHolder, Rates, RoutingSettings, TargetLoad,
    fetch::FetchOption,
    survey::{CandidateOverlap, NamespacePrompt},
};

/// The definition of one policy, beside its rule.
#[derive(Debug)]
pub(super) struct PolicyDefinition {
    /// The name that users write, and its other spellings.
    pub(super) name: WordChoice,
    /// The optional facts that the policy uses.
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
    /// Overlaps with the block index, with another criterion where no target has any: the blocks
    /// of the prompt.
    BlockOverlap,
    /// The figures of an LMCache controller.
    Lmcache,
    /// The recent time to first token of each worker.
    FirstTokenTime,
    /// The share of its requests that each worker took.
    Health,
}

/// Declares [`Policy`](super::Policy): a line for each policy, with its index in
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

            /// Every policy. The compiler refuses indices that are equal or leave one out.
            pub const ALL: [Self; Self::WORDS.len()] = {
                let listed = [$(Self::$Policy),+];
                let (mut all, mut i) = (listed, 0);
                while i < listed.len() {
                    all[listed[i] as usize] = listed[i];
                    i += 1;
                }
                all
            };

            const fn definition(self) -> &'static rule::PolicyDefinition {
                match self {
                    $(Self::$Policy => &$module::DEFINITION,)+
                }
            }
        }
    };
}

pub(super) use policies;

/// The rule of one policy. `price` reads its memory, `chosen` updates it.
pub(crate) trait PolicyRule: Debug + Send {
    /// Returns the unit of the costs.
    fn unit(&self) -> CostUnit;

    /// Returns whether the request has what the rule decides by; if not, another policy decides.
    fn decides(&self, _input: &PolicyInput<'_>) -> bool {
        true
    }

    /// Returns whether a temperature may choose another candidate than the cheapest.
    fn draws(&self) -> bool {
        false
    }

    /// Returns one cost per candidate, in their order.
    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost>;

    /// Records that the policy's own choice was taken.
    fn chosen(&mut self, _input: &PolicyInput<'_>, _winner: &PolicyCandidate<'_>) {}

    /// Drops the state of a removed worker.
    fn forget(&mut self, _worker: WorkerId) {}
}

/// One rule per policy, with its memory, by the policy's index in [`Policy::ALL`].
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
        input: &PolicyInput<'_>,
    ) -> Policy {
        let decides = |policy: Policy| self.of(policy).decides(input);
        let fallback = settings.section.fallback;
        match policy {
            // Without `kv_cache_index` it is the ring alone.
            Policy::Continuum if input.prefix_holders.is_some() && decides(Policy::Composite) => {
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

/// The inputs of a policy.
#[derive(Debug)]
pub(crate) struct PolicyInput<'a> {
    pub(crate) random: u64,
    pub(crate) affinity: Affinity,
    /// The holders of the prompt's beginning, from streams of whole prefixes; `None`: there are no
    /// such streams.
    pub(crate) prefix_holders: Option<&'a [PrefixHolder]>,
    /// Weight of cached prefixes; 0 balances load alone.
    pub(crate) overlap_weight: f64,
    pub(crate) medium_weights: MediumWeights,
    pub(crate) prompt_tokens: u32,
    /// At least 1.
    pub(crate) expected_output_tokens: f64,
    /// The prompt in the blocks of each namespace.
    pub(crate) prompts: Vec<NamespacePrompt>,
    /// Never empty.
    pub(crate) candidates: Vec<PolicyCandidate<'a>>,
    /// Cold work that new targets are credited with.
    pub(crate) newcomer_cold_tokens: f64,
}

/// One candidate as input of a policy.
#[derive(Debug)]
pub(crate) struct PolicyCandidate<'a> {
    pub(crate) overlap: CandidateOverlap<'a>,
    pub(crate) state: CandidateState,
    /// The blocks that it could read from another candidate, and after the choice those that it reads.
    pub(crate) fetch: Option<FetchOption>,
}

impl PolicyCandidate<'_> {
    pub(crate) fn target(&self) -> Target {
        self.overlap.candidate.target
    }

    /// Returns the blocks of the prompt that are not active on the candidate.
    pub(crate) fn new_blocks(&self) -> u64 {
        self.state.blocks_after - self.state.load.decode_blocks
    }

    /// Returns the prompt tokens that it would have to compute with this request: its queue and the
    /// uncached part of the prompt.
    pub(crate) fn prefill_tokens_after(&self) -> u64 {
        self.state.load.queued_prefill_tokens + u64::from(self.overlap.uncached_tokens)
    }

    /// Returns the estimated time to compute the part of the prompt that it does not hold.
    pub(crate) fn prefill_ms(&self) -> f64 {
        let (cached, uncached) = (
            self.overlap.predicted_cached_tokens,
            self.overlap.uncached_tokens,
        );
        self.state
            .rates
            .prefill_ms(f64::from(cached), f64::from(uncached))
    }

    /// Takes the offered read, or drops the offer.
    pub(crate) fn settle_fetch(&mut self, is_taken: bool) {
        self.fetch = self.fetch.filter(|_| is_taken);
        if let Some(fetch) = &self.fetch {
            self.overlap.fetch(fetch.tokens);
        }
    }
}

/// The state of a candidate from the ledger and the learned rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandidateState {
    pub(crate) load: TargetLoad,
    /// Milliseconds until its queued prefills are computed.
    pub(crate) backlog_ms: f64,
    /// Recent mean of the backlog in milliseconds.
    pub(crate) mean_backlog_ms: f64,
    /// Milliseconds to compute the prompts that wait in the router's queue, would go there and are
    /// before this one.
    pub(crate) waiting_ms: f64,
    /// Context tokens of its generating sequences.
    pub(crate) decode_tokens: u64,
    /// Prefill time recently given to it, in milliseconds.
    pub(crate) work_ms: f64,
    /// Uncached tokens recently given to it.
    pub(crate) cold_tokens: f64,
    /// Number of the latest reservation there; 0 if there was none.
    pub(crate) last_dispatch: u64,
    /// Active blocks if this prompt joined them.
    pub(crate) blocks_after: u64,
    pub(crate) rates: Rates,
    /// Recent mean time to first token of its worker, in milliseconds.
    pub(crate) first_token_ms: Option<f64>,
    /// Share of its worker's requests of the last minute that it took.
    pub(crate) health: f64,
}

/// Tokens that engines mix into one step.
const STEP_TOKENS: u32 = 8192;

impl CandidateState {
    /// Returns the time that the sequences generating there take from a prefill of this many
    /// tokens, step by step.
    pub(crate) fn interleave_ms(&self, uncached_tokens: u32) -> f64 {
        let step_ms = self
            .rates
            .step_ms(self.load.decode_sequences, self.decode_tokens);
        f64::from(uncached_tokens.div_ceil(STEP_TOKENS)) * step_ms
    }
}
