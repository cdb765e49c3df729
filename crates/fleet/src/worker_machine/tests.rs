//! The machine as a whole: its transition table, its schedule, and what holds for every sequence of
//! events.

mod properties;
mod schedule;
mod transitions;

use std::{num::NonZeroU32, time::Duration};

use kv_blocks::Moment;

use super::{
    CheckOutcome, CheckReport, HealthSettings, IdentityReport, IdentitySource, PeriodicChecks,
    ProcessPace, StreamSummary, SupervisorAction, WorkerActions, WorkerEvent, WorkerMachine,
};
use crate::{ProblemKind, WorkerProblem, WorkerState};

/// One failure decides; a return takes two checks.
fn settings() -> HealthSettings {
    let mut settings = HealthSettings::default();
    settings.checks.unhealthy_threshold = NonZeroU32::MIN;
    settings.breaker.consecutive_failures = NonZeroU32::MIN;
    settings.breaker.ejection = Duration::from_secs(20);
    settings
}

const NO_STREAMS: StreamSummary = StreamSummary {
    any_connected: false,
    any_connecting: false,
    any_coming_up: false,
};
const LIVE: StreamSummary = StreamSummary {
    any_connected: true,
    ..NO_STREAMS
};
const CONNECTING: StreamSummary = StreamSummary {
    any_connecting: true,
    any_coming_up: true,
    ..NO_STREAMS
};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn check_ended(outcome: CheckOutcome) -> WorkerEvent {
    WorkerEvent::CheckEnded(CheckReport::Completed {
        outcome,
        problem: (outcome != CheckOutcome::Passed)
            .then(|| WorkerProblem::new(ProblemKind::Unusable, "a problem")),
        process: ProcessPace::Steady,
    })
}

fn identified(source: IdentitySource, complete: bool) -> WorkerEvent {
    WorkerEvent::Identified(IdentityReport {
        source,
        complete,
        reports_load: true,
        load: None,
    })
}

/// A machine, the time, and its streams.
struct MachineFixture {
    machine: WorkerMachine,
    now: Moment,
    streams: StreamSummary,
}

impl MachineFixture {
    /// A worker before its first check.
    fn new() -> Self {
        Self {
            machine: WorkerMachine::new(settings().into(), PeriodicChecks::Enabled),
            now: Moment::at(seconds(1000)),
            streams: NO_STREAMS,
        }
    }

    /// A ready, identified worker whose verdict was reported and whose load was just read.
    fn ready() -> Self {
        let mut fixture = Self::new();
        fixture.on(WorkerEvent::Tick);
        fixture.on(identified(IdentitySource::Check, true));
        fixture.on(check_ended(CheckOutcome::Passed));
        fixture.on(WorkerEvent::Tick);
        fixture.on(WorkerEvent::LoadRead(super::LoadReport::Read(
            super::LoadFigures::Present,
        )));
        assert_eq!(fixture.machine.state(), WorkerState::Ready);
        fixture
    }

    fn on(&mut self, event: WorkerEvent) -> WorkerActions {
        self.machine.on(self.now, self.streams, event)
    }

    /// Lets time pass, and ticks.
    fn tick_after(&mut self, pause: Duration) -> Vec<SupervisorAction> {
        self.now = self.now + pause;
        self.on(WorkerEvent::Tick).supervisor
    }

    /// Makes a check with this result, whether or not one is due.
    fn check(&mut self, outcome: CheckOutcome) -> WorkerActions {
        self.on(WorkerEvent::CheckRequested);
        self.tick_after(seconds(1));
        self.on(check_ended(outcome))
    }

    fn next_wake(&self) -> Option<Duration> {
        let wake = self.machine.next_wake(self.now, self.streams)?;
        Some(wake.since(self.now))
    }
}
