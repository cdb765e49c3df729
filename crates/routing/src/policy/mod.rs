//! Policies: the rules that compute the candidates' costs. One file per policy.
//!
//! A policy only gives each candidate a cost; the lowest wins. Ties, temperatures, reservations and
//! receipts are common to all policies and implemented elsewhere, so a new policy is one file, one
//! name and one line in [`PolicyRules`].

use kv_blocks::{Target, WorkerId};

pub use self::{
    lmcache_aware::LMCACHE_PREFIX,
    name::{Policy, UnknownPolicy},
};

use crate::{
    Affinity, MediumWeights, PrefixHolder, Rates, RoutingSettings, TargetLoad,
    survey::{CandidateOverlap, NamespacePrompt},
};

mod cache_aware;
pub(crate) mod composite;
mod consistent_hash;
mod dynamo_cost;
mod kv_aware;
mod least_latency;
mod least_loaded;
mod lmcache_aware;
mod load_factor;
mod name;
mod power_of_two;
mod prefix_hash;
mod prefix_memory_hint;
mod random;
mod rendezvous_hash;
mod ring;
mod round_robin;
mod warm;
mod weighted_round_robin;

impl Policy {
    /// Returns whether the policy uses an [`Affinity`].
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

/// Unit of a policy's costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CostUnit {
    /// Estimated milliseconds.
    Ms,
    /// Blocks of work.
    Blocks,
    /// One less a share of the prompt.
    Score,
    /// Position in an order.
    Rank,
}

impl CostUnit {
    /// Returns the name used in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ms => "ms",
            Self::Blocks => "blocks",
            Self::Score => "score",
            Self::Rank => "rank",
        }
    }
}

/// The named terms of a cost, stored without allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    names: &'static [&'static str],
    values: [f64; Self::MOST],
    /// The cost comes from another policy than the requested one.
    fallback: bool,
    /// The target of the request's session has too many requests.
    session_full: bool,
}

impl Terms {
    /// Most terms of one policy.
    pub const MOST: usize = 10;

    /// Creates the terms of a policy: as many values as names, at most [`Terms::MOST`].
    pub(crate) fn new<const N: usize>(names: &'static [&'static str; N], terms: [f64; N]) -> Self {
        const { assert!(N <= Self::MOST, "a policy has more terms than are kept") };
        let mut values = [0.0; Self::MOST];
        values[..N].copy_from_slice(&terms);
        Self {
            names,
            values,
            fallback: false,
            session_full: false,
        }
    }

    /// Adds the term `fallback`.
    pub(crate) fn of_fallback(self) -> Self {
        Self {
            fallback: true,
            ..self
        }
    }

    /// Adds the term `session_full`.
    pub(crate) fn of_full_session(self) -> Self {
        Self {
            session_full: true,
            ..self
        }
    }

    /// Returns names and values in the policy's order; last, each 1: `fallback` if the requested
    /// policy could not decide, `session_full` if the session left its target because that has too
    /// many requests.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        let marks = [
            (self.fallback, "fallback"),
            (self.session_full, "session_full"),
        ];
        let marks = marks
            .into_iter()
            .filter_map(|(set, name)| set.then_some((name, 1.0)));
        self.names.iter().copied().zip(self.values).chain(marks)
    }

    /// Returns the value of one term.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
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
}

/// One candidate as input of a policy.
#[derive(Debug)]
pub(crate) struct PolicyCandidate<'a> {
    pub(crate) overlap: CandidateOverlap<'a>,
    pub(crate) state: CandidateState,
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
}

/// The state of a candidate from the ledger and the learned rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandidateState {
    pub(crate) load: TargetLoad,
    /// Milliseconds until its queued prefills are computed.
    pub(crate) backlog_ms: f64,
    /// Recent mean of the backlog in milliseconds.
    pub(crate) mean_backlog_ms: f64,
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

/// A policy's result for one candidate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandidateCost {
    /// Lower wins.
    pub(crate) cost: f64,
    /// Tie-break for equal costs, lower first; remaining ties are broken at random.
    pub(crate) tie: u64,
    pub(crate) predicted_ttft_ms: Option<f64>,
    pub(crate) terms: Terms,
    /// How the policy placed the request if this candidate wins, for policies that distinguish
    /// ways.
    pub(crate) label: Option<&'static str>,
}

/// The label of a request that another policy decided, because the requested one found no key.
pub(crate) const FALLBACK: &str = "fallback";

impl CandidateCost {
    /// Creates a cost without further explanation.
    pub(crate) fn of(cost: f64) -> Self {
        Self {
            cost,
            tie: 0,
            predicted_ttft_ms: None,
            terms: Terms::default(),
            label: None,
        }
    }
}

/// Returns the costs of candidates that depend only on their place in `line`, best first.
fn by_place(line: impl ExactSizeIterator<Item = usize>) -> Vec<CandidateCost> {
    let mut prices = vec![CandidateCost::of(0.0); line.len()];
    for (place, i) in line.enumerate() {
        prices[i].cost = place as f64;
    }
    prices
}

/// The rule of one policy. `price` reads its memory, `chosen` updates it.
pub(crate) trait PolicyRule: std::fmt::Debug + Send {
    /// Returns the unit of the costs.
    fn unit(&self) -> CostUnit;

    /// Returns whether a temperature may choose another candidate than the cheapest.
    fn draws(&self) -> bool {
        false
    }

    /// Returns one cost per candidate, in their order.
    fn price(&self, scene: &PolicyInput<'_>) -> Vec<CandidateCost>;

    /// Records that the policy's own choice was taken.
    fn chosen(&mut self, _scene: &PolicyInput<'_>, _winner: &PolicyCandidate<'_>) {}

    /// Drops the state of a removed worker.
    fn forget(&mut self, _worker: WorkerId) {}
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
