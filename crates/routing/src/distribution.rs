//! Distributions of values: a count per range, and the sum.
//!
//! **Invariant**: every observed value is in exactly one range; the sum of the counts is the number
//! of values.

use parking_lot::Mutex;

/// Counts values by fixed ranges. Shared; its lock is held briefly.
#[derive(Debug)]
pub(crate) struct Distribution {
    /// Inclusive upper ends of the ranges, ascending. After the last there is one more range,
    /// without an end.
    ends: Vec<f64>,
    buckets: Mutex<BucketCounts>,
}

#[derive(Debug)]
struct BucketCounts {
    counts: Vec<u64>,
    sum: f64,
}

/// The values so far.
///
/// ```
/// let counters = routing::KvDecisionCounters::default();
/// let overlaps = counters.overlaps();
/// assert_eq!((overlaps.count(), overlaps.mean()), (0, None));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DistributionSnapshot {
    /// Inclusive upper end of each range, and the number of values in it; ascending. The last one
    /// has no end (`f64::INFINITY`).
    pub ranges: Vec<(f64, u64)>,
    /// Sum of the values.
    pub sum: f64,
}

impl DistributionSnapshot {
    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|(_, count)| count).sum()
    }

    /// Returns their mean; `None` without any.
    pub fn mean(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum / self.count() as f64)
    }
}

impl Distribution {
    pub(crate) fn new(ends: impl IntoIterator<Item = f64>) -> Self {
        let ends: Vec<f64> = ends.into_iter().collect();
        Self {
            buckets: Mutex::new(BucketCounts {
                counts: vec![0; ends.len() + 1],
                sum: 0.0,
            }),
            ends,
        }
    }

    /// Counts a value; NaN is ignored.
    pub(crate) fn observe(&self, value: f64) {
        if value.is_nan() {
            return;
        }
        let range = self.ends.partition_point(|end| *end < value);
        let buckets = &mut *self.buckets.lock();
        buckets.counts[range] += 1;
        buckets.sum += value;
    }

    pub(crate) fn spread(&self) -> DistributionSnapshot {
        let buckets = self.buckets.lock();
        let ends = self.ends.iter().copied().chain([f64::INFINITY]);
        DistributionSnapshot {
            ranges: ends.zip(buckets.counts.iter().copied()).collect(),
            sum: buckets.sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_in_the_bucket_that_ends_with_it_and_none_is_lost() {
        let distribution = Distribution::new([0.5, 1.0]);
        for value in [0.0, 0.5, 0.6, 1.0, 7.0, f64::NAN] {
            distribution.observe(value);
        }
        let spread = distribution.spread();
        assert_eq!(spread.ranges, [(0.5, 2), (1.0, 2), (f64::INFINITY, 1)]);
        assert_eq!((spread.count(), spread.sum), (5, 9.1));
        assert!((spread.mean().expect("a mean") - 1.82).abs() < 1e-9);
    }
}
