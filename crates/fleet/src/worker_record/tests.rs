//! Records for the tests of this crate, and tests of what a record derives from configuration.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use kv_blocks::{Moment, WorkerId};
use net::Clock;

use super::WorkerRecord;
use crate::{
    ProblemKind, RankView, ServedModel, WorkerProblem, WorkerState, WorkerView,
    worker_machine::{
        CheckOutcome, CheckReport, HealthSettings, PeriodicChecks, ProcessPace, StreamSummary,
        WorkerEvent, WorkerMachine,
    },
};

impl WorkerRecord {
    /// A worker before its first check.
    pub(crate) fn for_tests(id: WorkerId, clock: &Clock) -> Self {
        let url = "http://127.0.0.1:1".parse().expect("a url");
        let view = WorkerView::unknown(id, "w1".into(), url, clock.wall());
        let mut health = HealthSettings::default();
        health.checks.unhealthy_threshold = NonZeroU32::MIN;
        health.checks.healthy_threshold = NonZeroU32::MIN;
        health.breaker.consecutive_failures = NonZeroU32::MIN;
        let machine = WorkerMachine::new(health.into(), PeriodicChecks::Enabled);
        Self::new(view, machine, true)
    }

    /// The same worker, which lists this model.
    pub(crate) fn serving(mut self, model: &str) -> Self {
        Arc::make_mut(&mut self.view).served.models = vec![ServedModel {
            id: model.into(),
            root: None,
            max_model_len: None,
            created: 0,
            owned_by: "t".into(),
        }];
        self
    }

    /// The same worker after one more check; one result decides.
    pub(crate) fn checked(mut self, outcome: CheckOutcome) -> Self {
        let streams = StreamSummary::default();
        let report = CheckReport::Completed {
            outcome,
            problem: None,
            process: ProcessPace::Steady,
        };
        let due = self.machine.last_check() + Duration::from_secs(3600);
        self.machine.on(due, streams, WorkerEvent::Tick);
        self.machine
            .on(due, streams, WorkerEvent::CheckEnded(report));
        self.refresh_view();
        self
    }

    /// The same worker after this decision about it.
    pub(crate) fn decided(mut self, decision: WorkerEvent) -> Self {
        self.machine
            .on(Moment::START, StreamSummary::default(), decision);
        self.refresh_view();
        self
    }
}

fn record() -> WorkerRecord {
    WorkerRecord::for_tests(WorkerId(7), &Clock::system())
}

#[test]
fn a_released_name_is_marked_once_with_the_worker_s_number() {
    let mut record = record();
    record.release_name();
    record.release_name();
    assert_eq!(&*record.view.name, "w1~7");
}

#[test]
fn the_view_follows_the_state_machine_and_says_whether_the_state_changed() {
    let mut record = record();
    assert!(!record.refresh_view());
    let streams = StreamSummary::default();
    let refused = WorkerEvent::CheckEnded(CheckReport::Completed {
        outcome: CheckOutcome::Refused,
        problem: Some(WorkerProblem::new(ProblemKind::Refused, "gone")),
        process: ProcessPace::Steady,
    });
    for event in [WorkerEvent::Tick, refused] {
        record.machine.on(Moment::START, streams, event);
    }
    assert!(record.refresh_view());
    assert!(!record.refresh_view());
    let view = &record.view;
    assert_eq!(
        (view.health.state, view.health.ended),
        (WorkerState::Down, 1)
    );
    let problem = view.health.last_error.as_ref().map(WorkerProblem::text);
    assert_eq!(problem.map(|text| &**text), Some("gone"));
}

#[test]
fn a_worker_without_streams_is_predicted_and_connects_to_nothing() {
    let record = record();
    assert_eq!(record.rank_views(), [RankView::default()]);
    assert_eq!(record.stream_summary(), StreamSummary::default());
    assert_eq!(record.announced_block_size(), None);
    assert!(!record.stream_change().outdated);
}
