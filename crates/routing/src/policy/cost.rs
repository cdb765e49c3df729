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
    pub const MOST: usize = 13;

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
    /// How the policy selected the target if this candidate wins, for policies that distinguish
    /// ways.
    pub(crate) label: Option<&'static str>,
    /// The blocks that the candidate could read from another one are read.
    pub(crate) fetches: bool,
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
            fetches: false,
        }
    }
}

/// Returns the costs of candidates that depend only on their rank in `ranking`, best first.
pub(super) fn by_rank(ranking: impl ExactSizeIterator<Item = usize>) -> Vec<CandidateCost> {
    let mut prices = vec![CandidateCost::of(0.0); ranking.len()];
    for (rank, i) in ranking.enumerate() {
        prices[i].cost = rank as f64;
    }
    prices
}

/// Costs this close, relative to the larger, are equal: they differ by rounding only.
const EQUAL: f64 = 1e-9;

/// Returns the order of candidates by cost, cheapest first; equal costs by tie-break, then at
/// random.
pub(crate) fn order(prices: &[CandidateCost], random: u64) -> Vec<usize> {
    // Costs are copied next to their indices: `CandidateCost` is large, and there may be a thousand.
    let mut costs: Vec<(f64, usize)> = prices
        .iter()
        .enumerate()
        .map(|(i, price)| (price.cost, i))
        .collect();
    costs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let mut order: Vec<usize> = costs.into_iter().map(|(_, i)| i).collect();
    // Equal costs are adjacent now; ordering each run on its own keeps the comparison transitive.
    let mut start = 0;
    while start < order.len() {
        let cheapest = prices[order[start]].cost;
        let end =
            start + order[start..].partition_point(|next| equal(cheapest, prices[*next].cost));
        let end = end.max(start + 1);
        order[start..end].sort_unstable_by_key(|i| (prices[*i].tie, random_for(random, *i)));
        start = end;
    }
    order
}

/// Draws a position of `order`: always the first at temperature 0, else with weights `exp(-x /
/// temperature)` where `x` is the cost scaled to 0..1 between the cheapest and the most expensive.
pub(crate) fn pick(
    prices: &[CandidateCost],
    order: &[usize],
    temperature: f64,
    random: u64,
) -> usize {
    let (Some(first), Some(last)) = (order.first(), order.last()) else {
        return 0;
    };
    if temperature <= 0.0 || !temperature.is_finite() {
        return 0;
    }
    let (cheapest, span) = (
        prices[*first].cost,
        prices[*last].cost - prices[*first].cost,
    );
    let weight = |i: &usize| {
        let scaled = if span > 0.0 {
            (prices[*i].cost - cheapest) / span
        } else {
            0.0
        };
        (-scaled / temperature).exp()
    };
    let total: f64 = order.iter().map(weight).sum();
    let mut left = unit(random_for(random, usize::MAX)) * total;
    for (position, i) in order.iter().enumerate() {
        left -= weight(i);
        if left < 0.0 {
            return position;
        }
    }
    order.len() - 1
}

/// Returns a number for the `i`-th candidate, uniform over all `u64` if `random` is.
pub(crate) fn random_for(random: u64, i: usize) -> u64 {
    let mut x = random.wrapping_add(
        (i as u64)
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15),
    );
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn equal(a: f64, b: f64) -> bool {
    (a - b).abs() <= EQUAL * a.abs().max(b.abs()).max(1.0)
}

/// Maps `random` uniformly to 0 (included) to 1 (not included).
pub(crate) fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(costs: &[f64]) -> Vec<CandidateCost> {
        costs.iter().map(|cost| CandidateCost::of(*cost)).collect()
    }

    #[test]
    fn the_cheapest_is_first_and_equal_costs_are_drawn_evenly() {
        let prices = prices(&[3.0, 1.0, 1.0 + 1e-12, 2.0]);
        let mut first = [0; 4];
        for random in 0..1000 {
            let order = order(&prices, random);
            first[order[0]] += 1;
            assert_eq!(order[2..], [3, 0]);
        }
        assert_eq!(first[0] + first[3], 0);
        assert!(first[1] > 400 && first[2] > 400, "{first:?}");
    }

    #[test]
    fn temperature_zero_takes_the_cheapest_and_above_it_follows_the_softmax_of_scaled_costs() {
        let prices = prices(&[10.0, 20.0, 30.0]);
        let order = order(&prices, 7);
        assert!((0..100).all(|random| pick(&prices, &order, 0.0, random) == 0));
        let mut counts = [0.0; 3];
        for random in 0..20_000 {
            counts[pick(&prices, &order, 0.5, random)] += 1.0;
        }
        let weights = [1.0, (-1.0f64).exp(), (-2.0f64).exp()];
        let total: f64 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(weights) {
            assert!(
                (count / 20_000.0 - weight / total).abs() < 0.02,
                "{counts:?}"
            );
        }
    }

    #[test]
    fn with_equal_costs_temperature_draws_evenly() {
        let prices = prices(&[5.0; 4]);
        let order = order(&prices, 1);
        let mut counts = [0; 4];
        for random in 0..4000 {
            counts[pick(&prices, &order, 0.3, random)] += 1;
        }
        assert!(counts.iter().all(|count| *count > 850), "{counts:?}");
    }
}
