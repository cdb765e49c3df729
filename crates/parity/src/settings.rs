//! What decides a state.

use std::time::Duration;

/// Samples kept per target, the oldest going first: about 130 KiB. With more requests than that in a window, the window
/// is as long as they lasted.
pub const MOST_SAMPLES: usize = 2048;

/// Thresholds. `downgrade_ratio >= drift_ratio >= recover_ratio`, each a share of the prompt tokens, 0..1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParitySettings {
    /// How long a sample counts.
    pub window: Duration,
    /// Fewer comparisons than this decide nothing; at most [`MOST_SAMPLES`].
    pub min_joined: usize,
    /// Above it a target drifts.
    pub drift_ratio: f64,
    /// Above it a target's events are not believed any more.
    pub downgrade_ratio: f64,
    /// At or below it a target that drifted is well again.
    pub recover_ratio: f64,
}

/// A target without events that are believed begins to recover after this many good comparisons, or after `min_joined`
/// where that is less.
const FIRST_SIGN: usize = 10;

impl ParitySettings {
    pub(crate) fn first_sign(&self) -> usize {
        self.min_joined.min(FIRST_SIGN)
    }
}
