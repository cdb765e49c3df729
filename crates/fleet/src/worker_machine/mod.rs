//! The state machine of one worker: its health, outages and admission, and the schedule of its checks.
//!
//! Pure: the time, the state of the worker's streams and the events come in, actions go out. The
//! supervisor feeds ticks and the results of its requests; the worker table feeds the outcomes of
//! routed requests and the decisions of operators, and keeps the machine under its lock, so that a
//! failed request has its effect before the next decision.
//!
//! Not here: sockets, what the worker says about itself (models, block size), and other workers.
//!
//! **Invariant**: checks and side requests run one at a time each; only [`WorkerEvent::Tick`] begins
//! one; the cache of an ended process is forgotten once per outage; after [`WorkerEvent::Stop`] no
//! event has an action.

mod admission;
mod check_outcome;
mod checks;
mod event;
mod health;
mod outage;
mod salt_probes;
mod side_requests;
mod tick;
mod verdicts;

use std::{sync::Arc, time::Duration};

use kv_blocks::Moment;

pub(crate) use self::{
    admission::WorkerAdmission,
    event::{
        CheckReason, CheckReport, CheckScope, ConnectFailure, IdentityReport, IdentitySource,
        LoadFigures, LoadReport, PeriodicChecks, ProcessPace, PublisherConnections, SideRequest,
        StreamCoverage, StreamSummary, SupervisorAction, TableAction, WorkerActions, WorkerEvent,
    },
    health::{CheckOutcome, EjectionPermit, HealthSettings},
};
use self::{
    checks::CheckSchedule, health::WorkerHealth, outage::Outage, side_requests::SideRequests,
    verdicts::VerdictSchedule,
};
use crate::{SaltSupport, WorkerProblem, WorkerState};

/// Pause before a stream that could not be started, or that ended by itself, is started again.
const RETRY_STREAMS: Duration = Duration::from_secs(2);

/// The state machine of one worker.
#[derive(Debug)]
pub(crate) struct WorkerMachine {
    health: WorkerHealth,
    outage: Outage,
    admission: WorkerAdmission,
    /// Whether it has been ready once.
    was_ready: bool,
    /// The last error; `None` after a success.
    last_error: Option<WorkerProblem>,
    /// Whether the worker's facts are still valid: no outage since.
    known: bool,
    checks: CheckSchedule,
    side_requests: SideRequests,
    verdicts: VerdictSchedule,
    /// When specified streams that do not run are started again.
    streams_due: Option<Moment>,
    stopped: bool,
}

/// The part of a machine's state that other parts of the process read in the snapshot.
#[derive(PartialEq)]
struct PublishedState {
    state: WorkerState,
    refused: bool,
    ended: u64,
    last_error: Option<WorkerProblem>,
    salt_support: SaltSupport,
}

impl WorkerMachine {
    /// Creates the machine of a worker before its first check.
    pub(crate) fn new(health: Arc<HealthSettings>, periodic: PeriodicChecks) -> Self {
        Self {
            side_requests: SideRequests::new(health.probes_salts),
            health: WorkerHealth::new(health),
            outage: Outage::default(),
            admission: WorkerAdmission::Open,
            was_ready: false,
            last_error: None,
            known: false,
            checks: CheckSchedule::new(periodic),
            verdicts: VerdictSchedule::default(),
            streams_due: None,
            stopped: false,
        }
    }

    /// Takes one event and returns the actions. `streams`: the worker's streams at this moment.
    pub(crate) fn on(
        &mut self,
        now: Moment,
        streams: StreamSummary,
        event: WorkerEvent,
    ) -> WorkerActions {
        let mut actions = WorkerActions::default();
        if self.stopped {
            return actions;
        }
        let before = self.published();
        self.step(now, streams, event, &mut actions);
        if self.state() == WorkerState::Ready {
            self.was_ready = true;
            self.outage.end();
        }
        if self.outage.ended != before.ended {
            self.side_requests.salt_probes.forget(now);
        }
        if self.outage.take_lost_cache(self.health.state(), streams) {
            actions.table.push(TableAction::ForgetCache);
        }
        let publishes = actions.table.contains(&TableAction::ClearLoad);
        if publishes || self.published() != before {
            actions.table.push(TableAction::Publish);
        }
        actions
    }

    /// Returns the state for requests: that of the health, unless the admission is closed.
    pub(crate) fn state(&self) -> WorkerState {
        match self.admission {
            WorkerAdmission::Open | WorkerAdmission::UntilReplaced(_) => self.health.state(),
            WorkerAdmission::Closed => WorkerState::Draining,
        }
    }

    /// Returns the state of the health alone.
    pub(crate) fn health_state(&self) -> WorkerState {
        self.health.state()
    }

    pub(crate) fn admission(&self) -> WorkerAdmission {
        self.admission
    }

    /// Returns whether it has been ready once.
    pub(crate) fn was_ready(&self) -> bool {
        self.was_ready
    }

    /// Returns whether the last contact was a refused connection.
    pub(crate) fn is_refused(&self) -> bool {
        self.outage.refused
    }

    /// Returns how often its process ended.
    pub(crate) fn ended(&self) -> u64 {
        self.outage.ended
    }

    /// Returns the last error; `None` after a success.
    pub(crate) fn last_error(&self) -> Option<&WorkerProblem> {
        self.last_error.as_ref()
    }

    /// Returns whether its engine was observed to honour salts.
    pub(crate) fn salt_support(&self) -> SaltSupport {
        self.side_requests.salt_probes.support()
    }

    /// Returns when its last check ended.
    pub(crate) fn last_check(&self) -> Moment {
        self.checks.last()
    }

    fn published(&self) -> PublishedState {
        PublishedState {
            state: self.state(),
            refused: self.outage.refused,
            ended: self.outage.ended,
            last_error: self.last_error.clone(),
            salt_support: self.salt_support(),
        }
    }

    fn step(
        &mut self,
        now: Moment,
        streams: StreamSummary,
        event: WorkerEvent,
        actions: &mut WorkerActions,
    ) {
        match event {
            WorkerEvent::Tick => self.tick(now, streams, actions),
            WorkerEvent::CheckEnded(report) => self.check_ended(now, streams, report, actions),
            WorkerEvent::Identified(report) => self.identified(now, report),
            WorkerEvent::IdentityFailed => {
                if self.side_requests.end() {
                    self.side_requests.record_failed_identity(now);
                }
            }
            WorkerEvent::LoadRead(report) => {
                if self.side_requests.end() && self.side_requests.record_read(report) {
                    actions.table.push(TableAction::ClearLoad);
                }
            }
            WorkerEvent::SaltProbed(found) => {
                if self.side_requests.end() {
                    self.side_requests.salt_probes.record(now, found);
                }
            }
            WorkerEvent::EngineChanged => self.side_requests.salt_probes.forget(now),
            WorkerEvent::StreamsStarted(coverage) => {
                let incomplete = coverage == StreamCoverage::Incomplete;
                self.streams_due = incomplete.then(|| now + RETRY_STREAMS);
            }
            WorkerEvent::StreamEnded => self.streams_due = Some(now + RETRY_STREAMS),
            WorkerEvent::StreamsChanged(change) => self.streams_changed(change),
            WorkerEvent::RequestFailed { kind, ejection } => {
                self.request_failed(now, kind, ejection, actions)
            }
            WorkerEvent::RequestSucceeded => self.health.request_succeeded(),
            WorkerEvent::CheckRequested => {
                self.checks.request();
                actions.table.push(TableAction::Wake);
            }
            WorkerEvent::Configured(periodic) => {
                self.checks.set_periodic(periodic);
                self.cancel_requests(actions);
                self.known = false;
                self.checks.request();
            }
            WorkerEvent::HealthRules(settings) => {
                let probes = &mut self.side_requests.salt_probes;
                if probes.set_enabled(settings.probes_salts) {
                    actions.table.push(TableAction::Wake);
                }
                self.health.reconfigure(settings);
            }
            WorkerEvent::Drain | WorkerEvent::Close => self.admission = WorkerAdmission::Closed,
            WorkerEvent::Resume => self.admission = WorkerAdmission::Open,
            WorkerEvent::Remove { until } => self.admission.begin_removal(until),
            WorkerEvent::Restarted => {
                self.cancel_requests(actions);
                self.known = false;
                self.streams_due = Some(now);
            }
            WorkerEvent::Stop => {
                self.cancel_requests(actions);
                actions.supervisor.push(SupervisorAction::StopStreams);
                self.stopped = true;
            }
        }
    }

    fn streams_changed(&mut self, change: PublisherConnections) {
        match change {
            PublisherConnections::Same => {}
            PublisherConnections::Made => self.health.restart_connect_probes(),
            // A lost connection is a death or a restart: the worker is checked at once.
            PublisherConnections::Lost if self.state() == WorkerState::Ready => {
                self.checks.record_lost_stream()
            }
            PublisherConnections::Lost => {}
        }
    }
}

#[cfg(test)]
mod tests;
