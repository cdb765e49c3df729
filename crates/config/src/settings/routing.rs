//! Section `routing`: how a worker is chosen.

use std::time::Duration;

/// Section `routing`.
#[derive(Clone, Debug)]
pub struct Routing {
    /// How a worker is chosen when the request does not say.
    pub policy: Policy,
    /// Weight of cached prefixes; 0 balances load alone.
    pub overlap_weight: f64,
    /// 0 = always the best; above, how evenly choices are spread.
    pub temperature: f64,
    /// A worker whose KV cache is fuller than this share gets nothing; `None` = off.
    pub busy_threshold: Option<f64>,
    /// Whether blocks in use by running requests count as load.
    pub track_active_blocks: bool,
    /// Longest time spent on tokens for one decision; beyond it the text prefix is used.
    pub tokenize_budget: Duration,
    /// A reservation without a call is given back after this.
    pub reservation_ttl: Duration,
    /// Whether a decision's own blocks count as warm at once.
    pub speculative: bool,
    /// How long they do, unconfirmed.
    pub speculative_ttl: Duration,
}

/// A routing policy that this version has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// In turn.
    RoundRobin,
    /// By lot.
    Random,
    /// Fewest requests in flight.
    LeastLoaded,
    /// Longest warm prefix.
    KvAware,
    /// Lowest estimated milliseconds.
    Warm,
    /// Fewest blocks to compute and to hold.
    DynamoCost,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 6] =
        [Self::Warm, Self::KvAware, Self::DynamoCost, Self::LeastLoaded, Self::RoundRobin, Self::Random];

    /// Its name in configuration, headers and receipts.
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

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == word)
    }
}
