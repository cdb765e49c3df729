//! Settings of the parity check.

use std::time::Duration;

/// Most samples per target: about 130 KiB; the oldest is dropped first. With more requests than
/// that in a window, the samples cover less time than the window.
pub const MOST_SAMPLES: usize = 2048;

/// Thresholds. `downgrade_ratio >= drift_ratio >= recover_ratio`, each a share of the prompt
/// tokens, 0..1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParitySettings {
    /// How long a sample counts.
    pub window: Duration,
    /// Fewer comparisons than this decide nothing; at most [`MOST_SAMPLES`].
    pub min_joined: usize,
    /// Above this ratio a target is drifting.
    pub drift_ratio: f64,
    /// Above this ratio a target's events are no longer trusted.
    pub downgrade_ratio: f64,
    /// At or below this ratio a drifting target is ok again.
    pub recover_ratio: f64,
}

/// A target whose events are not trusted begins to recover after this many good comparisons, or
/// after `min_joined` if that is less.
const FIRST_SIGN: usize = 10;

impl ParitySettings {
    pub(crate) fn first_sign(&self) -> usize {
        self.min_joined.min(FIRST_SIGN)
    }
}
