//! How predictions are judged.

use std::time::Duration;

/// Section `parity`. A ratio is the difference between predicted and actual cached tokens, per prompt token;
/// `downgrade_ratio >= drift_ratio >= recover_ratio`.
#[derive(Clone, Debug, PartialEq)]
pub struct ParitySection {
    /// How long a request counts.
    pub window: Duration,
    /// Fewer requests than this decide nothing.
    pub min_joined: usize,
    /// Above it a worker is reported.
    pub drift_ratio: f64,
    /// Above it a worker's events are not believed.
    pub downgrade_ratio: f64,
    /// At or below it a worker is well again.
    pub recover_ratio: f64,
}
