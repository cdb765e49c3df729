//! Records for the tests of this crate, and tests of what a record derives from configuration.

use std::{sync::Arc, time::Duration};

use kv_blocks::{BlockSize, Moment, Role, WorkerId};
use net::Clock;

use super::WorkerRecord;
use crate::{
    EngineKind, EngineLoad, EngineView, HealthView, KvCacheView, MessagesMode, RankView,
    ServedModel, ServedModels, WorkerConnection, WorkerState, WorkerView,
    worker_machine::{
        CheckOutcome, CheckReport, HealthSettings, PeriodicChecks, ProcessPace, StreamSummary,
        WorkerEvent, WorkerMachine,
    },
};

impl WorkerRecord {
    /// A worker before its first check.
    pub(crate) fn for_tests(id: WorkerId, clock: &Clock) -> Self {
        let second = Duration::from_secs(1);
        let health = HealthSettings {
            interval: second,
            unhealthy_threshold: 1,
            healthy_threshold: 1,
            warmup_interval: second,
            max_warmup: second,
            first_connect_pause: second,
            longest_connect_pause: second,
            eject_after: 1,
            eject_for: second,
        };
        let view = WorkerView {
            id,
            name: "w1".into(),
            connection: WorkerConnection {
                url: "http://127.0.0.1:1".parse().expect("a url"),
                verified: true,
                api_key: None,
            },
            engine: EngineView {
                kind: EngineKind::Generic,
                version: None,
                messages: MessagesMode::Translate,
            },
            health: HealthView::unknown(clock.wall()),
            served: ServedModels::default(),
            role: Role::Unified,
            bootstrap_port: None,
            weight: 1.0,
            cache: KvCacheView {
                block_size: BlockSize::new(16).expect("a block size"),
                block_size_known: false,
                num_blocks: None,
                allow_tiers: Vec::new(),
            },
            ranks: vec![RankView::default()],
            load: EngineLoad::default(),
        };
        Self::new(
            view,
            WorkerMachine::new(health, PeriodicChecks::Enabled),
            true,
        )
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
        problem: Some("gone".into()),
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
    assert_eq!(view.health.last_error.as_deref(), Some("gone"));
}

#[test]
fn a_worker_without_streams_is_predicted_and_connects_to_nothing() {
    let record = record();
    assert_eq!(record.rank_views(), [RankView::default()]);
    assert_eq!(record.stream_summary(), StreamSummary::default());
    assert_eq!(record.announced_block_size(), None);
    assert!(!record.stream_change().outdated);
}
