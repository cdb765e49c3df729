//! Policies: how candidates are priced. One policy, one file.
//!
//! A policy gives each candidate a price and nothing else: lower wins. Equal prices, temperatures, reservations and
//! receipts are the same for all and live elsewhere, so a new policy is one file, one name and one line in [`Rules`].

use std::{fmt, str::FromStr};

use kv_blocks::{Target, WorkerId};

pub use self::lmcache_aware::LMCACHE_PREFIX;

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
mod power_of_two;
mod prefix_hash;
mod prefix_memory_hint;
mod random;
mod rendezvous_hash;
mod ring;
mod round_robin;
mod warm;
mod weighted_round_robin;

/// A policy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Each target in turn.
    RoundRobin,
    /// Any target.
    Random,
    /// The target with the fewest requests in flight.
    LeastLoaded,
    /// The target with the longest cached prefix.
    KvAware,
    /// The target with the lowest estimated cost in time.
    Warm,
    /// The target with the fewest blocks to compute and to hold.
    DynamoCost,
    /// The owner of the prompt's beginning, or the next one that is not full.
    PrefixHash,
    /// The target that draws best with the session.
    RendezvousHash,
    /// The owner of the session on a ring.
    ConsistentHash,
    /// The less loaded of two drawn by lot.
    PowerOfTwo,
    /// Each target in turn, as often as its weight says.
    WeightedRoundRobin,
    /// The target whose first tokens came soonest lately.
    LeastLatency,
    /// The longest cached prefix where it is long and load is even, else the least loaded.
    CacheAware,
    /// What a controller of LMCache says is cached where.
    LmcacheAware,
    /// The best score of cache, load and health.
    Composite,
    /// The same where enough is cached, else the owner of the prompt's beginning.
    Continuum,
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

    /// The name used in configuration, headers and receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastLoaded => "least_loaded",
            Self::KvAware => "kv_aware",
            Self::Warm => "warm",
            Self::DynamoCost => "dynamo_cost",
            Self::PrefixHash => "prefix_hash",
            Self::RendezvousHash => "rendezvous_hash",
            Self::ConsistentHash => "consistent_hash",
            Self::PowerOfTwo => "power_of_two",
            Self::WeightedRoundRobin => "weighted_round_robin",
            Self::LeastLatency => "least_latency",
            Self::CacheAware => "cache_aware",
            Self::LmcacheAware => "lmcache_aware",
            Self::Composite => "composite",
            Self::Continuum => "continuum",
        }
    }

    /// Another name it is asked for by.
    fn alias(self) -> Option<&'static str> {
        match self {
            Self::DynamoCost => Some("kv"),
            Self::PrefixHash => Some("prefix_aware_hash"),
            _ => None,
        }
    }

    /// Whether it goes by an [`Affinity`].
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

    /// Whether it goes by who holds the prompt's beginning ([`crate::Job::prefix_holders`]).
    pub fn needs_prefix_holders(self) -> bool {
        matches!(self, Self::Composite | Self::Continuum)
    }

    /// Whether it goes by the blocks that workers hold of a prompt, and by something else where nobody holds any.
    pub(crate) fn uses_block_overlap(self) -> bool {
        matches!(
            self,
            Self::KvAware | Self::Warm | Self::DynamoCost | Self::CacheAware
        )
    }

    /// Whether it goes by what a controller of LMCache says ([`crate::Candidate::lmcache`]).
    pub fn needs_lmcache(self) -> bool {
        self == Self::LmcacheAware
    }

    /// Whether a request that asked for this policy was not placed by its own rules but by `ruling`'s.
    pub(crate) fn fell_back_to(self, ruling: Self) -> bool {
        ruling != self
            && !(self == Self::Continuum && matches!(ruling, Self::Composite | Self::PrefixHash))
    }

    /// The policy whose rule decides on this request: this one, or another where it needs a key that the request has not,
    /// or a score that says nothing (`scored`).
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
            // Its score is made of streams of prefixes alone.
            Self::Continuum if scene.prefix_holders.is_some() && scored(scene) => Self::Composite,
            Self::Continuum if keyed && settings.continuum_ring => Self::PrefixHash,
            Self::Continuum => fallback,
            _ => self,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is no policy's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy {0:?} is unknown: expected one of {names}", names = known_names())]
pub struct UnknownPolicy(pub String);

/// Every name there is, aliases in brackets.
fn known_names() -> String {
    let named = |policy: Policy| match policy.alias() {
        Some(alias) => format!("{policy} (or {alias})"),
        None => policy.to_string(),
    };
    Policy::ALL.map(named).join(", ")
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    /// Reads a name; upper case, `-` and `_` do not matter; `kv` is `dynamo_cost`, `prefix_aware_hash` is
    /// `prefix_hash`.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let asked = fold(name);
        let named = |policy: &Self| {
            std::iter::once(policy.as_str())
                .chain(policy.alias())
                .any(|known| fold(known) == asked)
        };
        // What a client sends may be of any length: enough of it to recognise is repeated.
        Self::ALL
            .into_iter()
            .find(named)
            .ok_or_else(|| UnknownPolicy(name.chars().take(64).collect()))
    }
}

fn fold(name: &str) -> String {
    name.chars()
        .filter(|c| !matches!(c, '-' | '_'))
        .map(|c| c.to_ascii_lowercase())
        .collect()
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
    /// The receipt's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ms => "ms",
            Self::Blocks => "blocks",
            Self::Score => "score",
            Self::Rank => "rank",
        }
    }
}

/// What a cost is made of: a few named numbers, kept without allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    names: &'static [&'static str],
    values: [f64; Self::MOST],
    /// Another policy priced than the one that was asked.
    fallback: bool,
    /// The target of the request's session holds too many.
    session_full: bool,
}

impl Terms {
    /// The most terms one policy may have.
    pub const MOST: usize = 10;

    /// Terms of a policy: as many values as names, at most [`Terms::MOST`].
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

    /// The same with the term `fallback`.
    pub(crate) fn of_fallback(self) -> Self {
        Self {
            fallback: true,
            ..self
        }
    }

    /// The same with the term `session_full`.
    pub(crate) fn of_full_session(self) -> Self {
        Self {
            session_full: true,
            ..self
        }
    }

    /// Names and values, in the policy's order; last, each 1: `fallback` where the policy that was asked could not decide,
    /// `session_full` where the session left its target because that holds too many.
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

    /// The value of one term.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }
}

/// Everything a policy may look at.
#[derive(Debug)]
pub(crate) struct PolicyInput<'a> {
    pub(crate) random: u64,
    pub(crate) affinity: Affinity,
    /// Who holds the prompt's beginning, by streams that name whole prefixes; `None`: there are none.
    pub(crate) prefix_holders: Option<&'a [PrefixHolder]>,
    /// Weight of cached prefixes; 0 balances load alone.
    pub(crate) overlap_weight: f64,
    pub(crate) medium_weights: MediumWeights,
    pub(crate) prompt_tokens: u32,
    /// At least 1.
    pub(crate) expected_output_tokens: f64,
    /// The prompt, one way for each namespace.
    pub(crate) prompts: Vec<NamespacePrompt>,
    /// Never empty.
    pub(crate) candidates: Vec<PolicyCandidate<'a>>,
}

/// One candidate as the policy sees it.
#[derive(Debug)]
pub(crate) struct PolicyCandidate<'a> {
    pub(crate) overlap: CandidateOverlap<'a>,
    pub(crate) state: CandidateState,
}

impl PolicyCandidate<'_> {
    pub(crate) fn target(&self) -> Target {
        self.overlap.candidate.target
    }

    /// Blocks of the prompt that are not active there.
    pub(crate) fn new_blocks(&self) -> u64 {
        self.state.blocks_after - self.state.load.decode_blocks
    }

    /// Prompt tokens that it would have to compute with this request: its queue, and what it does not hold of the prompt.
    pub(crate) fn prefill_tokens_after(&self) -> u64 {
        self.state.load.queued_prefill_tokens + u64::from(self.overlap.uncached_tokens)
    }
}

/// What the ledger and the learned rates say of a candidate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandidateState {
    pub(crate) load: TargetLoad,
    /// Time until its queued prefills are computed.
    pub(crate) backlog_ms: f64,
    /// The same, on average lately.
    pub(crate) mean_backlog_ms: f64,
    /// Context of its generating sequences.
    pub(crate) decode_tokens: u64,
    /// Prefill time given to it lately.
    pub(crate) work_ms: f64,
    /// Uncached tokens given to it lately.
    pub(crate) cold_tokens: f64,
    /// Number of the latest reservation there; 0 if there was none.
    pub(crate) last_dispatch: u64,
    /// Active blocks if this prompt joined them.
    pub(crate) blocks_after: u64,
    pub(crate) rates: Rates,
    /// Mean time to its worker's first tokens lately.
    pub(crate) first_token_ms: Option<f64>,
    /// Share of its worker's requests of the last minute that it took.
    pub(crate) health: f64,
}

/// Tokens that engines mix into one step.
const STEP_TOKENS: u32 = 8192;

impl CandidateState {
    /// Time that the sequences generating there take from a prefill of so many tokens, step by step.
    pub(crate) fn interleave_ms(&self, uncached_tokens: u32) -> f64 {
        let step_ms = self
            .rates
            .step_ms(self.load.decode_sequences, self.decode_tokens);
        f64::from(uncached_tokens.div_ceil(STEP_TOKENS)) * step_ms
    }
}

/// What a policy thinks of one candidate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandidateCost {
    /// Lower wins.
    pub(crate) cost: f64,
    /// Settles equal costs, lower first; what is still equal is drawn.
    pub(crate) tie: u64,
    pub(crate) predicted_ttft_ms: Option<f64>,
    pub(crate) terms: Terms,
    /// How the policy placed the request if this is the winner, where it tells ways apart.
    pub(crate) label: Option<&'static str>,
}

/// The label of a request on which another policy decided than the one asked: that one found no key.
pub(crate) const FALLBACK: &str = "fallback";

impl CandidateCost {
    /// A cost without further explanation.
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

/// Prices of contenders whose `line`, best first, is all that counts.
fn by_place(line: impl ExactSizeIterator<Item = usize>) -> Vec<CandidateCost> {
    let mut prices = vec![CandidateCost::of(0.0); line.len()];
    for (place, i) in line.enumerate() {
        prices[i].cost = place as f64;
    }
    prices
}

/// One policy's rule. `price` looks, `chosen` remembers.
pub(crate) trait PolicyRule: fmt::Debug + Send {
    /// Unit of the costs.
    fn unit(&self) -> CostUnit;

    /// Whether a temperature may draw another than the cheapest.
    fn draws(&self) -> bool {
        false
    }

    /// One price per contender, in order.
    fn price(&self, scene: &PolicyInput<'_>) -> Vec<CandidateCost>;

    /// The policy's own choice was taken.
    fn chosen(&mut self, _scene: &PolicyInput<'_>, _winner: &PolicyCandidate<'_>) {}

    /// A worker is gone.
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

    /// Whether the score of `composite` says anything of this request.
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
            // Who rules under `continuum` is one of the others.
            Policy::Composite | Policy::Continuum => &mut self.composite,
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        for policy in Policy::ALL {
            self.of(policy).forget(worker);
        }
    }
}
