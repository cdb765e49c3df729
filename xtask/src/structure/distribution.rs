//! Medians, percentiles and shares of counts.

/// Sorted counts.
#[derive(Debug)]
pub(super) struct Distribution(Vec<usize>);

impl Distribution {
    pub(super) fn new(counts: impl Iterator<Item = usize>) -> Self {
        let mut counts: Vec<_> = counts.collect();
        counts.sort_unstable();
        Self(counts)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the value that `percent` of the counts do not exceed, 0 without counts.
    pub(super) fn percentile(&self, percent: usize) -> usize {
        let index = self.0.len() * percent / 100;
        let last = self.0.len().saturating_sub(1);
        self.0.get(index.min(last)).copied().unwrap_or_default()
    }

    pub(super) fn max(&self) -> usize {
        self.percentile(100)
    }

    pub(super) fn count_above(&self, limit: usize) -> usize {
        self.0.len() - self.0.partition_point(|count| *count <= limit)
    }
}

/// Returns `part` for each `unit` of `whole`, 0 of nothing.
pub(super) fn rate(part: usize, whole: usize, unit: u32) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    as_f64(part) * f64::from(unit) / as_f64(whole)
}

fn as_f64(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_list() {
        let counts = Distribution::new((1..=10).rev());
        assert_eq!(
            [50, 90, 99].map(|percent| counts.percentile(percent)),
            [6, 10, 10]
        );
        assert_eq!((counts.max(), counts.count_above(8)), (10, 2));
        assert_eq!(Distribution::new([].into_iter()).max(), 0);
    }
}
