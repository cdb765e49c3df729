//! What holds for every sequence of events.

use proptest::prelude::*;

use super::*;
use crate::{
    FailureKind, SaltSupport,
    worker_machine::{
        ConnectFailure, EjectionPermit, LoadFigures, LoadReport, PublisherConnections,
        StreamCoverage, TableAction, WorkerAdmission,
    },
};

fn outcomes() -> impl Strategy<Value = CheckOutcome> {
    prop_oneof![
        4 => Just(CheckOutcome::Passed),
        1 => Just(CheckOutcome::Loading),
        2 => Just(CheckOutcome::Refused),
        2 => Just(CheckOutcome::Failed),
        1 => Just(CheckOutcome::NotMade),
    ]
}

fn reports() -> impl Strategy<Value = WorkerEvent> {
    let process = prop_oneof![Just(ProcessPace::Steady), Just(ProcessPace::Stalled)];
    let completed = (outcomes(), process).prop_map(|(outcome, process)| CheckReport::Completed {
        outcome,
        problem: (outcome != CheckOutcome::Passed)
            .then(|| WorkerProblem::new(ProblemKind::Unusable, "a problem")),
        process,
    });
    prop_oneof![
        4 => completed,
        1 => Just(CheckReport::ConnectFailed(ConnectFailure::Refused)),
        1 => Just(CheckReport::ConnectFailed(ConnectFailure::Other)),
    ]
    .prop_map(WorkerEvent::CheckEnded)
}

fn identities() -> impl Strategy<Value = WorkerEvent> {
    let figures = prop_oneof![Just(LoadFigures::Present), Just(LoadFigures::Absent)];
    (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        prop::option::of(figures),
    )
        .prop_map(|(by_check, complete, reports_load, load)| {
            let source = if by_check {
                IdentitySource::Check
            } else {
                IdentitySource::SideRequest
            };
            WorkerEvent::Identified(IdentityReport {
                source,
                complete,
                reports_load,
                load,
            })
        })
}

fn failures() -> impl Strategy<Value = WorkerEvent> {
    let kinds = prop_oneof![
        Just(FailureKind::Refused),
        Just(FailureKind::Status),
        Just(FailureKind::Unavailable),
        Just(FailureKind::Local),
        Just(FailureKind::MidStream),
    ];
    let permits = prop_oneof![Just(EjectionPermit::Granted), Just(EjectionPermit::Denied)];
    (kinds, permits).prop_map(|(kind, ejection)| WorkerEvent::RequestFailed { kind, ejection })
}

fn events() -> impl Strategy<Value = WorkerEvent> {
    use WorkerEvent as Event;
    let mut with_salt_probes = settings();
    with_salt_probes.probes_salts = true;
    let others = vec![
        Event::IdentityFailed,
        Event::LoadRead(LoadReport::Read(LoadFigures::Present)),
        Event::LoadRead(LoadReport::Read(LoadFigures::Absent)),
        Event::LoadRead(LoadReport::Failed),
        Event::StreamsStarted(StreamCoverage::Complete),
        Event::StreamsStarted(StreamCoverage::Incomplete),
        Event::StreamEnded,
        Event::StreamsChanged(PublisherConnections::Made),
        Event::StreamsChanged(PublisherConnections::Lost),
        Event::StreamsChanged(PublisherConnections::Same),
        Event::RequestSucceeded,
        Event::CheckRequested,
        Event::Configured(PeriodicChecks::Enabled),
        Event::Configured(PeriodicChecks::Disabled),
        Event::HealthRules(settings().into()),
        Event::HealthRules(with_salt_probes.into()),
        Event::SaltProbed(None),
        Event::SaltProbed(Some(SaltSupport::Honoured)),
        Event::EngineChanged,
        Event::Drain,
        Event::Resume,
        Event::Remove {
            until: Moment::at(seconds(60)),
        },
        Event::Close,
        Event::Restarted,
    ];
    prop_oneof![
        10 => Just(Event::Tick),
        8 => reports(),
        3 => identities(),
        3 => failures(),
        8 => prop::sample::select(others),
    ]
}

/// One event after some milliseconds, with these streams.
type Step = (u64, StreamSummary, WorkerEvent);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let streams = prop::sample::select(vec![NO_STREAMS, LIVE, CONNECTING]);
    let pauses = prop_oneof![Just(0), 1..400u64, 400..40_000u64];
    prop::collection::vec((pauses, streams, events()), 1..120)
}

/// What the supervisor and the table know of the machine.
#[derive(Default)]
struct Observer {
    running_checks: u32,
    running_side_requests: u32,
    /// Whether the cache was forgotten since the worker was last ready.
    forgotten: bool,
    /// Whether the worker was found refused, and did not pass a check since.
    refused: bool,
}

impl Observer {
    fn observe(&mut self, event: &WorkerEvent, actions: &WorkerActions) {
        for action in &actions.supervisor {
            self.observe_supervisor(event, action);
        }
        if actions.table.contains(&TableAction::ForgetCache) {
            assert!(!self.forgotten, "a cache is forgotten once per outage");
            self.forgotten = true;
        }
    }

    fn observe_supervisor(&mut self, event: &WorkerEvent, action: &SupervisorAction) {
        match action {
            SupervisorAction::StartCheck { .. } => {
                assert_eq!(*event, WorkerEvent::Tick, "only a tick begins a check");
                self.running_checks += 1;
                assert_eq!(self.running_checks, 1, "checks run one at a time");
            }
            SupervisorAction::StartSideRequest(_) => {
                assert_eq!(*event, WorkerEvent::Tick, "only a tick begins a request");
                self.running_side_requests += 1;
                assert_eq!(
                    self.running_side_requests, 1,
                    "side requests run one at a time"
                );
            }
            SupervisorAction::CancelCheck => {
                assert_eq!(
                    std::mem::take(&mut self.running_checks),
                    1,
                    "there is one to cancel"
                );
            }
            SupervisorAction::CancelSideRequest => {
                assert_eq!(
                    std::mem::take(&mut self.running_side_requests),
                    1,
                    "there is one to cancel"
                );
            }
            _ => {}
        }
    }

    /// Returns whether this event can occur: results come only of what runs.
    fn expects(&mut self, event: &WorkerEvent) -> bool {
        match event {
            WorkerEvent::CheckEnded(_) => std::mem::take(&mut self.running_checks) == 1,
            WorkerEvent::Identified(report) if report.source == IdentitySource::Check => {
                self.running_checks == 1
            }
            WorkerEvent::Identified(_)
            | WorkerEvent::IdentityFailed
            | WorkerEvent::LoadRead(_)
            | WorkerEvent::SaltProbed(_) => std::mem::take(&mut self.running_side_requests) == 1,
            _ => true,
        }
    }

    /// Notes evidence about the worker's process.
    fn learn(&mut self, event: &WorkerEvent) {
        match event {
            WorkerEvent::RequestFailed {
                kind: FailureKind::Refused,
                ..
            } => self.refused = true,
            WorkerEvent::CheckEnded(CheckReport::Completed { outcome, .. }) => match outcome {
                CheckOutcome::Refused => self.refused = true,
                CheckOutcome::Passed => self.refused = false,
                _ => {}
            },
            _ => {}
        }
    }
}

fn check_step(fixture: &mut MachineFixture, observer: &mut Observer, event: &WorkerEvent) {
    let before = (fixture.machine.state(), fixture.machine.ended());
    let actions = fixture.on(event.clone());
    observer.observe(event, &actions);
    observer.learn(event);
    let machine = &fixture.machine;
    let state = machine.state();
    if before != (state, machine.ended()) {
        assert!(actions.table.contains(&TableAction::Publish), "{actions:?}");
    }
    if before.1 != machine.ended() {
        let support = machine.salt_support();
        assert_eq!(support, SaltSupport::Unknown, "it was the ended process's");
    }
    if actions.table.contains(&TableAction::ForgetCache) {
        assert!(machine.is_refused() && machine.health_state() == WorkerState::Down);
        assert!(!fixture.streams.any_connected);
    }
    if state == WorkerState::Ready {
        observer.forgotten = false;
        assert!(!observer.refused, "a worker that refused is not ready");
        assert_ne!(machine.admission(), WorkerAdmission::Closed);
        assert_eq!(machine.health_state(), WorkerState::Ready);
    }
    if matches!(
        event,
        WorkerEvent::RequestFailed { .. }
            | WorkerEvent::RequestSucceeded
            | WorkerEvent::CheckRequested
            | WorkerEvent::StreamsChanged(_)
    ) {
        assert_eq!(actions.supervisor, [], "the request path makes no requests");
    }
    if *event == WorkerEvent::Tick {
        let wake = fixture.next_wake();
        assert_ne!(wake, Some(seconds(0)), "a tick does everything that is due");
    }
}

proptest! {
    #[test]
    fn no_sequence_of_events_breaks_an_invariant(steps in steps()) {
        let (mut fixture, mut observer) = (MachineFixture::new(), Observer::default());
        for (pause, streams, event) in steps {
            fixture.now = fixture.now + Duration::from_millis(pause);
            fixture.streams = streams;
            if observer.expects(&event) {
                check_step(&mut fixture, &mut observer, &event);
            }
        }
    }

    #[test]
    fn results_of_nothing_that_runs_change_nothing(steps in steps()) {
        let mut fixture = MachineFixture::new();
        for (pause, streams, event) in steps {
            fixture.now = fixture.now + Duration::from_millis(pause);
            fixture.streams = streams;
            fixture.on(event);
        }
        fixture.on(WorkerEvent::Configured(PeriodicChecks::Enabled));
        for late in [
            check_ended(CheckOutcome::Refused),
            WorkerEvent::IdentityFailed,
            WorkerEvent::LoadRead(LoadReport::Failed),
            WorkerEvent::SaltProbed(Some(SaltSupport::Honoured)),
            identified(IdentitySource::SideRequest, true),
        ] {
            prop_assert_eq!(fixture.on(late), WorkerActions::default());
        }
    }

    #[test]
    fn a_worker_with_periodic_checks_is_always_checked_within_the_longest_interval(steps in steps()) {
        let mut fixture = MachineFixture::new();
        for (pause, streams, event) in steps {
            fixture.now = fixture.now + Duration::from_millis(pause);
            fixture.streams = streams;
            fixture.on(event);
        }
        fixture.on(WorkerEvent::Configured(PeriodicChecks::Enabled));
        let checks = settings().checks;
        let longest = checks.interval.max(checks.recovery_max_interval);
        let next = fixture.next_wake();
        prop_assert!(next.is_some_and(|pause| pause <= longest), "{:?}", next);
        let started = fixture.tick_after(longest);
        let checks = |action: &SupervisorAction| matches!(action, SupervisorAction::StartCheck { .. });
        prop_assert!(started.iter().any(checks), "{:?}", started);
    }

    #[test]
    fn a_stopped_worker_stops_its_streams_and_does_nothing_more(before in steps(), after in steps()) {
        let mut fixture = MachineFixture::new();
        for (pause, streams, event) in before {
            fixture.now = fixture.now + Duration::from_millis(pause);
            fixture.streams = streams;
            fixture.on(event);
        }
        let stop = fixture.on(WorkerEvent::Stop);
        prop_assert_eq!(stop.supervisor.last(), Some(&SupervisorAction::StopStreams));
        for (pause, streams, event) in after {
            fixture.now = fixture.now + Duration::from_millis(pause);
            fixture.streams = streams;
            prop_assert_eq!(fixture.on(event), WorkerActions::default());
            prop_assert_eq!(fixture.next_wake(), None);
        }
    }
}
