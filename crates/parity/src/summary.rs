//! Figures over the windows of one or more targets.

use std::time::Duration;

use api::ParityCounts;
use kv_blocks::Moment;

use crate::{ParityVerdict, comparison::ratio};

/// The source of the actual numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ActualSource {
    /// The replies themselves.
    #[default]
    Usage,
    /// The engine's own counters, because fewer than a tenth of the replies report cached tokens.
    EngineMetrics,
}

impl ActualSource {
    /// Returns the name used in replies.
    fn as_str(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::EngineMetrics => "engine_metrics",
        }
    }
}

/// The window's requests, before figures are computed: cheap to copy while the tracker is locked.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub(crate) requests: u64,
    pub(crate) source: ActualSource,
    /// Predicted less actual tokens of each joined request.
    pub(crate) drifts: Vec<i64>,
    pub(crate) predicted_tokens: u64,
    pub(crate) actual_tokens: u64,
    /// The state of the predictions.
    pub verdict: ParityVerdict,
    /// End of the latest request that left the window early because the window was full: the
    /// figures cover nothing older.
    pub(crate) last_evicted: Option<Moment>,
}

impl Summary {
    /// Adds another target's figures.
    pub fn absorb(&mut self, other: Self) {
        let reporting = (self.drifts.len() + other.drifts.len()) as u64;
        self.requests += other.requests;
        self.source = if reporting * 10 >= self.requests {
            ActualSource::Usage
        } else {
            ActualSource::EngineMetrics
        };
        self.drifts.extend(other.drifts);
        self.predicted_tokens += other.predicted_tokens;
        self.actual_tokens += other.actual_tokens;
        self.last_evicted = self.last_evicted.max(other.last_evicted);
        self.verdict.absorb(other.verdict);
    }

    /// Returns the time that the figures cover: the window, or less if there were too many requests
    /// to retain.
    pub fn covered(&self, now: Moment, window: Duration) -> Duration {
        self.last_evicted
            .map_or(window, |at| now.since(at).min(window))
    }

    /// Computes the figures.
    pub fn counts(mut self) -> ParityCounts {
        self.drifts.sort_unstable();
        let drifts = &self.drifts;
        let joined = drifts.len() as u64;
        let over = (drifts.len() - drifts.partition_point(|drift| *drift <= 0)) as u64;
        let exact = joined - over - drifts.partition_point(|drift| *drift < 0) as u64;
        // The smallest value that at least this percentage of the drifts do not exceed.
        let percentile = |percent: usize| {
            drifts
                .get((drifts.len() * percent).div_ceil(100).max(1) - 1)
                .copied()
        };
        ParityCounts {
            requests: self.requests,
            joined,
            source: self.source.as_str().into(),
            exact,
            exact_ratio: (joined > 0).then(|| ratio(exact, joined)),
            predicted_tokens: self.predicted_tokens,
            actual_tokens: self.actual_tokens,
            drift_tokens_p50: percentile(50),
            drift_tokens_p99: percentile(99),
            over_ratio: (joined > 0).then(|| ratio(over, joined)),
        }
    }
}
