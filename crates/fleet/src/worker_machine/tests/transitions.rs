//! The transition table: every event in every kind of state.

use std::fmt::Write;

use super::*;
use crate::{
    FailureKind,
    worker_machine::{
        CheckReason, CheckScope, ConnectFailure, EjectionPermit, LoadFigures, LoadReport,
        PublisherConnections, SideRequest, StreamCoverage, TableAction,
    },
};

/// The whole table. An event that is not listed for a state changes nothing.
const TABLE: &str = include_str!("transitions.txt");

/// Every kind of state, with the way there.
fn situations() -> Vec<(&'static str, MachineFixture)> {
    let after = |mut fixture: MachineFixture, events: &[WorkerEvent]| {
        for event in events {
            fixture.on(event.clone());
        }
        fixture
    };
    let checked = |outcome| {
        let mut fixture = MachineFixture::ready();
        fixture.check(outcome);
        fixture.on(WorkerEvent::Tick);
        fixture
    };
    let mut reading_load = MachineFixture::ready();
    reading_load.tick_after(seconds(5));
    let failed = WorkerEvent::RequestFailed {
        kind: FailureKind::Status,
        ejection: EjectionPermit::Granted,
    };
    let until = Moment::at(seconds(9000));
    vec![
        ("unknown", MachineFixture::new()),
        ("ready", MachineFixture::ready()),
        ("ready, its load being read", reading_load),
        ("warming_up", checked(CheckOutcome::Loading)),
        ("down, its checks fail", checked(CheckOutcome::Failed)),
        ("down, it refuses", checked(CheckOutcome::Refused)),
        (
            "ejected",
            after(MachineFixture::ready(), &[failed, WorkerEvent::Tick]),
        ),
        (
            "leaving",
            after(MachineFixture::ready(), &[WorkerEvent::Remove { until }]),
        ),
        (
            "draining",
            after(
                MachineFixture::ready(),
                &[WorkerEvent::Drain, WorkerEvent::Tick],
            ),
        ),
        (
            "stopped",
            after(MachineFixture::ready(), &[WorkerEvent::Stop]),
        ),
    ]
}

/// Every event, with its name in the table. Checks that end are begun first.
fn events() -> Vec<(&'static str, WorkerEvent)> {
    let failed = |kind| WorkerEvent::RequestFailed {
        kind,
        ejection: EjectionPermit::Granted,
    };
    let last_failed = WorkerEvent::RequestFailed {
        kind: FailureKind::Status,
        ejection: EjectionPermit::Denied,
    };
    let stalled = WorkerEvent::CheckEnded(CheckReport::Completed {
        outcome: CheckOutcome::Failed,
        problem: Some(WorkerProblem::new(ProblemKind::Unusable, "a problem")),
        process: ProcessPace::Stalled,
    });
    let connect = |failure| WorkerEvent::CheckEnded(CheckReport::ConnectFailed(failure));
    let load = |figures| WorkerEvent::LoadRead(LoadReport::Read(figures));
    let until = Moment::at(seconds(8000));
    let mut rules = settings();
    rules.checks.interval = seconds(3);
    use WorkerEvent as Event;
    vec![
        ("tick", Event::Tick),
        ("check passes", check_ended(CheckOutcome::Passed)),
        ("check: loading", check_ended(CheckOutcome::Loading)),
        ("check fails", check_ended(CheckOutcome::Failed)),
        ("check fails after a stall", stalled),
        ("check refused", check_ended(CheckOutcome::Refused)),
        ("check not made", check_ended(CheckOutcome::NotMade)),
        ("connect refused", connect(ConnectFailure::Refused)),
        ("connect fails", connect(ConnectFailure::Other)),
        (
            "check identifies it",
            identified(IdentitySource::Check, true),
        ),
        (
            "check identifies it in part",
            identified(IdentitySource::Check, false),
        ),
        (
            "request identifies it",
            identified(IdentitySource::SideRequest, true),
        ),
        (
            "request identifies it in part",
            identified(IdentitySource::SideRequest, false),
        ),
        ("identity request fails", Event::IdentityFailed),
        ("load read", load(LoadFigures::Present)),
        ("load read, without figures", load(LoadFigures::Absent)),
        ("load not read", Event::LoadRead(LoadReport::Failed)),
        ("salts not probed", Event::SaltProbed(None)),
        ("engine changed", Event::EngineChanged),
        (
            "streams started",
            Event::StreamsStarted(StreamCoverage::Complete),
        ),
        (
            "some streams not started",
            Event::StreamsStarted(StreamCoverage::Incomplete),
        ),
        ("stream ended", Event::StreamEnded),
        (
            "streams same",
            Event::StreamsChanged(PublisherConnections::Same),
        ),
        (
            "stream lost",
            Event::StreamsChanged(PublisherConnections::Lost),
        ),
        (
            "stream connected",
            Event::StreamsChanged(PublisherConnections::Made),
        ),
        ("request fails", failed(FailureKind::Status)),
        ("request fails, no ejection", last_failed),
        ("request refused", failed(FailureKind::Refused)),
        ("request: unavailable", failed(FailureKind::Unavailable)),
        ("request not sent", failed(FailureKind::Local)),
        ("request succeeds", Event::RequestSucceeded),
        ("check requested", Event::CheckRequested),
        ("configured", Event::Configured(PeriodicChecks::Enabled)),
        (
            "configured, no checks",
            Event::Configured(PeriodicChecks::Disabled),
        ),
        ("health rules", Event::HealthRules(rules.into())),
        ("drain", Event::Drain),
        ("resume", Event::Resume),
        ("remove", Event::Remove { until }),
        ("close", Event::Close),
        ("restarted", Event::Restarted),
        ("stop", Event::Stop),
    ]
}

fn table_action(action: TableAction) -> &'static str {
    match action {
        TableAction::ForgetCache => "forget cache",
        TableAction::ClearLoad => "clear load",
        TableAction::Publish => "publish",
        TableAction::Wake => "wake",
    }
}

fn supervisor_action(action: &SupervisorAction) -> &'static str {
    match action {
        SupervisorAction::StartCheck {
            reason: CheckReason::StreamLost,
            ..
        } => "start check of identity, stream lost",
        SupervisorAction::StartCheck { scope, .. } => match scope {
            CheckScope::Connect => "start connect probe",
            CheckScope::Identity => "start check of identity",
            CheckScope::Models => "start check of models",
            CheckScope::Health => "start check of health",
        },
        SupervisorAction::CancelCheck => "cancel check",
        SupervisorAction::StartSideRequest(SideRequest::Load) => "start load",
        SupervisorAction::StartSideRequest(SideRequest::Identity) => "start identity",
        SupervisorAction::StartSideRequest(SideRequest::SaltProbe) => "start salt probe",
        SupervisorAction::CancelSideRequest => "cancel side request",
        SupervisorAction::StartStreams => "start streams",
        SupervisorAction::StopStreams => "stop streams",
        SupervisorAction::ReportVerdict => "report verdict",
        SupervisorAction::WarnCheckNotMade(_) => "warn: check not made",
    }
}

fn wake(fixture: &MachineFixture) -> String {
    let wake = fixture.next_wake();
    wake.map_or("-".to_owned(), |wake| format!("{} ms", wake.as_millis()))
}

/// Feeds one event, and returns its row, or nothing if it changed nothing.
fn row(name: &str, mut fixture: MachineFixture, event: WorkerEvent) -> Option<String> {
    if matches!(event, WorkerEvent::CheckEnded(_)) {
        fixture.on(WorkerEvent::CheckRequested);
        fixture.tick_after(seconds(1));
    }
    let before = (fixture.machine.state(), wake(&fixture));
    let actions = fixture.on(event);
    let after = (fixture.machine.state(), wake(&fixture));
    if before == after && actions == WorkerActions::default() {
        return None;
    }
    let table = actions.table.iter().map(|action| table_action(*action));
    let supervisor = actions.supervisor.iter().map(supervisor_action);
    let actions: Vec<&str> = table.chain(supervisor).collect();
    let (state, wake) = (after.0.as_str(), after.1);
    let row = format!("  {name:<30} {state:<11} {wake:<9} {}", actions.join("; "));
    Some(row.trim_end().to_owned())
}

#[test]
fn every_event_in_every_kind_of_state_does_what_the_table_says() {
    let mut table = String::new();
    for (number, (situation, _)) in situations().iter().enumerate() {
        let _ = writeln!(table, "{situation}");
        for (name, event) in events() {
            let (_, fixture) = situations().swap_remove(number);
            if let Some(row) = row(name, fixture, event) {
                let _ = writeln!(table, "{row}");
            }
        }
    }
    let expected: String = TABLE
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(table == expected, "the machine now does this:\n{table}");
}
