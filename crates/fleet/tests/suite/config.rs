//! Workers added, removed and reconfigured while the fleet runs.

use contract_id::contract;
use fleet::WorkerState;

use crate::{
    fake_engine::FakeEngine,
    setup::{parts, start, worker},
};

#[tokio::test]
async fn a_kept_worker_keeps_number_and_state_and_is_probed_with_its_new_settings() {
    let engine = FakeEngine::serving("m").await;
    let parts = parts(vec![worker("w1", &engine.url())]);
    let mut config = parts.config.clone();
    let running = start(parts);
    let before = running.ready("w1").await;

    config.workers[0].weight = 3.0;
    running.fleet.apply(&config).unwrap();
    let after = running.fleet.snapshot();
    let now = after.worker_named("w1").unwrap();
    assert_eq!(
        (now.id, now.health.state, now.health.since),
        (before.id, WorkerState::Ready, before.health.since),
        "it was never away"
    );
    assert!((now.weight - 3.0).abs() < f64::EPSILON);

    // The worker is probed for its own data, and is used in the meantime.
    engine.models(&["m", "n"]);
    config.workers[0].models = vec!["n".to_owned()];
    running.fleet.apply(&config).unwrap();
    let snapshot = running
        .until("n alone", |snapshot| snapshot.model("m").is_none())
        .await;
    assert_eq!(snapshot.model("n").unwrap().candidates.len(), 1);
    assert_eq!(
        snapshot.worker_named("w1").unwrap().health.since,
        before.health.since
    );
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("F69")]
async fn a_removed_worker_gets_no_requests_and_stays_until_it_is_released() {
    let (one, two) = (
        FakeEngine::serving("m").await,
        FakeEngine::serving("m").await,
    );
    let parts = parts(vec![worker("w1", &one.url()), worker("w2", &two.url())]);
    let mut config = parts.config.clone();
    let running = start(parts);
    running.ready("w1").await;
    let gone = running.ready("w2").await;

    config.workers.truncate(1);
    running.fleet.apply(&config).unwrap();
    let snapshot = running.fleet.snapshot();
    assert_eq!(
        snapshot.worker(gone.id).unwrap().health.state,
        WorkerState::Draining
    );
    let model = snapshot.model("m").unwrap();
    assert_eq!(
        (model.candidates.len(), model.unusable[0].reason()),
        (1, "draining")
    );
    assert_eq!(running.fleet.leaving(), [gone.id]);
    running.fleet.remove(gone.id).await;
    assert!(
        running.fleet.snapshot().worker(gone.id).is_none() && running.fleet.leaving().is_empty()
    );
    assert!(!running.metrics().contains("w2"));

    // A returning worker is a new one with a new number.
    config.workers.push(worker("w2", &two.url()));
    running.fleet.apply(&config).unwrap();
    assert_ne!(running.ready("w2").await.id, gone.id);
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_worker_with_a_new_url_is_a_new_worker_and_both_are_distinguishable() {
    let (one, two) = (
        FakeEngine::serving("m").await,
        FakeEngine::serving("m").await,
    );
    let parts = parts(vec![worker("w1", &one.url())]);
    let mut config = parts.config.clone();
    let running = start(parts);
    let old = running.ready("w1").await;

    config.workers = vec![worker("w1", &two.url())];
    running.fleet.apply(&config).unwrap();
    let new = running.ready("w1").await;
    assert_ne!((new.id, &new.connection.url), (old.id, &old.connection.url));
    let snapshot = running.fleet.snapshot();
    assert_eq!(
        &*snapshot.worker(old.id).unwrap().name,
        format!("w1~{}", old.id.0)
    );
    assert_eq!(snapshot.model("m").unwrap().candidates.len(), 1);

    // An invalid address changes nothing.
    config.workers = vec![worker("w1", "nonsense")];
    assert!(running.fleet.apply(&config).is_err());
    assert_eq!(
        running.fleet.snapshot().worker_named("w1").unwrap().id,
        new.id
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_drained_worker_stays_drained_across_a_reload_until_it_is_resumed() {
    let engine = FakeEngine::serving("m").await;
    let parts = parts(vec![worker("w1", &engine.url())]);
    let mut config = parts.config.clone();
    let running = start(parts);
    let id = running.ready("w1").await.id;
    assert_eq!(running.fleet.drain("w1", true), Some(id));
    config.workers[0].weight = 2.0;
    running.fleet.apply(&config).unwrap();
    assert_eq!(
        running.fleet.snapshot().workers[0].health.state,
        WorkerState::Draining
    );
    assert!(
        running
            .fleet
            .snapshot()
            .model("m")
            .unwrap()
            .candidates
            .is_empty(),
        "not even in panic"
    );
    assert_eq!(running.fleet.drain("w1", false), Some(id));
    assert_eq!(
        running.fleet.snapshot().workers[0].health.state,
        WorkerState::Ready
    );
    assert_eq!(running.fleet.drain("nobody", true), None);
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_returning_worker_has_its_name_while_its_predecessor_finishes_requests() {
    let (one, two) = (
        FakeEngine::serving("m").await,
        FakeEngine::serving("m").await,
    );
    let parts = parts(vec![worker("w1", &one.url()), worker("w2", &two.url())]);
    let both = parts.config.clone();
    let running = start(parts);
    running.ready("w1").await;
    let old = running.ready("w2").await;
    let mut alone = both.clone();
    alone.workers.truncate(1);
    running.fleet.apply(&alone).unwrap();
    running.fleet.apply(&both).unwrap();
    let new = running.ready("w2").await;
    assert_ne!(new.id, old.id);
    assert_eq!(
        &*running.fleet.snapshot().worker(old.id).unwrap().name,
        format!("w2~{}", old.id.0)
    );
    running.fleet.apply(&both).unwrap();
    assert_eq!(
        &*running.fleet.snapshot().worker(old.id).unwrap().name,
        format!("w2~{}", old.id.0),
        "once"
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn changed_certificate_settings_reconnect_the_worker() {
    let engine = FakeEngine::serving("m").await;
    let parts = parts(vec![worker("w1", &engine.url())]);
    let mut config = parts.config.clone();
    let running = start(parts);
    let before = running.ready("w1").await;
    config.workers[0].tls.insecure_skip_verify = true;
    running.fleet.apply(&config).unwrap();
    let after = running.ready("w1").await;
    assert!(after.id != before.id && !after.connection.verified);
    running.fleet.stop().await;
}
