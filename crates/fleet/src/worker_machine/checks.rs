//! When the worker is checked.

use std::time::Duration;

use kv_blocks::Moment;

use super::{
    event::{CheckReason, PeriodicChecks},
    health::{CheckOutcome, NextCheck},
};
use crate::WorkerState;

/// Minimum interval between checks that failed requests cause.
const LEAST_BETWEEN_CHECKS: Duration = Duration::from_millis(200);
/// A worker that stays healthy for this long without its stream has only lost the stream.
const LONGEST_RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The checks of one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckSchedule {
    periodic: PeriodicChecks,
    /// The worker's state when the running check began; `None`: none runs.
    running: Option<WorkerState>,
    /// When the last check ended.
    last: Moment,
    /// Whether a check is requested before the next one is due.
    requested: bool,
    /// Whether a lost stream demands a check at once.
    stream_lost: bool,
    /// Interval of checks while a lost stream is unexplained. An earlier check may have met the
    /// worker while it was ending, when its port still took connections; or it shuts down
    /// gracefully, its publisher first.
    recheck_interval: Option<Duration>,
    last_attempt: LastAttempt,
}

/// Whether the last check could be made; if not, the reason lies with this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastAttempt {
    Made,
    NotMade,
}

impl CheckSchedule {
    pub(super) fn new(periodic: PeriodicChecks) -> Self {
        Self {
            periodic,
            running: None,
            last: Moment::START,
            requested: false,
            stream_lost: false,
            recheck_interval: None,
            last_attempt: LastAttempt::Made,
        }
    }

    pub(super) fn set_periodic(&mut self, periodic: PeriodicChecks) {
        self.periodic = periodic;
    }

    /// Returns when the last check ended.
    pub(super) fn last(&self) -> Moment {
        self.last
    }

    /// Requests a check before the next one is due.
    pub(super) fn request(&mut self) {
        self.requested = true;
    }

    /// Requests a check at once: the worker may have ended.
    pub(super) fn record_lost_stream(&mut self) {
        self.stream_lost = true;
    }

    /// Returns when a check of a worker in this state is due; `next`: the pace of its health.
    /// `None`: never, or one runs.
    pub(super) fn due(&self, state: WorkerState, next: NextCheck) -> Option<Moment> {
        if self.running.is_some() {
            return None;
        }
        if self.stream_lost {
            return Some(self.last);
        }
        let usual = match next {
            NextCheck::CheckIn(_)
                if self.periodic == PeriodicChecks::Disabled && state == WorkerState::Ready =>
            {
                None
            }
            NextCheck::CheckIn(pause) | NextCheck::ConnectIn(pause) => Some(pause),
        };
        let requested = self.requested.then_some(LEAST_BETWEEN_CHECKS);
        let pauses = [usual, requested, self.recheck_interval];
        let pause = pauses.into_iter().flatten().min()?;
        Some(match self.last_attempt {
            LastAttempt::Made => self.last + pause,
            // What this process lacks is not there at once.
            LastAttempt::NotMade => self.last + pause.max(LEAST_BETWEEN_CHECKS),
        })
    }

    /// Begins a check, and returns its reason.
    pub(super) fn begin(&mut self, state: WorkerState) -> CheckReason {
        self.running = Some(state);
        self.requested = false;
        if std::mem::take(&mut self.stream_lost) {
            self.recheck_interval = Some(LEAST_BETWEEN_CHECKS);
            CheckReason::StreamLost
        } else {
            CheckReason::Due
        }
    }

    /// Ends the running check, and returns the worker's state when it began; `None`: none ran.
    pub(super) fn end(&mut self, now: Moment) -> Option<WorkerState> {
        let from = self.running.take()?;
        self.last = now;
        Some(from)
    }

    /// Drops the running check; returns whether there was one.
    pub(super) fn cancel(&mut self) -> bool {
        self.running.take().is_some()
    }

    /// Records whether a check could be made. Returns whether it is the first one that could not.
    pub(super) fn record_attempt(&mut self, outcome: CheckOutcome) -> bool {
        let attempt = if outcome == CheckOutcome::NotMade {
            LastAttempt::NotMade
        } else {
            LastAttempt::Made
        };
        std::mem::replace(&mut self.last_attempt, attempt) == LastAttempt::Made
            && attempt == LastAttempt::NotMade
    }

    /// Adapts the interval that a lost stream set. A worker that answers well is checked less and
    /// less often, until its usual interval is as good; a worker that is explained, because it is
    /// down or its streams are back, has its usual interval at once.
    pub(super) fn adapt_recheck_interval(&mut self, unexplained: bool, outcome: CheckOutcome) {
        let factor = if outcome == CheckOutcome::Passed {
            2
        } else {
            1
        };
        self.recheck_interval = self
            .recheck_interval
            .filter(|_| unexplained)
            .map(|interval| interval * factor)
            .filter(|interval| *interval < LONGEST_RECHECK_INTERVAL);
    }
}
