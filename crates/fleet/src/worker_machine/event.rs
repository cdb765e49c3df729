//! Events and actions of the worker state machine.

use std::sync::Arc;

use kv_blocks::Moment;

use super::health::{CheckOutcome, EjectionPermit, HealthSettings};
use crate::{FailureKind, SaltSupport, WorkerProblem};

/// An event or a command for a worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WorkerEvent {
    /// Time has passed. The only event that begins checks, requests, streams and verdicts.
    Tick,
    /// The running check ended.
    CheckEnded(CheckReport),
    /// The worker was identified, by a check or by the side request for missing facts.
    Identified(IdentityReport),
    /// The side request for missing facts failed.
    IdentityFailed,
    /// The side request for the load ended.
    LoadRead(LoadReport),
    /// The salt probe ended; `None`: without an answer.
    SaltProbed(Option<SaltSupport>),
    /// Another engine or release answers at the worker's address, or serves other models.
    EngineChanged,
    /// Wanted streams were started.
    StreamsStarted(StreamCoverage),
    /// A stream's task ended by itself.
    StreamEnded,
    /// The connections to the publishers were read again.
    StreamsChanged(PublisherConnections),
    /// A request failed at the worker.
    RequestFailed {
        kind: FailureKind,
        ejection: EjectionPermit,
    },
    /// A request succeeded at the worker.
    RequestSucceeded,
    /// Someone needs the result of a check before the next one is due.
    CheckRequested,
    /// The worker's own configuration changed: it is identified anew, and used meanwhile as before.
    Configured(PeriodicChecks),
    /// Intervals and thresholds changed.
    HealthRules(Arc<HealthSettings>),
    /// An operator takes the worker out.
    Drain,
    /// An operator takes the worker in again.
    Resume,
    /// The worker is no longer configured, and serves until `until` at most, while no other worker
    /// serves in its place.
    Remove { until: Moment },
    /// The worker is no longer needed.
    Close,
    /// The supervisor panicked and goes on with what is left.
    Restarted,
    /// The supervisor ends.
    Stop,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CheckReport {
    /// The worker was checked.
    Completed {
        outcome: CheckOutcome,
        /// The problem and its remedy; `None` if it passed.
        problem: Option<WorkerProblem>,
        /// Whether this process stood still a short time ago.
        process: ProcessPace,
    },
    /// The connect probe failed.
    ConnectFailed(ConnectFailure),
}

/// Why a connect probe failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectFailure {
    /// Nothing listens there.
    Refused,
    /// Any other reason.
    Other,
}

/// Whether time-outs of this process are evidence about a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessPace {
    Steady,
    /// It stood still a short time ago: an answer may have come meanwhile.
    Stalled,
}

/// Facts of an identified worker that decide about later requests to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdentityReport {
    pub(crate) source: IdentitySource,
    /// Whether every request was answered and nothing was carried over.
    pub(crate) complete: bool,
    /// Whether engines of this kind report their load.
    pub(crate) reports_load: bool,
    /// The load that came with the identity; `None`: not read this time.
    pub(crate) load: Option<LoadFigures>,
}

/// What identified a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdentitySource {
    Check,
    SideRequest,
}

/// The result of reading the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadReport {
    Read(LoadFigures),
    Failed,
}

/// Whether an engine's metrics contained its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadFigures {
    Present,
    Absent,
}

/// Whether all specified streams run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamCoverage {
    Complete,
    /// Some could not be started: another worker may follow the same publisher.
    Incomplete,
}

/// Change of the connections to a worker's publishers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublisherConnections {
    Same,
    /// A connection was lost: the engine died or restarted.
    Lost,
    /// A connection was made.
    Made,
}

/// Whether a ready worker is checked at intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeriodicChecks {
    Enabled,
    Disabled,
}

/// The state of a worker's streams at the time of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamSummary {
    /// Whether some stream is connected now.
    pub(crate) any_connected: bool,
    /// Whether some rank was last seen without its connection.
    pub(crate) any_connecting: bool,
    /// Whether some rank was last seen connecting or fetching its history.
    pub(crate) any_coming_up: bool,
}

/// Actions that follow from one event, each list in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkerActions {
    /// Carried out by the worker table under its lock.
    pub(crate) table: Vec<TableAction>,
    /// Carried out by the supervisor, which alone feeds the events that have some.
    pub(crate) supervisor: Vec<SupervisorAction>,
}

/// An action of the worker table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableAction {
    /// The process has ended, and its cache with it: the index no longer credits it.
    ForgetCache,
    /// The load could not be read for so long that the last figures are outdated.
    ClearLoad,
    /// Updates the view and publishes the snapshot.
    Publish,
    /// Wakes the supervisor: its next wake is earlier than it knows.
    Wake,
}

/// An action of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SupervisorAction {
    StartCheck {
        scope: CheckScope,
        reason: CheckReason,
    },
    CancelCheck,
    StartSideRequest(SideRequest),
    CancelSideRequest,
    /// Starts the specified streams that do not run.
    StartStreams,
    StopStreams,
    ReportVerdict,
    /// Logs, once, that checks cannot be made for this reason.
    WarnCheckNotMade(WorkerProblem),
}

/// What a check covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckScope {
    /// A connect probe; where it succeeds, health and identity.
    Connect,
    /// Health and identity: the facts about the worker may be outdated.
    Identity,
    /// Health and model list: adapters come and go on a running engine.
    Models,
    /// Health alone: a known worker that is not in use.
    Health,
}

/// Why a check is made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckReason {
    Due,
    /// An event stream lost its connection.
    StreamLost,
}

/// A request beside the checks, to a ready worker: slow answers to it delay no check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SideRequest {
    /// The engine's load and counters.
    Load,
    /// The facts that are still missing.
    Identity,
    /// Whether the engine honours salts.
    SaltProbe,
}
