//! Settings of the parity check.

use std::time::Duration;

use settings::kinds::int;

/// Most samples per target: about 130 KiB; the oldest is dropped first. With more requests than
/// that in a window, the samples cover less time than the window.
pub const MOST_SAMPLES: usize = 2048;

settings::section! {
    /// Section `parity`. A ratio is the difference between predicted and actual cached tokens, per
    /// prompt token; `downgrade_ratio >= drift_ratio >= recover_ratio`, which the configuration
    /// checks.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct ParitySettings {
        /// Time for which a request counts.
        window: Duration = "600s", restart;
        /// Number of requests below which no verdict is made.
        min_joined: usize = "50" in int(1, MOST_SAMPLES as u64), restart;
        /// Difference between predicted and actual cached tokens, per prompt token, above which a
        /// worker is reported.
        drift_ratio: f64 = "0.05", restart;
        /// Difference above which a worker's cache is predicted from our own decisions.
        downgrade_ratio: f64 = "0.2", restart;
        /// Difference at or below which a worker is trusted again.
        recover_ratio: f64 = "0.02", restart;
    }
}

/// A target whose events are not trusted begins to recover after this many good comparisons, or
/// after `min_joined` if that is less.
const FIRST_SIGN: usize = 10;

impl ParitySettings {
    pub(crate) fn first_sign(&self) -> usize {
        self.min_joined.min(FIRST_SIGN)
    }
}
