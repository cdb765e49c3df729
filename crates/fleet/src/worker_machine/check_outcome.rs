//! The consequences of checks and of routed requests.

use kv_blocks::Moment;

use super::{
    CheckOutcome, CheckReport, ConnectFailure, EjectionPermit, IdentityReport, IdentitySource,
    ProcessPace, StreamSummary, SupervisorAction, TableAction, WorkerActions, WorkerMachine,
};
use crate::{FailureKind, ProblemKind, WorkerProblem, WorkerState};

impl WorkerMachine {
    /// Takes the result of the running check.
    pub(super) fn check_ended(
        &mut self,
        now: Moment,
        streams: StreamSummary,
        report: CheckReport,
        actions: &mut WorkerActions,
    ) {
        let Some(from) = self.checks.end(now) else {
            return;
        };
        let (outcome, problem, process) = match report {
            CheckReport::Completed {
                outcome,
                problem,
                process,
            } => (outcome, problem, process),
            CheckReport::ConnectFailed(failure) => return self.connect_failed(failure),
        };
        if let (true, Some(problem)) = (self.checks.record_attempt(outcome), &problem) {
            let warning = SupervisorAction::WarnCheckNotMade(problem.clone());
            actions.supervisor.push(warning);
        }
        let before = self.state();
        if outcome == CheckOutcome::Failed
            && before == WorkerState::Ready
            && process == ProcessPace::Stalled
        {
            // The check timed out while this process stood still: it is repeated before the worker
            // is blamed.
            self.checks.request();
            return;
        }
        self.apply_outcome(now, outcome, problem);
        let after = self.state();
        let doubtful = match outcome {
            // The worker failed a request during the check: the next process that answers may be
            // another one.
            CheckOutcome::Passed => from == WorkerState::Ready && after == WorkerState::Down,
            CheckOutcome::Refused => true,
            _ => after != WorkerState::Ready,
        };
        if doubtful {
            self.distrust(actions);
        }
        if before != WorkerState::Ready && after == WorkerState::Ready {
            self.verdicts.record_ready(now);
        }
        let unexplained = after == WorkerState::Ready && streams.any_connecting;
        self.checks.adapt_recheck_interval(unexplained, outcome);
        // A port that answers while the checks fail is not probed in a tight loop.
        if [from, after] == [WorkerState::Down; 2] && outcome != CheckOutcome::Passed {
            self.health.record_failed_connect();
        }
    }

    /// Applies the outcome of a check to health and outage.
    fn apply_outcome(
        &mut self,
        now: Moment,
        outcome: CheckOutcome,
        problem: Option<WorkerProblem>,
    ) {
        match outcome {
            CheckOutcome::Refused => drop(self.outage.record_process_end()),
            CheckOutcome::NotMade => {}
            CheckOutcome::Passed | CheckOutcome::Loading | CheckOutcome::Failed => {
                self.outage.refused = false
            }
        }
        let before = self.health.state();
        let after = self.health.record_check(now, outcome);
        if outcome != CheckOutcome::NotMade || before != after {
            self.last_error = problem;
        }
    }

    fn connect_failed(&mut self, failure: ConnectFailure) {
        self.health.record_failed_connect();
        if failure == ConnectFailure::Refused && self.outage.record_process_end() {
            self.last_error = Some(WorkerProblem::refused());
        }
    }

    /// Takes the failure of a routed request.
    pub(super) fn request_failed(
        &mut self,
        now: Moment,
        kind: FailureKind,
        ejection: EjectionPermit,
        actions: &mut WorkerActions,
    ) {
        if kind == FailureKind::Local {
            return;
        }
        let before = self.health.state();
        let after = self.health.request_failed(now, kind, ejection);
        // News also of a worker that is already down: it is no longer a last resort, and its cache
        // is lost.
        let process_ended = kind == FailureKind::Refused && self.outage.record_process_end();
        // A worker that is already down has its own pace of connect probes.
        if after != WorkerState::Down {
            self.checks.request();
        }
        actions.table.push(TableAction::Wake);
        if before != after || process_ended {
            let problem = match after {
                WorkerState::Down => WorkerProblem::refused(),
                _ => WorkerProblem::new(
                    ProblemKind::Requests,
                    format!(
                        "requests fail ({}): look at the engine's log",
                        kind.as_str()
                    ),
                ),
            };
            self.last_error = Some(problem);
        }
    }

    /// Marks the worker's facts as possibly outdated.
    pub(super) fn distrust(&mut self, actions: &mut WorkerActions) {
        self.known = false;
        if self.side_requests.end() {
            actions.supervisor.push(SupervisorAction::CancelSideRequest);
        }
    }

    /// Drops the running check and side request.
    pub(super) fn cancel_requests(&mut self, actions: &mut WorkerActions) {
        if self.checks.cancel() {
            actions.supervisor.push(SupervisorAction::CancelCheck);
        }
        if self.side_requests.end() {
            actions.supervisor.push(SupervisorAction::CancelSideRequest);
        }
    }

    /// Takes the result of an identification.
    pub(super) fn identified(&mut self, now: Moment, report: IdentityReport) {
        if report.source == IdentitySource::SideRequest && !self.side_requests.end() {
            return;
        }
        if !self.known {
            // After an outage, or a doubt about the process: another one may answer now.
            self.side_requests.salt_probes.request(now);
        }
        self.side_requests.record_identity(now, report);
        self.known = true;
    }
}
