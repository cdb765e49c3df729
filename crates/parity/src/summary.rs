//! What the window of one target, or of several, says.

use std::time::Duration;

use kv_blocks::Moment;

use crate::{ParityState, comparison::ratio};

/// Where the actual numbers come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActualSource {
    /// The replies themselves.
    #[default]
    Usage,
    /// The engine's own counters: fewer than a tenth of the replies tell.
    EngineMetrics,
}

impl ActualSource {
    /// The word used in replies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::EngineMetrics => "engine_metrics",
        }
    }
}

/// The window's requests, not yet put in figures: cheap to take while the book is locked.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub(crate) requests: u64,
    pub(crate) source: ActualSource,
    /// Predicted less actual tokens of each request that could be joined.
    pub(crate) drifts: Vec<i64>,
    pub(crate) predicted_tokens: u64,
    pub(crate) actual_tokens: u64,
    pub(crate) state: ParityState,
    pub(crate) since: Moment,
    pub(crate) reason: Option<String>,
    /// End of the latest request that left the window before its time.
    pub(crate) made_room: Option<Moment>,
}

/// The figures.
#[derive(Clone, Debug, PartialEq)]
pub struct ParityReport {
    /// Requests in the window.
    pub requests: u64,
    /// Those of them whose reply told its cached tokens.
    pub joined: u64,
    /// Where the actual tokens come from.
    pub source: ActualSource,
    /// Joined requests that were predicted to the token.
    pub exact: u64,
    /// The same as a share of the joined ones, 0..1; `None` without any.
    pub exact_ratio: Option<f64>,
    /// Cached tokens predicted, of what could be compared.
    pub predicted_tokens: u64,
    /// Cached tokens that the engine told, of the same.
    pub actual_tokens: u64,
    /// Median of predicted less actual tokens over the joined requests; `None` without any.
    pub drift_tokens_p50: Option<i64>,
    /// The value that 99 % of them do not exceed.
    pub drift_tokens_p99: Option<i64>,
    /// Share of the joined requests for which too much was predicted, 0..1; `None` without any.
    pub over_ratio: Option<f64>,
    /// How the predictions fare.
    pub state: ParityState,
    /// Since when.
    pub since: Moment,
    /// Why, where there is something to say.
    pub reason: Option<String>,
    /// End of the latest request that left the window before its time, to make room: nothing older is in the figures.
    pub made_room: Option<Moment>,
}

impl ParityReport {
    /// How far back the figures reach: the window, or less where there were too many requests to keep.
    pub fn covered(&self, now: Moment, window: Duration) -> Duration {
        self.made_room
            .map_or(window, |at| now.since(at).min(window))
    }
}

impl Summary {
    /// Adds another target's. The state is the worse one's, with its time and reason; of equal ones the one that is in it
    /// longer.
    pub fn absorb(&mut self, other: Self) {
        let told = (self.drifts.len() + other.drifts.len()) as u64;
        self.requests += other.requests;
        self.source = if told * 10 >= self.requests {
            ActualSource::Usage
        } else {
            ActualSource::EngineMetrics
        };
        self.drifts.extend(other.drifts);
        self.predicted_tokens += other.predicted_tokens;
        self.actual_tokens += other.actual_tokens;
        self.made_room = self.made_room.max(other.made_room);
        let worse = self.state.worse(other.state) != self.state;
        if worse || (self.state == other.state && other.since < self.since) {
            (self.state, self.since, self.reason) = (other.state, other.since, other.reason);
        }
    }

    /// The figures of it.
    pub fn report(mut self) -> ParityReport {
        self.drifts.sort_unstable();
        let drifts = &self.drifts;
        let joined = drifts.len() as u64;
        let over = (drifts.len() - drifts.partition_point(|drift| *drift <= 0)) as u64;
        let exact = joined - over - drifts.partition_point(|drift| *drift < 0) as u64;
        // The smallest value that at least this percentage of them do not exceed.
        let percentile = |percent: usize| {
            drifts
                .get((drifts.len() * percent).div_ceil(100).max(1) - 1)
                .copied()
        };
        ParityReport {
            requests: self.requests,
            joined,
            source: self.source,
            exact,
            exact_ratio: (joined > 0).then(|| ratio(exact, joined)),
            predicted_tokens: self.predicted_tokens,
            actual_tokens: self.actual_tokens,
            drift_tokens_p50: percentile(50),
            drift_tokens_p99: percentile(99),
            over_ratio: (joined > 0).then(|| ratio(over, joined)),
            state: self.state,
            since: self.since,
            reason: self.reason,
            made_room: self.made_room,
        }
    }
}
