//! Latencies, and the median of several measurements.

use crate::clock;

/// Latencies in ticks.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<u64>);

impl Samples {
    /// Allocates room for `count` latencies in resident memory: the first write to a page takes
    /// longer than a query.
    pub(crate) fn with_capacity(count: usize) -> Self {
        let mut latencies = vec![u64::MAX; count];
        latencies.clear();
        Self(latencies)
    }

    pub(crate) fn push(&mut self, ticks: u64) {
        self.0.push(ticks);
    }

    /// Returns nearest-rank percentiles in nanoseconds, one for each of `shares` (0 to 1); NaN
    /// without samples.
    pub(crate) fn percentiles_ns<const N: usize>(mut self, shares: [f64; N]) -> [f64; N] {
        self.0.sort_unstable();
        shares.map(|share| {
            let rank = (self.0.len() as f64 * share).ceil().max(1.0) as usize;
            self.0
                .get(rank - 1)
                .map_or(f64::NAN, |ticks| *ticks as f64 * clock::ns_per_tick())
        })
    }
}

/// Returns the median, the upper one of two; `None` for an empty list.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_sample_of_the_nearest_rank_above() {
        let mut samples = Samples::default();
        (1..=200).rev().for_each(|ticks| samples.push(ticks));
        let in_ticks = samples
            .percentiles_ns([0.5, 0.99])
            .map(|ns| (ns / clock::ns_per_tick()).round());
        assert_eq!(in_ticks, [100.0, 198.0]);
    }

    #[test]
    fn one_wild_repetition_does_not_move_the_median() {
        assert_eq!(median(vec![9e9, 2.0, 1.0]), Some(2.0));
        assert_eq!(median(vec![]), None);
    }
}
