//! Workers that come and go, and that are configured otherwise, while the fleet runs.

use contract_id::contract;
use fleet::WorkerState;

use crate::{
    fake_engine::FakeEngine,
    setup::{parts, start, worker},
};

#[tokio::test]
async fn a_worker_that_stays_keeps_number_and_state_and_is_asked_anew_under_its_new_settings() {
    let engine = FakeEngine::serving("m").await;
    let parts = parts(vec![worker("w1", &engine.url())]);
    let mut roster = parts.config.clone();
    let running = start(parts);
    let before = running.ready("w1").await;

    roster.workers[0].weight = 3.0;
    running.fleet.apply(&roster).unwrap();
    let after = running.fleet.snapshot();
    let now = after.worker_named("w1").unwrap();
    assert_eq!(
        (now.id, now.state, now.since),
        (before.id, WorkerState::Ready, before.since),
        "it was never away"
    );
    assert!((now.weight - 3.0).abs() < f64::EPSILON);

    // What only the worker can say is asked for, and it is used meanwhile.
    engine.models(&["m", "n"]);
    roster.workers[0].models = vec!["n".to_owned()];
    running.fleet.apply(&roster).unwrap();
    let snapshot = running
        .until("n alone", |snapshot| snapshot.model("m").is_none())
        .await;
    assert_eq!(snapshot.model("n").unwrap().candidates.len(), 1);
    assert_eq!(snapshot.worker_named("w1").unwrap().since, before.since);
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("F69")]
async fn a_worker_that_is_missing_gets_no_requests_and_stays_until_it_is_seen_off() {
    let (one, two) = (
        FakeEngine::serving("m").await,
        FakeEngine::serving("m").await,
    );
    let parts = parts(vec![worker("w1", &one.url()), worker("w2", &two.url())]);
    let mut roster = parts.config.clone();
    let running = start(parts);
    running.ready("w1").await;
    let gone = running.ready("w2").await;

    roster.workers.truncate(1);
    running.fleet.apply(&roster).unwrap();
    let snapshot = running.fleet.snapshot();
    assert_eq!(
        snapshot.worker(gone.id).unwrap().state,
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

    // Who comes again is another one, also by number.
    roster.workers.push(worker("w2", &two.url()));
    running.fleet.apply(&roster).unwrap();
    assert_ne!(running.ready("w2").await.id, gone.id);
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_worker_at_another_url_is_another_one_and_both_can_be_told_apart() {
    let (one, two) = (
        FakeEngine::serving("m").await,
        FakeEngine::serving("m").await,
    );
    let parts = parts(vec![worker("w1", &one.url())]);
    let mut roster = parts.config.clone();
    let running = start(parts);
    let old = running.ready("w1").await;

    roster.workers = vec![worker("w1", &two.url())];
    running.fleet.apply(&roster).unwrap();
    let new = running.ready("w1").await;
    assert_ne!((new.id, &new.url), (old.id, &old.url));
    let snapshot = running.fleet.snapshot();
    assert_eq!(
        &*snapshot.worker(old.id).unwrap().name,
        format!("w1~{}", old.id.0)
    );
    assert_eq!(snapshot.model("m").unwrap().candidates.len(), 1);

    // An address that cannot be used changes nothing.
    roster.workers = vec![worker("w1", "nonsense")];
    assert!(running.fleet.apply(&roster).is_err());
    assert_eq!(
        running.fleet.snapshot().worker_named("w1").unwrap().id,
        new.id
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_drained_worker_stays_drained_over_a_change_and_is_used_again_when_it_is_resumed() {
    let engine = FakeEngine::serving("m").await;
    let parts = parts(vec![worker("w1", &engine.url())]);
    let mut roster = parts.config.clone();
    let running = start(parts);
    let id = running.ready("w1").await.id;
    assert_eq!(running.fleet.drain("w1", true), Some(id));
    roster.workers[0].weight = 2.0;
    running.fleet.apply(&roster).unwrap();
    assert_eq!(
        running.fleet.snapshot().workers[0].state,
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
        running.fleet.snapshot().workers[0].state,
        WorkerState::Ready
    );
    assert_eq!(running.fleet.drain("nobody", true), None);
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_worker_that_comes_again_has_its_name_also_while_the_one_before_still_ends_its_requests()
{
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
async fn who_is_to_believe_other_certificates_is_connected_to_anew() {
    let engine = FakeEngine::serving("m").await;
    let parts = parts(vec![worker("w1", &engine.url())]);
    let mut roster = parts.config.clone();
    let running = start(parts);
    let before = running.ready("w1").await;
    roster.workers[0].tls.insecure_skip_verify = true;
    running.fleet.apply(&roster).unwrap();
    let after = running.ready("w1").await;
    assert!(after.id != before.id && !after.verified);
    running.fleet.stop().await;
}
