//! Policies: how candidates are priced. One policy, one file.
//!
//! A policy gives each candidate a price and nothing else: lower wins. Equal prices, temperatures, reservations and
//! receipts are the same for all and live elsewhere, so a new policy is one file, one name and one line in [`Rules`].

use std::{fmt, str::FromStr, sync::Arc};

use kv_blocks::{Target, WorkerId};

use crate::{MediumWeights, Rates, TargetLoad, survey::Surveyed};

mod dynamo_cost;
mod kv_aware;
mod least_loaded;
mod random;
mod round_robin;
mod warm;

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
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 6] =
        [Self::RoundRobin, Self::Random, Self::LeastLoaded, Self::KvAware, Self::Warm, Self::DynamoCost];

    /// The name used in configuration, headers and receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastLoaded => "least_loaded",
            Self::KvAware => "kv_aware",
            Self::Warm => "warm",
            Self::DynamoCost => "dynamo_cost",
        }
    }

    /// Another name it is asked for by.
    fn alias(self) -> Option<&'static str> {
        (self == Self::DynamoCost).then_some("kv")
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is no policy's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "policy {0:?} is unknown: expected one of round_robin, random, least_loaded, kv_aware, warm, dynamo_cost (or kv)"
)]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    /// Reads a name; upper case, `-` and `_` do not matter, and `kv` is `dynamo_cost`.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let asked = fold(name);
        let named =
            |policy: &Self| std::iter::once(policy.as_str()).chain(policy.alias()).any(|known| fold(known) == asked);
        // What a client sends may be of any length: enough of it to recognise is repeated.
        Self::ALL.into_iter().find(named).ok_or_else(|| UnknownPolicy(name.chars().take(64).collect()))
    }
}

fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).collect()
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
}

impl Terms {
    /// The most terms one policy may have.
    pub const MOST: usize = 10;

    /// Terms of a policy: as many values as names, at most [`Terms::MOST`].
    pub(crate) fn new<const N: usize>(names: &'static [&'static str; N], terms: [f64; N]) -> Self {
        const { assert!(N <= Self::MOST, "a policy has more terms than are kept") };
        let mut values = [0.0; Self::MOST];
        values[..N].copy_from_slice(&terms);
        Self { names, values }
    }

    /// Names and values, in the policy's order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        self.names.iter().copied().zip(self.values)
    }

    /// The value of one term.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

/// Everything a policy may look at.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) random: u64,
    /// Weight of cached prefixes; 0 balances load alone.
    pub(crate) overlap_weight: f64,
    pub(crate) medium_weights: MediumWeights,
    pub(crate) prompt_tokens: u32,
    pub(crate) expected_output_tokens: u32,
    /// Never empty.
    pub(crate) contenders: Vec<Contender<'a>>,
}

/// One candidate as the policy sees it.
#[derive(Debug)]
pub(crate) struct Contender<'a> {
    pub(crate) surveyed: Surveyed<'a>,
    pub(crate) standing: Standing,
}

impl Contender<'_> {
    pub(crate) fn target(&self) -> Target {
        self.surveyed.candidate.target
    }

    /// Blocks of the prompt that are not active there.
    pub(crate) fn new_blocks(&self) -> u64 {
        self.standing.blocks_after - self.standing.load.decode_blocks
    }

    /// Prompt tokens that it would have to compute with this request: its queue, and what it does not hold of the prompt.
    pub(crate) fn prefill_tokens_after(&self) -> u64 {
        self.standing.load.queued_prefill_tokens + u64::from(self.surveyed.uncached_tokens)
    }
}

/// What the ledger and the learned rates say of a candidate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) load: TargetLoad,
    /// Time until its queued prefills are computed.
    pub(crate) backlog_ms: f64,
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
}

/// What a policy thinks of one candidate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Price {
    /// Lower wins.
    pub(crate) cost: f64,
    /// Settles equal costs, lower first; what is still equal is drawn.
    pub(crate) tie: u64,
    pub(crate) predicted_ttft_ms: Option<f64>,
    pub(crate) terms: Terms,
}

impl Price {
    /// A cost without further explanation.
    pub(crate) fn of(cost: f64) -> Self {
        Self { cost, tie: 0, predicted_ttft_ms: None, terms: Terms::default() }
    }
}

/// One policy's rule. `price` looks, `chosen` remembers.
pub(crate) trait Rule: fmt::Debug + Send {
    /// Unit of the costs.
    fn unit(&self) -> CostUnit;

    /// Whether a temperature may draw another than the cheapest.
    fn draws(&self) -> bool {
        false
    }

    /// One price per contender, in order.
    fn price(&self, scene: &Scene<'_>) -> Vec<Price>;

    /// The policy's own choice was taken.
    fn chosen(&mut self, _model: &Arc<str>, _target: Target) {}

    /// A worker is gone.
    fn forget(&mut self, _worker: WorkerId) {}
}

/// One rule per policy, with its memory.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    round_robin: round_robin::RoundRobin,
    random: random::Random,
    least_loaded: least_loaded::LeastLoaded,
    kv_aware: kv_aware::KvAware,
    warm: warm::Warm,
    dynamo_cost: dynamo_cost::DynamoCost,
}

impl Rules {
    pub(crate) fn of(&mut self, policy: Policy) -> &mut dyn Rule {
        match policy {
            Policy::RoundRobin => &mut self.round_robin,
            Policy::Random => &mut self.random,
            Policy::LeastLoaded => &mut self.least_loaded,
            Policy::KvAware => &mut self.kv_aware,
            Policy::Warm => &mut self.warm,
            Policy::DynamoCost => &mut self.dynamo_cost,
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        for policy in Policy::ALL {
            self.of(policy).forget(worker);
        }
    }
}
