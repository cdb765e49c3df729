//! Event streams from sources other than a publisher at the engine.

use std::sync::Arc;

use config::EventSource;
use fleet::CacheSource;
use kv_blocks::{DpRank, Target, WorkerId};
use kv_events::{
    frames,
    vllm::{EventEncoding, WireEvent, WireStored, encode},
};
use serde_json::json;
use test_programs::ReservedPort;
use zmtp::{Endpoint, Pub, PubSettings};

use crate::{
    events::TARGET,
    fake_engine::FakeEngine,
    setup::{RunningFleet, parts, start, worker},
};

fn worker_number(id: u32) -> Target {
    Target {
        worker: WorkerId(id),
        rank: DpRank(0),
    }
}

/// An engine that connects to the router's socket.
async fn connected(endpoint: &Endpoint) -> Pub {
    let publisher = Pub::connect(endpoint, PubSettings::default()).unwrap();
    publisher
        .watch_subscribers()
        .wait_for(|count| *count > 0)
        .await
        .unwrap();
    publisher
}

fn send(publisher: &Pub, topic: &str, seq: u64, first_token: u32) {
    let stored = WireStored {
        hashes: vec![(seq + 1).into()],
        tokens: (first_token..first_token + 32).collect(),
        block_size: 32,
        medium: Some("GPU".to_owned()),
        ..WireStored::default()
    };
    let payload = encode(
        1.0,
        Some(0),
        &[WireEvent::Stored(stored)],
        EventEncoding::CURRENT,
    );
    publisher.send(&frames::encode_live(topic.as_bytes(), seq, &payload));
}

/// The state of the streams of a worker, as operators see them.
fn stream_states(running: &RunningFleet, worker: &str) -> Vec<api::Name> {
    running
        .fleet
        .streams()
        .into_iter()
        .filter(|report| *report.worker == *worker)
        .map(|report| report.state)
        .collect()
}

#[tokio::test]
async fn workers_share_a_bound_socket_and_the_topic_identifies_the_sender() {
    let engines = [
        FakeEngine::serving("m").await,
        FakeEngine::serving("m").await,
        FakeEngine::serving("m").await,
    ];
    let port = ReservedPort::new();
    let endpoint = format!("tcp://{}", port.address());
    let mut workers: Vec<_> = ["w1", "w2", "w3"]
        .iter()
        .zip(&engines)
        .map(|(name, engine)| worker(name, &engine.url()))
        .collect();
    for worker in &mut workers {
        worker.kv_events.bind = true;
        worker.kv_events.endpoint = Some(endpoint.clone());
    }
    // The third has its own topic; name and address distinguish the first two.
    workers[2].kv_events.topic = "events-of-w3".to_owned();
    let parts = parts(workers);
    let index = Arc::clone(&parts.index);
    let running = start(parts);
    running
        .until("ready", |snapshot| {
            snapshot.workers.iter().all(|worker| worker.is_ready())
        })
        .await;
    assert_eq!(
        stream_states(&running, "w1"),
        ["connecting"],
        "no event has arrived yet"
    );

    let publisher = connected(&endpoint.parse().unwrap()).await;
    send(&publisher, "kv@w1@m", 0, 0);
    let second = engines[1].url().replace("http://", "");
    send(&publisher, &format!("kv@{second}@m"), 0, 100);
    send(&publisher, &format!("kv@{second}@m"), 1, 200);
    send(&publisher, "events-of-w3/rank0", 0, 300);
    send(&publisher, "kv@somebody-else@m", 0, 400);
    let blocks = |id| index.blocks_per_tier(worker_number(id))[0];
    running
        .until("each its own blocks", |_| {
            (blocks(0), blocks(1), blocks(2)) == (1, 2, 1)
        })
        .await;
    let live = |snapshot: &fleet::Snapshot| {
        snapshot
            .workers
            .iter()
            .all(|worker| worker.cache_source() == CacheSource::Events)
    };
    running.until("believed", live).await;
    assert!(
        running
            .metrics()
            .contains("warmroute_kv_events_total{worker=\"w2\",kind=\"stored\"} 2\n")
    );

    // They all share one connection.
    drop(publisher);
    running
        .until("predicted", |snapshot| {
            !snapshot
                .workers
                .iter()
                .any(|w| w.cache_source() == CacheSource::Events)
        })
        .await;
    let publisher = connected(&endpoint.parse().unwrap()).await;
    send(&publisher, "kv@w1@m", 1, 500);
    running
        .until("back", |snapshot| {
            snapshot.workers[0].cache_source() == CacheSource::Events
        })
        .await;
    running.fleet.stop().await;
}

#[tokio::test]
async fn an_engine_with_an_endpoint_list_is_queried_with_the_workers_key() {
    let engine = FakeEngine::serving("m").await;
    let token = json!({"type": "unique_token", "token_id": 7, "token_extra_id": 0});
    let block = json!({"type": "stored_block", "block_hash": 1, "tokens": vec![token; 64], "cache_level": 0, "priority": 35});
    let data = json!({"type": "stored", "parent_hash": null, "blocks": [block]});
    let list = json!([{"event_id": 0, "data": data, "window_size": 4096}]);
    engine.answer("/kv_cache_events", 200, list.to_string());
    let mut worker = worker("w1", &engine.url());
    worker.kv_events.source = EventSource::Poll;
    worker.block_size = kv_blocks::BlockSize::new(64).ok();
    worker.api_key = Some(config::Secret::new("sk-1"));
    let parts = parts(vec![worker]);
    let index = Arc::clone(&parts.index);
    let running = start(parts);
    running
        .until("a block", |_| index.blocks_per_tier(TARGET)[0] == 1)
        .await;
    running
        .until("believed", |snapshot| {
            snapshot.workers[0].cache_source() == CacheSource::Events
        })
        .await;
    let requests = engine
        .heads()
        .into_iter()
        .find(|head| head.starts_with("POST /kv_cache_events "))
        .unwrap();
    assert!(
        requests
            .to_ascii_lowercase()
            .contains("authorization: bearer sk-1\r\n"),
        "{requests}"
    );
    let streams = running.fleet.streams();
    assert_eq!(
        (&*streams[0].source, streams[0].endpoint.as_str()),
        ("poll", &*format!("{}/kv_cache_events", engine.url()))
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn an_unreadable_token_file_is_reported_and_the_worker_serves_without_events() {
    let engine = FakeEngine::serving("m").await;
    let mut worker = worker("w1", &engine.url());
    worker.kv_events.source = EventSource::Sse;
    let nobody = ReservedPort::new();
    worker.kv_events.endpoint = Some(format!("http://{}/v1/kv_events", nobody.address()));
    worker.kv_events.token_file = Some("/nonexistent/token".into());
    let running = start(parts(vec![worker]));
    let line = running.verdict(" ready ").await;
    assert!(line.contains("events=none"), "{line}");
    assert!(running.fleet.streams().is_empty());
    running.fleet.stop().await;
}
