//! Reports of the request path.

use contract_id::contract;
use fleet::{FailureKind, WorkerState};
use kv_blocks::WorkerId;

use crate::{
    fake_engine::FakeEngine,
    setup::{parts, start, worker},
};

#[tokio::test]
async fn a_worker_that_passes_checks_and_fails_requests_is_ejected_unless_it_is_the_last() {
    let one = FakeEngine::serving("m").await;
    let two = FakeEngine::serving("m").await;
    let running = start(parts(vec![
        worker("w1", &one.url()),
        worker("w2", &two.url()),
    ]));
    let first = running.ready("w1").await.id;
    let second = running.ready("w2").await.id;
    for _ in 0..4 {
        running.fleet.report_failure(first, FailureKind::Status);
    }
    running.fleet.report_success(first);
    running.fleet.report_failure(first, FailureKind::Status);
    assert_eq!(running.fleet.snapshot().ready(), 2);
    for _ in 0..4 {
        running.fleet.report_failure(first, FailureKind::Status);
    }
    let snapshot = running.fleet.snapshot();
    assert_eq!(snapshot.workers[0].health.state, WorkerState::Ejected);
    let model = snapshot.model("m").unwrap();
    assert_eq!(model.candidates.len(), 1);
    assert_eq!(model.unusable[0].reason(), "circuit_open");
    for _ in 0..20 {
        running
            .fleet
            .report_failure(second, FailureKind::ResetBeforeHead);
    }
    assert_eq!(
        running.fleet.snapshot().workers[1].health.state,
        WorkerState::Ready
    );
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("F87")]
async fn without_ready_workers_earlier_ones_are_candidates_marked_as_last_resort() {
    let mut engine = FakeEngine::serving("m").await;
    let mut parts = parts(vec![worker("w1", &engine.url())]);
    parts.config.health_checks.interval = std::time::Duration::from_millis(20);
    let running = start(parts);
    running.ready("w1").await;
    // The probe path is broken; the port is not.
    engine.answer("/health", 500, "");
    let snapshot = running
        .until("down", |snapshot| {
            snapshot.workers[0].health.state == WorkerState::Down
        })
        .await;
    let model = snapshot.model("m").unwrap();
    assert!(model.panic);
    assert_eq!(model.candidates.len(), 1);
    assert!(model.unusable.is_empty());
    // A refused connection leaves no doubt.
    engine.die().await;
    running
        .until("no last resort", |snapshot| {
            snapshot.model("m").is_some_and(|model| !model.panic)
        })
        .await;
    running.fleet.stop().await;
}

#[tokio::test]
async fn reports_about_unknown_workers_are_ignored() {
    let running = start(parts(Vec::new()));
    running
        .fleet
        .report_failure(WorkerId(7), FailureKind::Refused);
    running.fleet.report_success(WorkerId(7));
    running.fleet.first_verdicts().await;
    running.fleet.stop().await;
}
