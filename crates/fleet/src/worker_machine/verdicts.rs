//! When a verdict on the worker is reported: its first one, and one per change of state.

use std::time::Duration;

use kv_blocks::Moment;

use super::event::StreamSummary;
use crate::WorkerState;

/// Time that a ready worker's verdict waits for its streams to connect.
const STREAMS_COME_UP: Duration = Duration::from_secs(1);

/// The verdicts reported so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VerdictSchedule {
    /// The state of the last verdict.
    reported: Option<WorkerState>,
    /// When the worker last became ready.
    ready_since: Moment,
}

impl VerdictSchedule {
    pub(super) fn record_ready(&mut self, now: Moment) {
        self.ready_since = now;
    }

    /// Returns when the verdict on this state is due; `None`: it was reported, or there is none.
    pub(super) fn due(&self, state: WorkerState, streams: StreamSummary) -> Option<Moment> {
        if state == WorkerState::Unknown || self.reported == Some(state) {
            None
        } else if state == WorkerState::Ready && streams.any_coming_up {
            Some(self.ready_since + STREAMS_COME_UP)
        } else {
            Some(Moment::START)
        }
    }

    /// Records that the verdict on this state is reported.
    pub(super) fn record_report(&mut self, state: WorkerState) {
        self.reported = Some(state);
    }
}
