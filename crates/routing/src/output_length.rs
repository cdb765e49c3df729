//! The expected length of replies.

/// Expected length of a reply before any was seen, and the upper limit of the expected length.
const PRIOR_TOKENS: f64 = 200.0;
const MOST_TOKENS: f64 = 1024.0;
/// Weight of one more reply in the mean.
const WEIGHT: f64 = 0.01;

/// The recent mean length of replies over the fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputLength {
    mean: f64,
}

impl Default for OutputLength {
    fn default() -> Self {
        Self { mean: PRIOR_TOKENS }
    }
}

impl OutputLength {
    /// Records the length of a complete reply.
    pub(crate) fn observe(&mut self, tokens: u32) {
        self.mean += WEIGHT * (f64::from(tokens).min(MOST_TOKENS) - self.mean);
    }

    /// Returns the mean length of replies.
    pub(crate) fn mean(self) -> f64 {
        self.mean
    }

    /// Takes over the mean of an earlier process.
    pub(crate) fn restore(&mut self, mean: f64) {
        if (0.0..=MOST_TOKENS).contains(&mean) {
            self.mean = mean;
        }
    }

    /// Returns the expected length of a reply with this limit: a limit is not a forecast, as most
    /// replies end before it.
    pub(crate) fn expected(self, at_most: Option<u32>) -> f64 {
        self.mean
            .min(at_most.map_or(f64::INFINITY, f64::from))
            .max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_length_follows_the_replies_and_never_exceeds_the_limit() {
        let mut length = OutputLength::default();
        assert_eq!(length.expected(None), 200.0);
        assert_eq!(length.expected(Some(16)), 16.0);
        assert_eq!(length.expected(Some(100_000)), 200.0);
        assert_eq!(length.expected(Some(0)), 1.0);
        (0..1000).for_each(|_| length.observe(40));
        assert!((length.expected(None) - 40.0).abs() < 1.0);
        (0..10_000).for_each(|_| length.observe(u32::MAX));
        assert!(length.expected(None) <= MOST_TOKENS);
    }
}
