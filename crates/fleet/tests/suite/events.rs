//! Event streams as signs of life, and as the source of known caches.

use std::{sync::Arc, time::Duration};

use contract_id::contract;
use fleet::{CacheSource, FailureKind, WorkerState};
use kv_blocks::{DpRank, Target, WorkerId};
use kv_events::{
    frames,
    vllm::{EventEncoding, WireEvent, WireStored, encode},
};
use zmtp::{Endpoint, Pub, PubSettings};

use crate::{
    fake_engine::FakeEngine,
    setup::{RunningFleet, parts, start, worker},
};

pub(crate) const TARGET: Target = Target {
    worker: WorkerId(0),
    rank: DpRank(0),
};

/// A publisher without a replay socket.
pub(crate) async fn publisher(endpoint: &str) -> (Pub, Endpoint) {
    Pub::bind(&endpoint.parse().unwrap(), PubSettings::default())
        .await
        .unwrap()
}

/// An engine that announces its event endpoint.
pub(crate) async fn publishing_engine(endpoint: &Endpoint, block_size: u32) -> FakeEngine {
    let engine = FakeEngine::serving("m").await;
    engine.vllm(block_size);
    let port = endpoint.port().unwrap();
    engine.answer(
        "/kv_event_sources",
        200,
        format!(r#"{{"0":{{"endpoint":"tcp://*:{port}","topic":""}}}}"#),
    );
    engine
}

/// Publishes once a subscriber is connected: earlier messages cannot be recovered.
pub(crate) async fn store(publisher: &Pub, seq: u64, block_size: u32) {
    publisher
        .watch_subscribers()
        .wait_for(|count| *count > 0)
        .await
        .unwrap();
    let stored = WireStored {
        hashes: vec![(seq + 1).into()],
        tokens: (0..block_size).collect(),
        block_size,
        medium: Some("GPU".to_owned()),
        ..WireStored::default()
    };
    let payload = encode(
        1.0,
        Some(0),
        &[WireEvent::Stored(stored)],
        EventEncoding::CURRENT,
    );
    publisher.send(&frames::encode_live(b"", seq, &payload));
}

pub(crate) async fn live(running: &RunningFleet) {
    running
        .until("live", |snapshot| {
            snapshot.workers[0].is_ready()
                && snapshot.workers[0].cache_source() == CacheSource::Events
        })
        .await;
}

#[tokio::test]
async fn a_live_stream_makes_the_cache_known_and_fills_the_index() {
    let (publisher, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let engine = publishing_engine(&endpoint, 32).await;
    let parts = parts(vec![worker("w1", &engine.url())]);
    let index = Arc::clone(&parts.index);
    let running = start(parts);
    live(&running).await;
    let line = running.verdict(" ready ").await;
    assert!(
        line.ends_with("block=32 events=live replay=no tokenizer=none"),
        "{line}"
    );
    let snapshot = running.fleet.snapshot();
    let candidate = &snapshot.model("m").unwrap().candidates[0];
    assert_eq!(
        (candidate.cache(), candidate.stream_state()),
        (CacheSource::Events, Some("live"))
    );
    store(&publisher, 0, 32).await;
    running
        .until("a block", |_| index.blocks_per_tier(TARGET)[0] == 1)
        .await;
    assert!(
        running
            .metrics()
            .contains("warmroute_kv_events_total{worker=\"w1\",kind=\"stored\"} 1\n")
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_lost_stream_reveals_a_dead_engine_and_clears_its_cache() {
    let (publisher, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let mut engine = publishing_engine(&endpoint, 32).await;
    let parts = parts(vec![worker("w1", &engine.url())]);
    // The next check is 30 s away.
    let index = Arc::clone(&parts.index);
    let running = start(parts);
    live(&running).await;
    store(&publisher, 0, 32).await;
    running
        .until("a block", |_| index.blocks_per_tier(TARGET)[0] == 1)
        .await;

    engine.die().await;
    drop(publisher);
    running
        .until("down", |snapshot| {
            snapshot.workers[0].health.state == WorkerState::Down
        })
        .await;
    running
        .until("an empty index", |_| index.blocks_per_tier(TARGET)[0] == 0)
        .await;

    let (publisher, _) = self::publisher(&endpoint.to_string()).await;
    engine.start();
    live(&running).await;
    store(&publisher, 0, 32).await;
    running
        .until("a new block", |_| index.blocks_per_tier(TARGET)[0] == 1)
        .await;
    running.fleet.stop().await;
}

/// `health`: the status in its last check, which the lost stream triggered.
async fn seen_while_it_was_ending(health: u16) {
    let (publisher, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let mut engine = publishing_engine(&endpoint, 32).await;
    let running = start(parts(vec![worker("w1", &engine.url())]));
    live(&running).await;
    engine.answer("/health", health, "");
    let looks = |engine: &FakeEngine| {
        engine
            .heads()
            .iter()
            .filter(|head| head.starts_with("GET /health "))
            .count()
    };
    let before = looks(&engine);
    drop(publisher);
    running.until("a look", |_| looks(&engine) > before).await;
    engine.die().await;
    // The next check at the usual interval is 30 s away.
    running
        .until("down", |snapshot| {
            snapshot.workers[0].health.state == WorkerState::Down
        })
        .await;
    running.fleet.stop().await;
}

#[tokio::test]
async fn an_engine_whose_port_outlives_its_publisher_is_checked_again() {
    seen_while_it_was_ending(500).await;
}

#[tokio::test]
async fn an_engine_that_shuts_down_its_publisher_first_is_checked_again() {
    seen_while_it_was_ending(200).await;
}

#[tokio::test]
async fn a_lost_publisher_makes_the_cache_predicted_and_the_worker_stays_ready() {
    let (publisher, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let engine = publishing_engine(&endpoint, 32).await;
    let running = start(parts(vec![worker("w1", &engine.url())]));
    live(&running).await;
    drop(publisher);
    let snapshot = running
        .until("predicted", |snapshot| {
            snapshot.workers[0].cache_source() == CacheSource::Predicted
        })
        .await;
    assert!(snapshot.workers[0].is_ready());
    running.fleet.stop().await;
}

#[tokio::test]
async fn the_block_size_of_the_events_applies() {
    let (publisher, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let engine = publishing_engine(&endpoint, 32).await;
    let running = start(parts(vec![worker("w1", &engine.url())]));
    live(&running).await;
    store(&publisher, 0, 64).await;
    running
        .until("64", |snapshot| {
            snapshot.workers[0].cache.block_size.tokens() == 64
        })
        .await;
    running.fleet.stop().await;
}

#[tokio::test]
async fn without_an_announced_endpoint_the_default_port_of_the_workers_host_is_tried() {
    let (_publisher, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let engine = FakeEngine::serving("m").await;
    let other = FakeEngine::serving("m").await;
    let port = endpoint.port().unwrap();
    let mut alone = parts(vec![worker("w1", &engine.url())]);
    alone.config.kv_events.default_port = port;
    let running = start(alone);
    live(&running).await;
    assert_eq!(running.fleet.streams()[0].endpoint, endpoint.to_string());
    running.fleet.stop().await;

    // Two engines on one host: the owner of the events is ambiguous.
    let mut shared = parts(vec![
        worker("w1", &engine.url()),
        worker("w2", &other.url()),
    ]);
    shared.config.kv_events.default_port = port;
    let running = start(shared);
    running.verdict("w1 ").await;
    running.verdict("w2 ").await;
    assert!(running.fleet.streams().is_empty());
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("V3")]
async fn each_worker_has_one_subscription_to_the_default_port_of_its_own_host() {
    let (first, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let port = endpoint.port().unwrap();
    let (second, _) = publisher(&format!("tcp://127.0.0.2:{port}")).await;
    let engines = [
        FakeEngine::serving("m").await,
        FakeEngine::serving_at("127.0.0.2", "m").await,
    ];
    let mut parts = parts(vec![
        worker("w1", &engines[0].url()),
        worker("w2", &engines[1].url()),
    ]);
    parts.config.kv_events.default_port = port;
    let index = Arc::clone(&parts.index);
    let running = start(parts);
    store(&first, 0, 16).await;
    store(&second, 0, 16).await;
    store(&second, 1, 32).await;
    let blocks = |id| {
        index.blocks_per_tier(Target {
            worker: WorkerId(id),
            rank: DpRank(0),
        })[0]
    };
    running
        .until("each its own", |_| (blocks(0), blocks(1)) == (1, 2))
        .await;
    assert_eq!(
        (
            *first.watch_subscribers().borrow(),
            *second.watch_subscribers().borrow()
        ),
        (1, 1)
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_stream_lost_during_a_hanging_check_is_detected_before_the_check_ends() {
    let (publisher, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let engine = publishing_engine(&endpoint, 32).await;
    let mut parts = parts(vec![worker("w1", &engine.url())]);
    parts.config.health_checks.timeout = Duration::from_secs(3600);
    let running = start(parts);
    live(&running).await;
    let checks = || {
        engine
            .heads()
            .iter()
            .filter(|head| head.starts_with("GET /health "))
            .count()
    };
    let before = checks();
    engine.hang("/health");
    running
        .fleet
        .report_failure(WorkerId(0), FailureKind::Unavailable);
    running
        .until("a check that hangs", |_| checks() > before)
        .await;
    drop(publisher);
    running
        .until("predicted", |snapshot| {
            snapshot.workers[0].cache_source() == CacheSource::Predicted
        })
        .await;
    running.fleet.stop().await;
}
