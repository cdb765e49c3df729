//! What is due: the only part of the machine that begins checks, requests, streams and verdicts.

use kv_blocks::Moment;

use super::{
    CheckReason, CheckScope, StreamSummary, SupervisorAction, WorkerActions, WorkerMachine,
    health::NextCheck,
};
use crate::WorkerState;

impl WorkerMachine {
    /// Returns when the next [`super::WorkerEvent::Tick`] has something to do; `None`: not before another
    /// event.
    pub(crate) fn next_wake(&self, now: Moment, streams: StreamSummary) -> Option<Moment> {
        if self.stopped {
            return None;
        }
        let due = [
            self.streams_due,
            self.verdicts.due(self.state(), streams),
            self.checks.due(self.state(), self.health.next(now)),
            self.side_request_due(),
        ];
        due.into_iter().flatten().min()
    }

    /// Begins everything that is due.
    pub(super) fn tick(
        &mut self,
        now: Moment,
        streams: StreamSummary,
        actions: &mut WorkerActions,
    ) {
        let (state, is_due) = (self.state(), |due: Option<Moment>| {
            due.is_some_and(|at| at <= now)
        });
        if is_due(self.streams_due) {
            self.streams_due = None;
            actions.supervisor.push(SupervisorAction::StartStreams);
        }
        if is_due(self.verdicts.due(state, streams)) {
            self.verdicts.record_report(state);
            actions.supervisor.push(SupervisorAction::ReportVerdict);
        }
        let next = self.health.next(now);
        if is_due(self.checks.due(state, next)) {
            let reason = self.checks.begin(state);
            if reason == CheckReason::StreamLost {
                self.distrust(actions);
            }
            let scope = match next {
                NextCheck::ConnectIn(_) => CheckScope::Connect,
                NextCheck::CheckIn(_) if !self.known => CheckScope::Identity,
                NextCheck::CheckIn(_) if state == WorkerState::Ready => CheckScope::Models,
                NextCheck::CheckIn(_) => CheckScope::Health,
            };
            actions
                .supervisor
                .push(SupervisorAction::StartCheck { scope, reason });
        }
        if is_due(self.side_request_due()) {
            let request = self.side_requests.begin(now);
            actions
                .supervisor
                .push(SupervisorAction::StartSideRequest(request));
        }
    }

    /// Returns when the next side request is due: only a ready and known worker gets some.
    fn side_request_due(&self) -> Option<Moment> {
        if self.known && self.state() == WorkerState::Ready {
            self.side_requests.due()
        } else {
            None
        }
    }
}
