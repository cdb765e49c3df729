//! The worker's own data: models, block size, endpoints.

use std::{num::NonZeroU32, time::Duration};

use contract_id::contract;
use fleet::{CacheSource, EngineKind, FailureKind, WorkerView};
use kv_blocks::BlockSize;

use crate::{
    fake_engine::FakeEngine,
    setup::{parts, start, worker},
};

#[tokio::test]
async fn a_vllm_engine_is_recognised_with_its_version_block_size_and_cache() {
    let engine = FakeEngine::serving("qwen").await;
    engine.vllm(32);
    let running = start(parts(vec![worker("w1", &engine.url())]));
    let view = running.ready("w1").await;
    assert_eq!(view.engine.kind, EngineKind::Vllm);
    assert_eq!(view.engine.version.as_deref(), Some("0.32.0"));
    assert_eq!(view.cache.block_size.tokens(), 32);
    assert_eq!(view.cache.num_blocks, Some(512));
    assert_eq!(view.cache_source(), CacheSource::Predicted);
    let want = format!(
        "w1 {} ready vllm 0.32.0 model=qwen block=32 events=none replay=no tokenizer=none",
        engine.url()
    );
    assert_eq!(running.verdict(" ready ").await, want);
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_configured_block_size_overrides_the_engines() {
    let engine = FakeEngine::serving("m").await;
    engine.vllm(32);
    let mut own = worker("w1", &engine.url());
    own.block_size = Some(BlockSize::new(64).unwrap());
    let running = start(parts(vec![own]));
    let view = running.ready("w1").await;
    assert_eq!(view.cache.block_size.tokens(), 64);
    assert!(view.cache.block_size_known);
    running.fleet.stop().await;
}

#[tokio::test]
async fn events_are_followed_at_the_engines_endpoint_on_its_own_host() {
    let engine = FakeEngine::serving("m").await;
    engine.vllm(32);
    engine.answer(
        "/kv_event_sources",
        200,
        r#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:1","replay_endpoint":"tcp://0.0.0.0:2","topic":""},
            "1":{"endpoint":"tcp://[::]:3","replay_endpoint":null,"topic":""}}"#,
    );
    let running = start(parts(vec![worker("w1", &engine.url())]));
    let view = running.ready("w1").await;
    assert_eq!(view.dp_ranks(), 2);
    assert_eq!(view.targets().count(), 2);
    running
        .until("streams", |_| running.fleet.streams().len() == 2)
        .await;
    let streams = running.fleet.streams();
    assert_eq!(streams[0].endpoint, "tcp://127.0.0.1:1");
    assert_eq!(
        streams[0].replay_endpoint.as_deref(),
        Some("tcp://127.0.0.1:2")
    );
    assert_eq!(
        (streams[1].dp_rank, streams[1].endpoint.as_str()),
        (1, "tcp://127.0.0.1:3")
    );
    assert_eq!(streams[1].replay_endpoint, None);
    // Nothing listens there: until the stream is live the cache is predicted, and two ranks are two
    // candidates.
    let snapshot = running.fleet.snapshot();
    let model = snapshot.model("m").unwrap();
    assert_eq!(model.candidates.len(), 2);
    assert_eq!(model.candidates[1].cache(), CacheSource::Predicted);
    assert_eq!(model.candidates[1].stream_state(), Some("connecting"));
    running.fleet.stop().await;
    assert!(running.fleet.streams().is_empty());
}

#[tokio::test]
async fn events_are_not_followed_when_they_are_switched_off() {
    let engine = FakeEngine::serving("m").await;
    engine.vllm(32);
    engine.answer(
        "/kv_event_sources",
        200,
        r#"{"0":{"endpoint":"tcp://*:1","topic":""}}"#,
    );
    let mut parts = parts(vec![worker("w1", &engine.url())]);
    parts.config.kv_events.enabled = false;
    let running = start(parts);
    running.verdict(" events=off ").await;
    assert!(running.fleet.streams().is_empty());
    running.fleet.stop().await;
}

#[tokio::test]
async fn one_publisher_is_not_credited_to_two_workers() {
    let mut workers = Vec::new();
    let engines = [
        FakeEngine::serving("m").await,
        FakeEngine::serving("m").await,
    ];
    for (name, engine) in ["w1", "w2"].iter().zip(&engines) {
        let mut own = worker(name, &engine.url());
        own.kv_events.endpoint = Some("tcp://127.0.0.1:1".to_owned());
        workers.push(own);
    }
    let running = start(parts(workers));
    running.ready("w1").await;
    running.ready("w2").await;
    running.verdict("w1 ").await;
    running.verdict("w2 ").await;
    assert_eq!(running.fleet.streams().len(), 1);
    running.fleet.stop().await;
}

#[tokio::test]
async fn configured_ranks_have_streams_on_consecutive_ports() {
    let engine = FakeEngine::serving("m").await;
    let mut own = worker("w1", &engine.url());
    own.dp_ranks = NonZeroU32::new(3);
    own.kv_events.endpoint = Some("tcp://127.0.0.1:1".to_owned());
    let running = start(parts(vec![own]));
    running
        .until("streams", |_| running.fleet.streams().len() == 3)
        .await;
    let endpoints: Vec<_> = running
        .fleet
        .streams()
        .into_iter()
        .map(|stream| stream.endpoint)
        .collect();
    assert_eq!(
        endpoints,
        [
            "tcp://127.0.0.1:1",
            "tcp://127.0.0.1:2",
            "tcp://127.0.0.1:3"
        ]
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn the_model_list_is_the_union_over_workers_with_adapters() {
    let one = FakeEngine::serving("a").await;
    let two = FakeEngine::serving("b").await;
    two.answer(
        "/v1/models",
        200,
        r#"{"data":[{"id":"b","created":9,"owned_by":"vllm","root":"org/b","max_model_len":2048},{"id":"a","created":3,"max_model_len":1024},
            {"id":"ad1","parent":"b","created":11}]}"#,
    );
    let running = start(parts(vec![
        worker("w1", &one.url()),
        worker("w2", &two.url()),
    ]));
    running.ready("w1").await;
    running.ready("w2").await;
    let snapshot = running.fleet.snapshot();
    let list = snapshot.model_list();
    let ids: Vec<_> = list.data.iter().map(|model| &*model.id).collect();
    assert_eq!(ids, ["a", "ad1", "b"]);
    assert_eq!(list.data[0].created, 3);
    assert_eq!(list.data[0].max_model_len, Some(1024));
    assert_eq!(list.data[1].parent.as_deref(), Some("b"));
    assert_eq!(list.data[2].root.as_deref(), Some("org/b"));
    let adapter = &snapshot.model("ad1").unwrap().candidates[0];
    assert_eq!(&*adapter.namespace_model, "b");
    assert_eq!(adapter.lora.as_deref(), Some("ad1"));
    assert_eq!(snapshot.model("a").unwrap().candidates.len(), 2);
    let reports = snapshot.model_reports();
    assert_eq!(
        reports[0].workers,
        ["w1", "w2"].map(std::sync::Arc::<str>::from)
    );
    assert_eq!(reports[0].block_sizes, [16]);
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("CH30")]
async fn a_worker_serves_only_the_models_it_is_configured_for() {
    let engine = FakeEngine::serving("a").await;
    engine.models(&["a", "b"]);
    let mut own = worker("w1", &engine.url());
    own.models = vec!["b".to_owned()];
    let mut wrong = worker("w2", &engine.url());
    wrong.models = vec!["c".to_owned()];
    let running = start(parts(vec![own, wrong]));
    running.ready("w1").await;
    assert!(running.fleet.snapshot().model("a").is_none());
    assert!(running.fleet.snapshot().model("b").is_some());
    running.verdict("w2 ").await;
    running
        .verdict("down lists a, b and none of c: correct this worker's models")
        .await;
    running.fleet.stop().await;
}

#[tokio::test]
async fn probes_send_the_workers_own_key() {
    let engine = FakeEngine::serving("m").await;
    let mut own = worker("w1", &engine.url());
    own.api_key = Some(config::Secret::new("k-123"));
    let running = start(parts(vec![own]));
    running.ready("w1").await;
    let heads = engine.heads();
    assert!(
        heads
            .iter()
            .all(|head| head.contains("authorization: Bearer k-123\r\n")),
        "{heads:?}"
    );
    assert!(!format!("{:?}", running.fleet.snapshot()).contains("k-123"));
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_missing_key_is_reported_as_the_problem() {
    let engine = FakeEngine::serving("m").await;
    engine.answer("/v1/models", 401, "");
    let running = start(parts(vec![worker("w1", &engine.url())]));
    running
        .verdict("down answered /v1/models with 401: set this worker's api_key to the engine's key")
        .await;
    running.fleet.stop().await;
}

#[tokio::test]
async fn metrics_show_states_and_cache_sources() {
    let engine = FakeEngine::serving("m").await;
    engine.vllm(32);
    engine.answer(
        "/kv_event_sources",
        200,
        r#"{"0":{"endpoint":"tcp://*:1","topic":""}}"#,
    );
    let running = start(parts(vec![worker("w1", &engine.url())]));
    running.verdict(" ready ").await;
    let text = running.metrics();
    for line in [
        "warmroute_workers{state=\"ready\"} 1\n",
        "warmroute_workers{state=\"down\"} 0\n",
        "warmroute_cache_source{worker=\"w1\",source=\"predicted\"} 1\n",
        "warmroute_kv_stream_state{worker=\"w1\",state=\"connecting\"} 1\n",
        "warmroute_kv_events_total{worker=\"w1\",kind=\"stored\"} 0\n",
        "warmroute_kv_decode_errors_total{worker=\"w1\"} 0\n",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_missing_answer_to_a_side_probe_discards_nothing() {
    let mut engine = FakeEngine::serving("m").await;
    engine.vllm(32);
    engine.answer(
        "/kv_event_sources",
        200,
        r#"{"0":{"endpoint":"tcp://*:1"},"1":{"endpoint":"tcp://*:2"}}"#,
    );
    let mut parts = parts(vec![worker("w1", &engine.url())]);
    parts.config.health_checks.timeout = Duration::from_millis(300);
    let running = start(parts);
    let known = |view: &WorkerView| {
        (
            view.engine.kind,
            view.engine.version.as_deref().map(str::to_owned),
            view.cache.num_blocks,
            view.cache.block_size,
            view.dp_ranks(),
        )
    };
    // A busy machine may miss an answer of the first probe.
    running
        .until("the whole view", |snapshot| {
            snapshot.worker_named("w1").is_some_and(|view| {
                let parts = (view.engine.kind, view.dp_ranks(), view.cache.num_blocks);
                view.is_ready() && parts == (EngineKind::Vllm, 2, Some(512))
            })
        })
        .await;
    let before = running.ready("w1").await;
    let probes_sent = |engine: &FakeEngine| {
        let heads = engine.heads();
        let probes = heads
            .iter()
            .filter(|head| head.starts_with("GET /version "));
        probes.count()
    };
    let sent_before = probes_sent(&engine);

    let sides = ["/version", "/metrics", "/kv_event_sources"];
    sides.iter().for_each(|path| engine.hang(path));
    engine.die().await;
    running
        .fleet
        .report_failure(before.id, FailureKind::Refused);
    engine.start();
    assert_eq!(known(&*running.ready("w1").await), known(&before));
    // Once the worker is in use it is probed again with a longer timeout; a missing answer still
    // changes nothing.
    running
        .until("the probe with the longer timeout", |_| {
            probes_sent(&engine) == sent_before + 2
        })
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(known(&running.fleet.snapshot().workers[0]), known(&before));
    assert_eq!(running.fleet.streams().len(), 2);

    // An answer with less information is accepted.
    engine.answer(
        "/kv_event_sources",
        200,
        r#"{"0":{"endpoint":"tcp://*:1"}}"#,
    );
    engine.die().await;
    running
        .fleet
        .report_failure(before.id, FailureKind::Refused);
    engine.start();
    running
        .until("one rank", |snapshot| snapshot.workers[0].dp_ranks() == 1)
        .await;
    running.fleet.stop().await;
}

#[tokio::test]
async fn the_models_of_an_aggregator_do_not_share_their_caches() {
    let engine = FakeEngine::serving("a").await;
    engine.answer(
        "/v1/models",
        200,
        r#"{"data":[{"id":"a","root":"r1"},{"id":"alias","root":"r1"},{"id":"b","root":"r2"},{"id":"c"},
            {"id":"lora","parent":"b"}]}"#,
    );
    let running = start(parts(vec![worker("w1", &engine.url())]));
    running.ready("w1").await;
    let snapshot = running.fleet.snapshot();
    let space = |id: &str| {
        snapshot.model(id).unwrap().candidates[0]
            .namespace_model
            .to_string()
    };
    assert_eq!(
        ["a", "alias", "b", "c", "lora"].map(space),
        ["a", "a", "b", "c", "b"]
    );
    running.fleet.stop().await;
    // One engine process with events has one model under any name.
    engine.answer(
        "/kv_event_sources",
        200,
        r#"{"0":{"endpoint":"tcp://*:1"}}"#,
    );
    let running = start(parts(vec![worker("w1", &engine.url())]));
    running
        .until("a stream", |snapshot| {
            snapshot.workers[0].is_ready() && !running.fleet.streams().is_empty()
        })
        .await;
    let snapshot = running.fleet.snapshot();
    assert_eq!(
        &*snapshot.model("c").unwrap().candidates[0].namespace_model,
        "a"
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_publisher_released_by_its_worker_is_followed_for_the_worker_that_was_refused_it() {
    let one = FakeEngine::serving("m").await;
    let two = FakeEngine::serving("m").await;
    let mut engines = [one, two];
    for engine in &engines {
        engine.answer(
            "/kv_event_sources",
            200,
            r#"{"0":{"endpoint":"tcp://*:1"}}"#,
        );
    }
    let running = start(parts(vec![
        worker("w0", &engines[0].url()),
        worker("w1", &engines[1].url()),
    ]));
    running.ready("w0").await;
    running.ready("w1").await;
    running
        .until("a stream", |_| running.fleet.streams().len() == 1)
        .await;
    let holder = usize::from(&*running.fleet.streams()[0].worker == "w1");
    engines[holder].answer("/kv_event_sources", 200, "{}");
    engines[holder].die().await;
    running.fleet.report_failure(
        running.fleet.snapshot().workers[holder].id,
        FailureKind::Refused,
    );
    engines[holder].start();
    let other = ["w1", "w0"][holder];
    running
        .until("the other's stream", |_| {
            running
                .fleet
                .streams()
                .iter()
                .any(|stream| &*stream.worker == other)
        })
        .await;
    running.fleet.stop().await;
}
