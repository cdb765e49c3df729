//! Section `parity`: evaluation of predictions.

use std::time::Duration;

/// Section `parity`. A ratio is the difference between predicted and actual cached tokens, per
/// prompt token; `downgrade_ratio >= drift_ratio >= recover_ratio`.
#[derive(Clone, Debug, PartialEq)]
pub struct ParitySection {
    /// Time for which a request counts.
    pub window: Duration,
    /// Fewest requests for a verdict.
    pub min_joined: usize,
    /// Ratio above which a worker is reported.
    pub drift_ratio: f64,
    /// Ratio above which a worker's events lose trust.
    pub downgrade_ratio: f64,
    /// Ratio at or below which a worker regains trust.
    pub recover_ratio: f64,
}
