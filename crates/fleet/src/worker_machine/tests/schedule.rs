//! What is due when.

use contract_id::contract;

use super::*;
use crate::{
    FailureKind, SaltSupport,
    worker_machine::{
        CheckReason, CheckScope, EjectionPermit, LoadFigures, LoadReport, PublisherConnections,
        SideRequest, StreamCoverage, TableAction,
    },
};

fn check_of(scope: CheckScope) -> SupervisorAction {
    let reason = CheckReason::Due;
    SupervisorAction::StartCheck { scope, reason }
}

const READ_LOAD: SupervisorAction = SupervisorAction::StartSideRequest(SideRequest::Load);
const PROBE_SALTS: SupervisorAction = SupervisorAction::StartSideRequest(SideRequest::SaltProbe);
const IDENTIFY: SupervisorAction = SupervisorAction::StartSideRequest(SideRequest::Identity);

fn load(report: LoadReport) -> WorkerEvent {
    WorkerEvent::LoadRead(report)
}

#[test]
fn a_new_worker_is_checked_at_once_and_its_verdict_follows() {
    let mut fixture = MachineFixture::new();
    assert_eq!(
        fixture.tick_after(seconds(0)),
        [check_of(CheckScope::Identity)]
    );
    assert_eq!(
        fixture.next_wake(),
        None,
        "the check takes as long as it takes"
    );
    fixture.on(check_ended(CheckOutcome::Refused));
    assert_eq!(
        fixture.tick_after(seconds(0)),
        [SupervisorAction::ReportVerdict]
    );
    assert_eq!(
        fixture.next_wake(),
        Some(settings().checks.recovery_interval)
    );
}

#[test]
fn a_ready_worker_is_checked_at_its_interval_and_not_at_all_without_periodic_checks() {
    let mut fixture = MachineFixture::ready();
    fixture.on(load(LoadReport::Read(LoadFigures::Absent)));
    assert!(
        !fixture
            .tick_after(seconds(29))
            .contains(&check_of(CheckScope::Models))
    );
    assert!(
        fixture
            .tick_after(seconds(1))
            .contains(&check_of(CheckScope::Models))
    );
    let mut fixture = MachineFixture::ready();
    fixture.on(WorkerEvent::Configured(PeriodicChecks::Disabled));
    assert_eq!(
        fixture.tick_after(seconds(1)),
        [check_of(CheckScope::Identity)],
        "a new configuration is applied in any case"
    );
    fixture.on(check_ended(CheckOutcome::Passed));
    assert_eq!(fixture.next_wake(), None);
    fixture.on(WorkerEvent::CheckRequested);
    assert!(
        fixture.next_wake().is_some(),
        "and requested checks are made"
    );
}

#[test]
fn a_requested_check_keeps_a_distance_to_the_one_before() {
    let mut fixture = MachineFixture::ready();
    let requested = fixture.on(WorkerEvent::CheckRequested);
    assert_eq!(requested.table, [TableAction::Wake]);
    assert_eq!(fixture.tick_after(Duration::from_millis(199)), []);
    assert_eq!(
        fixture.tick_after(Duration::from_millis(1)),
        [check_of(CheckScope::Models)]
    );
    // A request during a check causes one more.
    fixture.on(WorkerEvent::CheckRequested);
    fixture.on(check_ended(CheckOutcome::Passed));
    assert_eq!(fixture.next_wake(), Some(Duration::from_millis(200)));
}

#[test]
fn a_check_after_a_stall_of_this_process_is_repeated_before_the_worker_is_blamed() {
    let mut fixture = MachineFixture::ready();
    let timed_out = |process| {
        WorkerEvent::CheckEnded(CheckReport::Completed {
            outcome: CheckOutcome::Failed,
            problem: Some(WorkerProblem::new(ProblemKind::TimedOut, "did not answer")),
            process,
        })
    };
    fixture.tick_after(seconds(30));
    assert_eq!(
        fixture.on(timed_out(ProcessPace::Stalled)),
        WorkerActions::default()
    );
    assert_eq!(fixture.machine.state(), WorkerState::Ready);
    assert_eq!(fixture.next_wake(), Some(Duration::from_millis(200)));
    fixture.tick_after(seconds(1));
    fixture.on(timed_out(ProcessPace::Steady));
    assert_eq!(fixture.machine.state(), WorkerState::Down);
}

#[test]
fn a_lost_stream_is_looked_into_at_once_and_then_less_and_less_often() {
    let mut fixture = MachineFixture::ready();
    fixture.streams = CONNECTING;
    fixture.on(WorkerEvent::StreamsChanged(PublisherConnections::Lost));
    let lost = SupervisorAction::StartCheck {
        scope: CheckScope::Identity,
        reason: CheckReason::StreamLost,
    };
    assert_eq!(fixture.tick_after(seconds(0)), [lost]);
    let mut pauses = Vec::new();
    for _ in 0..5 {
        fixture.on(identified(IdentitySource::Check, true));
        fixture.on(check_ended(CheckOutcome::Passed));
        fixture.on(load(LoadReport::Read(LoadFigures::Present)));
        let before = fixture.now;
        let is_check =
            |action: &SupervisorAction| matches!(action, SupervisorAction::StartCheck { .. });
        while !fixture
            .tick_after(Duration::from_millis(100))
            .iter()
            .any(is_check)
        {}
        pauses.push(fixture.now.since(before).as_millis());
    }
    assert_eq!(pauses, [400, 800, 1600, 3200, 30_000]);
}

#[test]
fn a_stream_that_is_back_ends_the_hurry() {
    let mut fixture = MachineFixture::ready();
    fixture.streams = CONNECTING;
    fixture.on(WorkerEvent::StreamsChanged(PublisherConnections::Lost));
    fixture.tick_after(seconds(0));
    fixture.streams = LIVE;
    fixture.on(check_ended(CheckOutcome::Passed));
    assert_eq!(fixture.next_wake(), Some(settings().checks.interval));
}

#[test]
fn a_lost_stream_of_a_worker_that_is_not_in_use_says_nothing() {
    let mut fixture = MachineFixture::new();
    fixture.check(CheckOutcome::Loading);
    let before = fixture.next_wake();
    fixture.on(WorkerEvent::StreamsChanged(PublisherConnections::Lost));
    assert_eq!(fixture.next_wake(), before);
}

#[test]
fn connect_probes_slow_down_and_a_connected_stream_hurries_them() {
    let mut fixture = MachineFixture::ready();
    fixture.check(CheckOutcome::Refused);
    fixture.on(WorkerEvent::Tick);
    let refused = WorkerEvent::CheckEnded(CheckReport::ConnectFailed(
        super::super::ConnectFailure::Refused,
    ));
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let pause = fixture.next_wake().expect("the next probe");
        pauses.push(pause.as_millis());
        assert_eq!(fixture.tick_after(pause), [check_of(CheckScope::Connect)]);
        fixture.on(refused.clone());
    }
    assert_eq!(pauses, [250, 500, 1000, 2000, 2000]);
    fixture.on(WorkerEvent::StreamsChanged(PublisherConnections::Made));
    assert_eq!(fixture.next_wake(), Some(seconds(0)));
}

#[test]
fn the_verdict_on_a_ready_worker_waits_for_its_streams_and_a_second_at_most() {
    let mut fixture = MachineFixture::new();
    fixture.streams = CONNECTING;
    fixture.tick_after(seconds(0));
    fixture.on(check_ended(CheckOutcome::Passed));
    assert_eq!(fixture.tick_after(seconds(0)), []);
    assert_eq!(fixture.next_wake(), Some(seconds(1)));
    fixture.streams = LIVE;
    assert_eq!(
        fixture.tick_after(seconds(0)),
        [SupervisorAction::ReportVerdict]
    );
    assert_eq!(fixture.tick_after(seconds(2)), [], "once");

    let mut fixture = MachineFixture::new();
    fixture.streams = CONNECTING;
    fixture.tick_after(seconds(0));
    fixture.on(check_ended(CheckOutcome::Passed));
    assert_eq!(
        fixture.tick_after(seconds(1)),
        [SupervisorAction::ReportVerdict]
    );
}

#[test]
fn the_load_is_read_every_five_seconds_and_forgotten_after_two_failures() {
    let mut fixture = MachineFixture::ready();
    assert_eq!(fixture.next_wake(), Some(seconds(5)));
    assert_eq!(fixture.tick_after(seconds(5)), [READ_LOAD]);
    assert_eq!(
        fixture.on(load(LoadReport::Failed)),
        WorkerActions::default()
    );
    assert_eq!(fixture.tick_after(seconds(5)), [READ_LOAD]);
    let cleared = fixture.on(load(LoadReport::Failed));
    assert_eq!(
        cleared.table,
        [TableAction::ClearLoad, TableAction::Publish]
    );
    assert_eq!(fixture.tick_after(seconds(5)), [READ_LOAD], "it is read on");
    assert_eq!(
        fixture.on(load(LoadReport::Failed)),
        WorkerActions::default()
    );
}

#[test]
fn an_engine_without_a_load_is_not_asked_for_it() {
    let mut fixture = MachineFixture::new();
    fixture.tick_after(seconds(0));
    fixture.on(WorkerEvent::Identified(IdentityReport {
        source: IdentitySource::Check,
        complete: true,
        reports_load: false,
        load: Some(LoadFigures::Absent),
    }));
    fixture.on(check_ended(CheckOutcome::Passed));
    fixture.on(WorkerEvent::Tick);
    assert_eq!(fixture.next_wake(), Some(settings().checks.interval));
}

#[test]
fn missing_facts_are_requested_once_the_worker_is_in_use_and_again_after_a_pause() {
    let mut fixture = MachineFixture::new();
    fixture.tick_after(seconds(0));
    fixture.on(identified(IdentitySource::Check, false));
    assert_eq!(fixture.tick_after(seconds(0)), [], "not before it is ready");
    fixture.on(check_ended(CheckOutcome::Passed));
    assert_eq!(
        fixture.tick_after(seconds(0)),
        [SupervisorAction::ReportVerdict, IDENTIFY]
    );
    for answer in [
        WorkerEvent::IdentityFailed,
        identified(IdentitySource::SideRequest, false),
    ] {
        fixture.on(answer);
        assert_eq!(fixture.tick_after(seconds(4)), [READ_LOAD]);
        fixture.on(load(LoadReport::Read(LoadFigures::Present)));
        assert_eq!(fixture.tick_after(seconds(6)), [IDENTIFY]);
    }
    fixture.on(identified(IdentitySource::SideRequest, true));
    fixture.check(CheckOutcome::Passed);
    assert!(
        !fixture.tick_after(seconds(20)).contains(&IDENTIFY),
        "it has told everything"
    );
}

/// A ready worker whose salts are probed; the probe has begun.
fn probed() -> MachineFixture {
    let mut rules = settings();
    rules.probes_salts = true;
    let mut fixture = MachineFixture::ready();
    let enabled = fixture.on(WorkerEvent::HealthRules(rules.into()));
    assert_eq!(enabled.table, [TableAction::Wake]);
    assert_eq!(fixture.tick_after(seconds(0)), [PROBE_SALTS]);
    fixture
}

#[test]
#[contract("S59")]
fn salts_are_probed_once_and_what_was_found_is_published() {
    let mut fixture = probed();
    assert_eq!(fixture.machine.salt_support(), SaltSupport::Unknown);
    let found = fixture.on(WorkerEvent::SaltProbed(Some(SaltSupport::Honoured)));
    assert_eq!(found.table, [TableAction::Publish]);
    assert_eq!(fixture.machine.salt_support(), SaltSupport::Honoured);
    fixture.check(CheckOutcome::Passed);
    assert!(!fixture.tick_after(seconds(60)).contains(&PROBE_SALTS));
}

#[test]
#[contract("S59")]
fn a_salt_probe_that_shows_nothing_is_repeated_and_without_an_answer_the_last_one_holds() {
    let mut fixture = probed();
    for (found, pause) in [(None, 30), (Some(SaltSupport::Unknown), 60)] {
        fixture.on(WorkerEvent::SaltProbed(found));
        assert_eq!(fixture.machine.salt_support(), SaltSupport::Unknown);
        let early = fixture.tick_after(seconds(pause - 1));
        assert!(!early.contains(&PROBE_SALTS), "{found:?}");
        fixture.on(load(LoadReport::Read(LoadFigures::Present)));
        assert!(fixture.tick_after(seconds(1)).contains(&PROBE_SALTS));
    }
    fixture.on(WorkerEvent::SaltProbed(Some(SaltSupport::Honoured)));
    assert_eq!(fixture.machine.salt_support(), SaltSupport::Honoured);
    // A new configuration identifies the worker anew.
    fixture.on(WorkerEvent::Configured(PeriodicChecks::Enabled));
    fixture.tick_after(seconds(1));
    fixture.on(identified(IdentitySource::Check, true));
    fixture.on(check_ended(CheckOutcome::Passed));
    assert!(fixture.tick_after(seconds(0)).contains(&PROBE_SALTS));
    fixture.on(WorkerEvent::SaltProbed(None));
    assert_eq!(fixture.machine.salt_support(), SaltSupport::Honoured);
}

#[test]
#[contract("S59")]
fn the_second_salt_probe_that_shows_nothing_ends_the_finding() {
    let mut fixture = probed();
    fixture.on(WorkerEvent::SaltProbed(Some(SaltSupport::Honoured)));
    fixture.on(WorkerEvent::Configured(PeriodicChecks::Enabled));
    fixture.tick_after(seconds(1));
    fixture.on(identified(IdentitySource::Check, true));
    fixture.on(check_ended(CheckOutcome::Passed));
    assert!(fixture.tick_after(seconds(0)).contains(&PROBE_SALTS));
    fixture.on(WorkerEvent::SaltProbed(Some(SaltSupport::Unknown)));
    assert_eq!(fixture.machine.salt_support(), SaltSupport::Honoured);
    fixture.tick_after(seconds(29));
    fixture.on(load(LoadReport::Read(LoadFigures::Present)));
    assert!(fixture.tick_after(seconds(1)).contains(&PROBE_SALTS));
    fixture.on(WorkerEvent::SaltProbed(Some(SaltSupport::Unknown)));
    assert_eq!(fixture.machine.salt_support(), SaltSupport::Unknown);
}

#[test]
#[contract("S59")]
fn the_finding_about_salts_ends_with_the_process_and_with_the_engine() {
    let honoured = || {
        let mut fixture = probed();
        fixture.on(WorkerEvent::SaltProbed(Some(SaltSupport::Honoured)));
        fixture
    };
    let mut ended = honoured();
    ended.check(CheckOutcome::Refused);
    assert_eq!(ended.machine.salt_support(), SaltSupport::Unknown);
    let mut other = honoured();
    let changed = other.on(WorkerEvent::EngineChanged);
    assert_eq!(changed.table, [TableAction::Publish]);
    assert_eq!(other.machine.salt_support(), SaltSupport::Unknown);
    assert!(other.tick_after(seconds(0)).contains(&PROBE_SALTS));
    // The result of a probe of the engine before it is no finding about this one.
    let mut during = probed();
    during.on(WorkerEvent::EngineChanged);
    during.on(WorkerEvent::SaltProbed(Some(SaltSupport::Honoured)));
    assert_eq!(during.machine.salt_support(), SaltSupport::Unknown);
    assert!(during.tick_after(seconds(0)).contains(&PROBE_SALTS));
}

#[test]
fn streams_that_do_not_run_are_started_again_after_two_seconds() {
    for event in [
        WorkerEvent::StreamsStarted(StreamCoverage::Incomplete),
        WorkerEvent::StreamEnded,
    ] {
        let mut fixture = MachineFixture::ready();
        fixture.on(event);
        assert_eq!(fixture.next_wake(), Some(seconds(2)));
        assert_eq!(
            fixture.tick_after(seconds(2)),
            [SupervisorAction::StartStreams]
        );
        fixture.on(WorkerEvent::StreamsStarted(StreamCoverage::Complete));
        assert_eq!(fixture.next_wake(), Some(seconds(3)), "the load");
    }
}

#[test]
fn a_panic_of_the_supervisor_drops_what_ran_and_identifies_the_worker_anew() {
    let mut fixture = MachineFixture::ready();
    fixture.tick_after(seconds(30));
    let restarted = fixture.on(WorkerEvent::Restarted);
    assert_eq!(
        restarted.supervisor,
        [
            SupervisorAction::CancelCheck,
            SupervisorAction::CancelSideRequest
        ]
    );
    assert_eq!(
        fixture.on(WorkerEvent::Tick).supervisor,
        [
            SupervisorAction::StartStreams,
            check_of(CheckScope::Identity)
        ]
    );
    assert_eq!(
        fixture.machine.state(),
        WorkerState::Ready,
        "requests go on"
    );
}

#[test]
fn the_cache_of_an_ended_process_is_forgotten_once_its_stream_is_gone_too() {
    let mut fixture = MachineFixture::ready();
    fixture.streams = LIVE;
    let refused = WorkerEvent::RequestFailed {
        kind: FailureKind::Refused,
        ejection: EjectionPermit::Denied,
    };
    let forgets = |actions: WorkerActions| actions.table.contains(&TableAction::ForgetCache);
    assert!(
        !forgets(fixture.on(refused.clone())),
        "the stream is better evidence"
    );
    fixture.streams = CONNECTING;
    assert!(forgets(
        fixture.on(WorkerEvent::StreamsChanged(PublisherConnections::Lost))
    ));
    assert!(!forgets(fixture.on(refused)), "once");
    assert_eq!(fixture.machine.ended(), 1);
    fixture.check(CheckOutcome::Passed);
    fixture.check(CheckOutcome::Passed);
    assert_eq!(fixture.machine.state(), WorkerState::Ready);
    assert!(
        forgets(fixture.check(CheckOutcome::Refused)),
        "the next outage"
    );
    assert_eq!(fixture.machine.ended(), 2);
}

#[test]
fn a_check_that_cannot_be_made_is_logged_once() {
    let mut fixture = MachineFixture::ready();
    let warning =
        SupervisorAction::WarnCheckNotMade(WorkerProblem::new(ProblemKind::Unusable, "a problem"));
    for (outcome, warned) in [
        (CheckOutcome::NotMade, true),
        (CheckOutcome::NotMade, false),
        (CheckOutcome::Passed, false),
        (CheckOutcome::NotMade, true),
    ] {
        let actions = fixture.check(outcome);
        assert_eq!(actions.supervisor.contains(&warning), warned);
        assert_eq!(fixture.machine.state(), WorkerState::Ready);
    }
    assert_eq!(fixture.machine.last_error(), None);
}

#[test]
fn checks_that_cannot_be_made_are_not_tried_in_a_tight_loop() {
    let mut fixture = MachineFixture::ready();
    fixture.on(WorkerEvent::RequestFailed {
        kind: FailureKind::Status,
        ejection: EjectionPermit::Granted,
    });
    fixture.tick_after(settings().breaker.ejection);
    for _ in 0..3 {
        fixture.on(check_ended(CheckOutcome::NotMade));
        assert_eq!(fixture.machine.state(), WorkerState::Ejected);
        fixture.tick_after(seconds(0));
        assert_eq!(fixture.next_wake(), Some(Duration::from_millis(200)));
        fixture.tick_after(Duration::from_millis(200));
    }
    fixture.on(check_ended(CheckOutcome::Passed));
    assert_eq!(fixture.machine.state(), WorkerState::Ready);
}

#[test]
fn a_worker_that_failed_a_request_during_its_check_is_identified_anew() {
    let mut fixture = MachineFixture::ready();
    fixture.tick_after(seconds(30));
    fixture.on(WorkerEvent::RequestFailed {
        kind: FailureKind::Refused,
        ejection: EjectionPermit::Denied,
    });
    fixture.on(check_ended(CheckOutcome::Passed));
    assert_eq!(fixture.machine.state(), WorkerState::Down, "one more check");
    let next = fixture.tick_after(seconds(0));
    assert!(next.contains(&check_of(CheckScope::Identity)), "{next:?}");
}
