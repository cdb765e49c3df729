//! Orders candidates by cost and picks the winner.

use crate::policy::cost::CandidateCost;

/// Costs this close, relative to the larger, are equal: they differ by rounding only.
const EQUAL: f64 = 1e-9;

/// Returns the order of candidates by cost, cheapest first; equal costs by tie-break, then at
/// random.
pub(crate) fn order(prices: &[CandidateCost], random: u64) -> Vec<usize> {
    // Costs are copied next to their places: `CandidateCost` is large, and there may be a thousand.
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
