//! Costs of candidates, with their terms.

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
pub(super) fn by_place(line: impl ExactSizeIterator<Item = usize>) -> Vec<CandidateCost> {
    let mut prices = vec![CandidateCost::of(0.0); line.len()];
    for (place, i) in line.enumerate() {
        prices[i].cost = place as f64;
    }
    prices
}
