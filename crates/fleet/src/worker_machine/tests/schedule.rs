//! What is due when.

use super::*;
use crate::{
    FailureKind,
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
const IDENTIFY: SupervisorAction = SupervisorAction::StartSideRequest(SideRequest::Identity);

fn load(report: LoadReport) -> WorkerEvent {
    WorkerEvent::LoadRead(report)
}

#[test]
fn a_new_worker_is_checked_at_once_and_its_verdict_follows() {
    let mut scene = Scene::new();
    assert_eq!(
        scene.tick_after(seconds(0)),
        [check_of(CheckScope::Identity)]
    );
    assert_eq!(
        scene.next_wake(),
        None,
        "the check takes as long as it takes"
    );
    scene.on(judged(CheckOutcome::Refused));
    assert_eq!(
        scene.tick_after(seconds(0)),
        [SupervisorAction::ReportVerdict]
    );
    assert_eq!(scene.next_wake(), Some(settings().checks.recovery_interval));
}

#[test]
fn a_ready_worker_is_checked_at_its_interval_and_not_at_all_without_periodic_checks() {
    let mut scene = Scene::ready();
    scene.on(load(LoadReport::Read(LoadFigures::Absent)));
    assert!(
        !scene
            .tick_after(seconds(29))
            .contains(&check_of(CheckScope::Models))
    );
    assert!(
        scene
            .tick_after(seconds(1))
            .contains(&check_of(CheckScope::Models))
    );
    let mut scene = Scene::ready();
    scene.on(WorkerEvent::Configured(PeriodicChecks::Disabled));
    assert_eq!(
        scene.tick_after(seconds(1)),
        [check_of(CheckScope::Identity)],
        "a new configuration is applied in any case"
    );
    scene.on(judged(CheckOutcome::Passed));
    assert_eq!(scene.next_wake(), None);
    scene.on(WorkerEvent::CheckRequested);
    assert!(scene.next_wake().is_some(), "and requested checks are made");
}

#[test]
fn a_requested_check_keeps_a_distance_to_the_one_before() {
    let mut scene = Scene::ready();
    let asked = scene.on(WorkerEvent::CheckRequested);
    assert_eq!(asked.table, [TableAction::Wake]);
    assert_eq!(scene.tick_after(Duration::from_millis(199)), []);
    assert_eq!(
        scene.tick_after(Duration::from_millis(1)),
        [check_of(CheckScope::Models)]
    );
    // A request during a check causes one more.
    scene.on(WorkerEvent::CheckRequested);
    scene.on(judged(CheckOutcome::Passed));
    assert_eq!(scene.next_wake(), Some(Duration::from_millis(200)));
}

#[test]
fn a_check_after_a_stall_of_this_process_is_repeated_before_the_worker_is_blamed() {
    let mut scene = Scene::ready();
    let timed_out = |process| {
        WorkerEvent::CheckEnded(CheckReport::Judged {
            outcome: CheckOutcome::Failed,
            problem: Some("did not answer".into()),
            process,
        })
    };
    scene.tick_after(seconds(30));
    assert_eq!(
        scene.on(timed_out(ProcessPace::Stalled)),
        WorkerActions::default()
    );
    assert_eq!(scene.machine.state(), WorkerState::Ready);
    assert_eq!(scene.next_wake(), Some(Duration::from_millis(200)));
    scene.tick_after(seconds(1));
    scene.on(timed_out(ProcessPace::Steady));
    assert_eq!(scene.machine.state(), WorkerState::Down);
}

#[test]
fn a_lost_stream_is_looked_into_at_once_and_then_less_and_less_often() {
    let mut scene = Scene::ready();
    scene.streams = CONNECTING;
    scene.on(WorkerEvent::StreamsChanged(PublisherConnections::Lost));
    let lost = SupervisorAction::StartCheck {
        scope: CheckScope::Identity,
        reason: CheckReason::StreamLost,
    };
    assert_eq!(scene.tick_after(seconds(0)), [lost]);
    let mut pauses = Vec::new();
    for _ in 0..5 {
        scene.on(identified(IdentitySource::Check, true));
        scene.on(judged(CheckOutcome::Passed));
        scene.on(load(LoadReport::Read(LoadFigures::Present)));
        let before = scene.now;
        let is_check =
            |action: &SupervisorAction| matches!(action, SupervisorAction::StartCheck { .. });
        while !scene
            .tick_after(Duration::from_millis(100))
            .iter()
            .any(is_check)
        {}
        pauses.push(scene.now.since(before).as_millis());
    }
    assert_eq!(pauses, [400, 800, 1600, 3200, 30_000]);
}

#[test]
fn a_stream_that_is_back_ends_the_hurry() {
    let mut scene = Scene::ready();
    scene.streams = CONNECTING;
    scene.on(WorkerEvent::StreamsChanged(PublisherConnections::Lost));
    scene.tick_after(seconds(0));
    scene.streams = LIVE;
    scene.on(judged(CheckOutcome::Passed));
    assert_eq!(scene.next_wake(), Some(settings().checks.interval));
}

#[test]
fn a_lost_stream_of_a_worker_that_is_not_in_use_says_nothing() {
    let mut scene = Scene::new();
    scene.check(CheckOutcome::Loading);
    let before = scene.next_wake();
    scene.on(WorkerEvent::StreamsChanged(PublisherConnections::Lost));
    assert_eq!(scene.next_wake(), before);
}

#[test]
fn connect_probes_slow_down_and_a_connected_stream_hurries_them() {
    let mut scene = Scene::ready();
    scene.check(CheckOutcome::Refused);
    scene.on(WorkerEvent::Tick);
    let refused = WorkerEvent::CheckEnded(CheckReport::ConnectFailed(
        super::super::ConnectFailure::Refused,
    ));
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let pause = scene.next_wake().expect("the next probe");
        pauses.push(pause.as_millis());
        assert_eq!(scene.tick_after(pause), [check_of(CheckScope::Connect)]);
        scene.on(refused.clone());
    }
    assert_eq!(pauses, [250, 500, 1000, 2000, 2000]);
    scene.on(WorkerEvent::StreamsChanged(PublisherConnections::Made));
    assert_eq!(scene.next_wake(), Some(seconds(0)));
}

#[test]
fn the_verdict_on_a_ready_worker_waits_for_its_streams_and_a_second_at_most() {
    let mut scene = Scene::new();
    scene.streams = CONNECTING;
    scene.tick_after(seconds(0));
    scene.on(judged(CheckOutcome::Passed));
    assert_eq!(scene.tick_after(seconds(0)), []);
    assert_eq!(scene.next_wake(), Some(seconds(1)));
    scene.streams = LIVE;
    assert_eq!(
        scene.tick_after(seconds(0)),
        [SupervisorAction::ReportVerdict]
    );
    assert_eq!(scene.tick_after(seconds(2)), [], "once");

    let mut scene = Scene::new();
    scene.streams = CONNECTING;
    scene.tick_after(seconds(0));
    scene.on(judged(CheckOutcome::Passed));
    assert_eq!(
        scene.tick_after(seconds(1)),
        [SupervisorAction::ReportVerdict]
    );
}

#[test]
fn the_load_is_read_every_five_seconds_and_forgotten_after_two_failures() {
    let mut scene = Scene::ready();
    assert_eq!(scene.next_wake(), Some(seconds(5)));
    assert_eq!(scene.tick_after(seconds(5)), [READ_LOAD]);
    assert_eq!(scene.on(load(LoadReport::Failed)), WorkerActions::default());
    assert_eq!(scene.tick_after(seconds(5)), [READ_LOAD]);
    let cleared = scene.on(load(LoadReport::Failed));
    assert_eq!(
        cleared.table,
        [TableAction::ClearLoad, TableAction::Publish]
    );
    assert_eq!(scene.tick_after(seconds(5)), [READ_LOAD], "it is read on");
    assert_eq!(scene.on(load(LoadReport::Failed)), WorkerActions::default());
}

#[test]
fn an_engine_without_a_load_is_not_asked_for_it() {
    let mut scene = Scene::new();
    scene.tick_after(seconds(0));
    scene.on(WorkerEvent::Identified(IdentityReport {
        source: IdentitySource::Check,
        complete: true,
        reports_load: false,
        load: Some(LoadFigures::Absent),
    }));
    scene.on(judged(CheckOutcome::Passed));
    scene.on(WorkerEvent::Tick);
    assert_eq!(scene.next_wake(), Some(settings().checks.interval));
}

#[test]
fn missing_facts_are_requested_once_the_worker_is_in_use_and_again_after_a_pause() {
    let mut scene = Scene::new();
    scene.tick_after(seconds(0));
    scene.on(identified(IdentitySource::Check, false));
    assert_eq!(scene.tick_after(seconds(0)), [], "not before it is ready");
    scene.on(judged(CheckOutcome::Passed));
    assert_eq!(
        scene.tick_after(seconds(0)),
        [SupervisorAction::ReportVerdict, IDENTIFY]
    );
    for answer in [
        WorkerEvent::IdentityFailed,
        identified(IdentitySource::SideRequest, false),
    ] {
        scene.on(answer);
        assert_eq!(scene.tick_after(seconds(4)), [READ_LOAD]);
        scene.on(load(LoadReport::Read(LoadFigures::Present)));
        assert_eq!(scene.tick_after(seconds(6)), [IDENTIFY]);
    }
    scene.on(identified(IdentitySource::SideRequest, true));
    scene.check(CheckOutcome::Passed);
    assert!(
        !scene.tick_after(seconds(20)).contains(&IDENTIFY),
        "it has told everything"
    );
}

#[test]
fn streams_that_do_not_run_are_started_again_after_two_seconds() {
    for event in [
        WorkerEvent::StreamsStarted(StreamCoverage::Incomplete),
        WorkerEvent::StreamEnded,
    ] {
        let mut scene = Scene::ready();
        scene.on(event);
        assert_eq!(scene.next_wake(), Some(seconds(2)));
        assert_eq!(
            scene.tick_after(seconds(2)),
            [SupervisorAction::StartStreams]
        );
        scene.on(WorkerEvent::StreamsStarted(StreamCoverage::Complete));
        assert_eq!(scene.next_wake(), Some(seconds(3)), "the load");
    }
}

#[test]
fn a_panic_of_the_supervisor_drops_what_ran_and_identifies_the_worker_anew() {
    let mut scene = Scene::ready();
    scene.tick_after(seconds(30));
    let restarted = scene.on(WorkerEvent::Restarted);
    assert_eq!(
        restarted.supervisor,
        [
            SupervisorAction::CancelCheck,
            SupervisorAction::CancelSideRequest
        ]
    );
    assert_eq!(
        scene.on(WorkerEvent::Tick).supervisor,
        [
            SupervisorAction::StartStreams,
            check_of(CheckScope::Identity)
        ]
    );
    assert_eq!(scene.machine.state(), WorkerState::Ready, "requests go on");
}

#[test]
fn the_cache_of_an_ended_process_is_forgotten_once_its_stream_is_gone_too() {
    let mut scene = Scene::ready();
    scene.streams = LIVE;
    let refused = WorkerEvent::RequestFailed {
        kind: FailureKind::Refused,
        ejection: EjectionPermit::Denied,
    };
    let forgets = |actions: WorkerActions| actions.table.contains(&TableAction::ForgetCache);
    assert!(
        !forgets(scene.on(refused.clone())),
        "the stream is better evidence"
    );
    scene.streams = CONNECTING;
    assert!(forgets(
        scene.on(WorkerEvent::StreamsChanged(PublisherConnections::Lost))
    ));
    assert!(!forgets(scene.on(refused)), "once");
    assert_eq!(scene.machine.ended(), 1);
    scene.check(CheckOutcome::Passed);
    scene.check(CheckOutcome::Passed);
    assert_eq!(scene.machine.state(), WorkerState::Ready);
    assert!(
        forgets(scene.check(CheckOutcome::Refused)),
        "the next outage"
    );
    assert_eq!(scene.machine.ended(), 2);
}

#[test]
fn a_check_that_cannot_be_made_is_logged_once() {
    let mut scene = Scene::ready();
    let warning = SupervisorAction::WarnCheckNotMade("a problem".into());
    for (outcome, warned) in [
        (CheckOutcome::NotMade, true),
        (CheckOutcome::NotMade, false),
        (CheckOutcome::Passed, false),
        (CheckOutcome::NotMade, true),
    ] {
        let actions = scene.check(outcome);
        assert_eq!(actions.supervisor.contains(&warning), warned);
        assert_eq!(scene.machine.state(), WorkerState::Ready);
    }
    assert_eq!(scene.machine.last_error(), None);
}

#[test]
fn checks_that_cannot_be_made_are_not_tried_in_a_tight_loop() {
    let mut scene = Scene::ready();
    scene.on(WorkerEvent::RequestFailed {
        kind: FailureKind::Status,
        ejection: EjectionPermit::Granted,
    });
    scene.tick_after(settings().breaker.ejection);
    for _ in 0..3 {
        scene.on(judged(CheckOutcome::NotMade));
        assert_eq!(scene.machine.state(), WorkerState::Ejected);
        scene.tick_after(seconds(0));
        assert_eq!(scene.next_wake(), Some(Duration::from_millis(200)));
        scene.tick_after(Duration::from_millis(200));
    }
    scene.on(judged(CheckOutcome::Passed));
    assert_eq!(scene.machine.state(), WorkerState::Ready);
}

#[test]
fn a_worker_that_failed_a_request_during_its_check_is_identified_anew() {
    let mut scene = Scene::ready();
    scene.tick_after(seconds(30));
    scene.on(WorkerEvent::RequestFailed {
        kind: FailureKind::Refused,
        ejection: EjectionPermit::Denied,
    });
    scene.on(judged(CheckOutcome::Passed));
    assert_eq!(scene.machine.state(), WorkerState::Down, "one more check");
    let next = scene.tick_after(seconds(0));
    assert!(next.contains(&check_of(CheckScope::Identity)), "{next:?}");
}
