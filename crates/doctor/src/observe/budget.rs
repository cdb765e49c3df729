//! How long an observation may take.

use std::time::Duration;

use tokio::time::Instant;

/// Time limits of an observation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    until: Instant,
    /// Limit for one request or reply.
    pub(crate) request: Duration,
    /// Limit for the arrival of a batch of events.
    pub(crate) events: Duration,
    /// Limit for the first batch: late events are a different finding than none.
    pub(crate) late_events: Duration,
}

impl Budget {
    pub(crate) fn of(whole: Duration) -> Self {
        Self {
            until: Instant::now() + whole,
            request: whole / 3,
            events: whole / 6,
            late_events: whole * 2 / 5,
        }
    }

    /// Returns whether too little time is left for another query.
    pub(crate) fn is_spent(&self) -> bool {
        self.left() < self.request / 10
    }

    /// Gives back the part of `took` beyond one query's time, for work that queries no worker.
    pub(super) fn give_back(&mut self, took: Duration) {
        self.until += took.saturating_sub(self.request);
    }

    /// Returns the remaining time.
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Returns the remaining time, at most `most`.
    pub(crate) fn at_most(&self, most: Duration) -> Duration {
        self.left().min(most)
    }
}

/// Reason given for a skipped query.
pub(super) const NO_TIME: &str = "no time was left: allow more with --timeout";
