//! Up, down, loading, back.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use contract_id::contract;
use fleet::{FailureKind, WorkerState};
use kv_blocks::{HashScheme, PromptIdentity};

use crate::{
    fake_engine::FakeEngine,
    setup::{parts, start, worker},
};

#[tokio::test]
async fn a_worker_down_at_the_start_is_reported_and_used_once_it_appears() {
    let mut engine = FakeEngine::bound().await;
    engine.models(&["m"]);
    engine.answer("/health", 200, "");
    let running = start(parts(vec![worker("w1", &engine.url())]));
    running.fleet.first_verdicts().await;
    let expected = format!(
        "w1 {} down connection refused: start the engine or check the url",
        engine.url()
    );
    assert_eq!(*running.verdicts.lock(), [expected]);
    assert_eq!(running.fleet.snapshot().ready(), 0);
    assert!(running.fleet.snapshot().model("m").is_none());

    engine.start();
    let view = running.ready("w1").await;
    assert_eq!(view.health.last_error, None);
    let snapshot = running.fleet.snapshot();
    assert_eq!(
        snapshot.model("m").unwrap().candidates[0].target.worker,
        view.id
    );
    running
        .verdict(" ready openai model=m block=16(assumed) events=none replay=no tokenizer=none")
        .await;
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("B4")]
async fn a_refused_request_takes_the_worker_down_at_once_and_a_restart_brings_it_back() {
    let mut engine = FakeEngine::serving("m").await;
    let running = start(parts(vec![worker("w1", &engine.url())]));
    let view = running.ready("w1").await;

    engine.die().await;
    running.fleet.report_failure(view.id, FailureKind::Refused);
    // No wait here: the next decision must see it.
    let snapshot = running.fleet.snapshot();
    assert_eq!(snapshot.workers[0].health.state, WorkerState::Down);
    assert!(snapshot.model("m").unwrap().candidates.is_empty());
    assert_eq!(
        snapshot.model("m").unwrap().unusable[0].reason(),
        "unhealthy"
    );
    running.verdict(" down connection refused").await;

    engine.start();
    let back = running.ready("w1").await;
    assert_eq!(back.id, view.id);
    running.fleet.stop().await;
}

#[tokio::test]
async fn an_ended_process_is_counted_once_even_if_it_is_back_before_a_check() {
    let mut engine = FakeEngine::serving("m").await;
    let mut parts = parts(vec![worker("w1", &engine.url())]);
    parts.config.health_checks.unhealthy_threshold = NonZeroU32::MIN;
    let running = start(parts);
    let view = running.ready("w1").await;
    assert_eq!(view.health.ended, 0);
    for ended in 1..=2 {
        engine.die().await;
        running.fleet.report_failure(view.id, FailureKind::Refused);
        running.fleet.report_failure(view.id, FailureKind::Refused);
        engine.start();
        assert_eq!(running.ready("w1").await.health.ended, ended);
    }
    // A failed check is no evidence about the process.
    engine.answer("/health", 500, "");
    running.fleet.report_failure(view.id, FailureKind::Status);
    running
        .until("down", |snapshot| {
            snapshot.workers[0].health.state == WorkerState::Down
        })
        .await;
    assert_eq!(running.fleet.snapshot().workers[0].health.ended, 2);
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("DY12")]
async fn a_load_that_can_no_longer_be_read_expires() {
    let engine = FakeEngine::serving("m").await;
    engine.vllm(32);
    let running = start(parts(vec![worker("w1", &engine.url())]));
    running
        .until("a load", |snapshot| {
            snapshot.workers[0].load.running.is_some()
        })
        .await;
    engine.answer("/metrics", 500, "");
    running
        .until("no load", |snapshot| {
            snapshot.workers[0].load.running.is_none()
        })
        .await;
    running.ready("w1").await;
    engine.vllm(32);
    running
        .until("a load again", |snapshot| {
            snapshot.workers[0].load.running.is_some()
        })
        .await;
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("DY12")]
async fn a_load_reported_by_a_returning_worker_expires_too() {
    let mut engine = FakeEngine::serving("m").await;
    engine.vllm(32);
    let running = start(parts(vec![worker("w1", &engine.url())]));
    let has_load = |snapshot: &fleet::Snapshot| {
        snapshot.workers[0].is_ready() && snapshot.workers[0].load.running.is_some()
    };
    running.until("a load", has_load).await;
    engine.answer("/metrics", 500, "");
    running
        .until("no load", |snapshot| {
            snapshot.workers[0].load.running.is_none()
        })
        .await;
    // It reports its load during identification, and never again.
    engine.die().await;
    running
        .fleet
        .report_failure(running.ready("w1").await.id, FailureKind::Refused);
    engine.vllm(32);
    engine.start();
    running.until("a load again", has_load).await;
    engine.answer("/metrics", 500, "");
    running
        .until("no load again", |snapshot| {
            snapshot.workers[0].load.running.is_none()
        })
        .await;
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_restart_with_another_model_gets_no_requests_for_the_old_one() {
    let mut engine = FakeEngine::serving("old").await;
    let running = start(parts(vec![worker("w1", &engine.url())]));
    let view = running.ready("w1").await;
    engine.die().await;
    running.fleet.report_failure(view.id, FailureKind::Refused);
    engine.models(&["new"]);
    engine.start();
    running.ready("w1").await;
    let snapshot = running.fleet.snapshot();
    assert!(snapshot.model("old").is_none());
    assert_eq!(
        &*snapshot.model("new").unwrap().candidates[0].namespace_model,
        "new"
    );
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("CH3", "CH4", "CH5")]
async fn a_loading_worker_gets_no_requests_until_it_has_loaded() {
    let engine = FakeEngine::serving("m").await;
    engine.answer("/health", 503, "loading");
    let running = start(parts(vec![worker("w1", &engine.url())]));
    running
        .verdict(" warming_up answered /health with 503: the engine is loading, wait")
        .await;
    assert_eq!(running.fleet.snapshot().ready(), 0);
    engine.answer("/health", 200, "");
    running.ready("w1").await;

    // A worker in use that reports loading gets no requests at once, and a request's 503 triggers
    // the check.
    engine.answer("/health", 503, "loading");
    running.fleet.report_failure(
        running.fleet.snapshot().workers[0].id,
        FailureKind::Unavailable,
    );
    running
        .until("warming up", |snapshot| {
            snapshot.workers[0].health.state == WorkerState::WarmingUp
        })
        .await;
    assert_eq!(
        running.fleet.snapshot().model("m").unwrap().unusable[0].reason(),
        "warming_up"
    );
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("CH7")]
async fn a_missing_health_path_is_replaced_by_the_next_one_and_any_other_status_is_not() {
    let plain = FakeEngine::serving("m").await;
    plain.answer("/health", 404, "");
    let broken = FakeEngine::serving("m").await;
    broken.answer("/health", 500, "");
    let running = start(parts(vec![
        worker("plain", &plain.url()),
        worker("broken", &broken.url()),
    ]));
    running.ready("plain").await;
    running
        .verdict(" down answered /health with 500: look at the engine's log")
        .await;
    assert!(
        !broken
            .heads()
            .iter()
            .any(|head| head.starts_with("GET /v1/models "))
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_worker_that_accepts_and_never_answers_delays_no_other() {
    let stuck = FakeEngine::serving("m").await;
    stuck.hang("/health");
    let well = FakeEngine::serving("m").await;
    let mut parts = parts(vec![
        worker("stuck", &stuck.url()),
        worker("well", &well.url()),
    ]);
    parts.config.health_checks.timeout = Duration::from_millis(300);
    let running = start(parts);
    running.ready("well").await;
    running
        .verdict("down did not answer /health within 300ms")
        .await;
    tokio::time::timeout(Duration::from_secs(60), running.fleet.stop())
        .await
        .expect("stopping waits for no worker");
}

#[tokio::test]
async fn a_stop_during_a_check_does_not_wait_for_its_answer() {
    let stuck = FakeEngine::serving("m").await;
    stuck.hang("/health");
    let mut parts = parts(vec![worker("stuck", &stuck.url())]);
    parts.config.health_checks.timeout = Duration::from_secs(3600);
    let running = start(parts);
    while stuck.heads().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::timeout(Duration::from_secs(60), running.fleet.stop())
        .await
        .expect("the check is dropped");
    running.fleet.stop().await;
}

#[tokio::test]
async fn an_invalid_answer_only_makes_a_worker_unusable() {
    for (body, expected) in [
        (
            "<html>hello</html>".to_owned(),
            "something else than a model list",
        ),
        (
            r#"{"object":"list","data":[]}"#.to_owned(),
            "lists no model",
        ),
        ("x".repeat(5 << 20), "more than 4194304 bytes"),
    ] {
        let engine = FakeEngine::serving("m").await;
        engine.answer("/v1/models", 200, body);
        let running = start(parts(vec![worker("w1", &engine.url())]));
        running.verdict(expected).await;
        assert_eq!(
            running.fleet.snapshot().workers[0].health.state,
            WorkerState::Down
        );
        running.fleet.stop().await;
    }
}

#[tokio::test]
async fn a_restarted_worker_is_used_soon_after_it_answers_despite_slow_side_probes() {
    let mut engine = FakeEngine::serving("m").await;
    engine.vllm(32);
    let mut parts = parts(vec![worker("w1", &engine.url())]);
    parts.config.health_checks.recovery_interval = Duration::from_millis(250);
    parts.config.health_checks.recovery_max_interval = Duration::from_millis(250);
    let running = start(parts);
    let view = running.ready("w1").await;
    let clock = net::Clock::system();
    let mut shortest = Duration::MAX;
    for (slow, outage_ms) in [
        (false, 300),
        (false, 430),
        (true, 560),
        (true, 690),
        (true, 620),
    ] {
        engine.die().await;
        running.fleet.report_failure(view.id, FailureKind::Refused);
        // Long enough for connect probes at a steady interval, and at another phase of it each
        // time.
        tokio::time::sleep(Duration::from_millis(outage_ms)).await;
        if slow {
            let sides = [
                "/metrics",
                "/version",
                "/kv_event_sources",
                "/sim/tokenizer.json",
            ];
            sides.iter().for_each(|path| engine.hang(path));
        }
        engine.start();
        let from = clock.now();
        running.ready("w1").await;
        let took = clock.now().since(from);
        println!(
            "back in use {} ms after the port answers (slow side answers: {slow})",
            took.as_millis()
        );
        if slow {
            shortest = shortest.min(took);
        }
    }
    // The timeout of a side probe is 3 s, which every attempt would reach; a busy machine delays
    // only single attempts.
    assert!(shortest < Duration::from_millis(2500), "{shortest:?}");
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_refused_request_clears_predictions_even_of_a_worker_already_down() {
    let engine = FakeEngine::serving("m").await;
    let mut parts = parts(vec![worker("w1", &engine.url())]);
    parts.config.health_checks.unhealthy_threshold = NonZeroU32::MIN;
    let (index, clock) = (Arc::clone(&parts.index), parts.clock);
    let running = start(parts);
    let view = running.ready("w1").await;
    let candidate = running.fleet.snapshot().model("m").unwrap().candidates[0].clone();
    let namespace = candidate.namespace(None, PromptIdentity::Tokens);
    let chain = HashScheme::default().chain(None, &[7; 64], candidate.block_size());
    engine.answer("/health", 500, "");
    running
        .fleet
        .report_failure(view.id, FailureKind::Unavailable);
    running
        .until("down", |snapshot| {
            snapshot.workers[0].health.state == WorkerState::Down
        })
        .await;
    index.predict(
        candidate.target,
        &namespace,
        &chain,
        clock.now(),
        Duration::from_secs(100),
    );
    assert!(
        running.fleet.snapshot().model("m").unwrap().panic,
        "it may be the checks that fail"
    );
    running.fleet.report_failure(view.id, FailureKind::Refused);
    assert_eq!(index.lookup(&namespace, &chain, clock.now()), []);
    assert!(!running.fleet.snapshot().model("m").unwrap().panic);
    running.fleet.stop().await;
}
