//! The settings of the block index and of event streams act on a running router.

use contract_id::contract;
use serde_json::{Value, json};

use crate::{
    event_publisher::{EventPublisher, blocks},
    harness::{Program, RawClient, RoutedFleet, RouterQueries, chat_message, eventually, words},
};

/// The row of worker `a` in a dry run of this prompt.
fn row_of_a(router: &Program, prompt: &[u32]) -> Value {
    let body = json!({"model": "sim", "token_ids": prompt}).to_string();
    let decision = RawClient::post(&router.data(), "/v1/route", body.as_bytes()).json();
    let rows = decision["candidates"].as_array().expect("candidates");
    rows.iter()
        .find(|row| row["target"]["worker"] == "a")
        .expect("a row of a")
        .clone()
}

fn term(row: &Value, name: &str) -> f64 {
    row["terms"][name].as_f64().expect("a term")
}

#[test]
#[contract("V13")]
fn a_block_size_that_differs_from_the_engines_is_reported_by_the_router() {
    let engine = Program::engine(&["--block-size", "32", "--speed", "20"]);
    let config = |size: u32| {
        format!(
            "workers:\n  - {{name: a, url: \"{}\", block_size: {size}}}\n",
            engine.url()
        )
    };
    let run = |size: u32| {
        let router = Program::serve_with(&config(size), &[], &[]).ready(1);
        router.follows_events(1);
        router
    };
    let ask = |router: &Program, topic: &str| {
        let body = json!({"model": "sim", "prompt": words(topic, 200), "max_tokens": 1});
        let body = body.to_string();
        let reply = RawClient::post(&router.data(), "/v1/completions", body.as_bytes());
        assert_eq!(reply.status, 200);
    };
    let warnings = |router: &Program| {
        let log = router.stderr();
        let is_about = |line: &&str| line.contains("WARN") && line.contains("another size");
        log.lines().filter(is_about).count()
    };
    let refused = |router: &Program| {
        let labels = "reason=\"other_block_size\"";
        router.metric("warmroute_kv_events_ignored_total", labels)
    };
    let (wrong, right) = (run(16), run(32));
    ask(&wrong, "first");
    eventually("the report", || (warnings(&wrong) == 1).then_some(()));
    let before = eventually("the count", || Some(refused(&wrong)).filter(|n| *n >= 1.0));
    ask(&wrong, "second");
    eventually("more refused events", || {
        (refused(&wrong) > before).then_some(())
    });
    assert_eq!(warnings(&wrong), 1, "once for the worker");
    let streams = RawClient::get(&wrong.admin(), "/admin/streams").json();
    let problem = streams["streams"][0]["last_error"]
        .as_str()
        .expect("a text");
    assert!(
        problem.contains("blocks of 32 tokens, expected are 16"),
        "{problem}"
    );
    eventually("the other router to follow the same events", || {
        (right.metric("warmroute_kv_events_total", "stored") > 0.0).then_some(())
    });
    assert_eq!((warnings(&right), refused(&right)), (0, 0.0));
}

#[test]
#[contract("V18")]
fn an_engine_started_with_the_flag_of_vllm_is_followed() {
    // vLLM's default port is one for all tests of this machine, so the endpoint is another one.
    let flag = json!({"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:0"});
    let flag = flag.to_string();
    let engine = ["--kv-events-config", &flag, "--block-size", "32"];
    let routed = RoutedFleet::with(&[&engine], "", &["--policy", "kv-aware"]);
    let prompt: Vec<u32> = (1000..1100).collect();
    let turns = [(); 2].map(|()| routed.completion(json!({"prompt": prompt}), &[]));
    assert_eq!((turns[0].cached, turns[1].cached), (0, 96));
    assert_eq!(turns[1].predicted, 96);
    let receipt = routed.receipt(&turns[1]);
    assert_eq!(receipt["candidates"][0]["warm_tokens"]["device"], 96);
    assert_eq!(routed.worker("a")["cache_source"], "events");
    // Without the flag's switch the engine publishes nothing, whatever else it says.
    let silent = ["--kv-events-config", r#"{"endpoint": "tcp://127.0.0.1:0"}"#];
    let routed = RoutedFleet::with(&[&silent], "", &[]);
    assert_eq!(routed.streams(), Vec::<Value>::new());
}

#[test]
#[contract("V5", "V8", "V10", "D1", "D3")]
fn with_fnv_1a_the_cached_prefix_is_found_as_with_xxh3() {
    let config = "kv_events: {block_hash: fnv1a}\n";
    let routed = RoutedFleet::with(&[&[], &[]], config, &["--policy", "kv-aware"]);
    let prompt: Vec<u32> = (1000..1100).collect();
    let first = routed.completion(json!({"prompt": prompt}), &[]);
    let second = routed.completion(json!({"prompt": prompt}), &[]);
    assert_eq!((first.cached, second.cached), (0, 96));
    assert_eq!(second.predicted, second.cached);
    assert_eq!(second.worker, first.worker);
    // The hashes of the index are those of the rule: computed apart from the router.
    let dump = RawClient::get(&routed.router.admin(), "/admin/kv-index/dump").text();
    for (depth, hash) in ["9b47b5e244ff9535", "c10fef8d5a49972a", "38d50cd779f4d75b"]
        .into_iter()
        .enumerate()
    {
        let found = dump.lines().any(|line| {
            let row: Value = serde_json::from_str(line).expect("JSON lines");
            row["hash"] == hash && row["depth"] == depth
        });
        assert!(found, "block {depth} has the hash {hash}: {dump}");
    }
    let chat = [chat_message("user", &words("fnv", 60))];
    let turns = [routed.chat(&chat, &[]), routed.chat(&chat, &[])];
    assert!(turns[1].cached > 0);
    assert_eq!(turns[1].predicted, turns[1].cached);
}

#[tokio::test(flavor = "multi_thread")]
#[contract("V21", "V20")]
async fn each_medium_has_its_weight_by_flag_key_variable_and_model() {
    let mut publisher = EventPublisher::start().await;
    let engine = Program::engine(&["--no-kv-events"]);
    let worker = [format!("a={}", engine.url())];
    let events = format!("a={}", publisher.endpoint());
    let usual = ["--policy", "kv-aware", "--kv-events", &events];
    let flags = [
        "--kv-medium-gpu-weight",
        "0.875",
        "--kv-medium-cpu-weight",
        "0.5",
        "--kv-medium-disk-weight",
        "0.25",
    ];
    let key = "routing: {medium_weights: {gpu: 0.875, cpu: 0.5, disk: 0.25}}\n";
    let of_model =
        "routing: {models: {sim: {medium_weights: {gpu: 0.875, cpu: 0.5, disk: 0.25}}}}\n";
    let variables = [
        ("WARMROUTE_ROUTING__MEDIUM_WEIGHTS__GPU", "0.875"),
        ("WARMROUTE_ROUTING__MEDIUM_WEIGHTS__CPU", "0.5"),
        ("WARMROUTE_ROUTING__MEDIUM_WEIGHTS__DISK", "0.25"),
    ];
    let routers = [
        Program::serve(&worker, &[&usual[..], &flags].concat()),
        Program::serve_with(key, &worker, &usual),
        Program::serve_with_env(&worker, &usual, &variables),
        Program::serve_with(of_model, &worker, &usual),
        Program::serve(&worker, &usual),
    ]
    .map(|router| router.ready(1));
    publisher.subscribed(routers.len()).await;
    // Two blocks on the GPU, three in host memory, four on disk.
    let prompt: Vec<u32> = (1..=9 * 16).collect();
    publisher.publish(&[
        blocks(0, 0, &prompt[..32], "GPU"),
        blocks(0, 32, &prompt[32..80], "CPU"),
        blocks(0, 80, &prompt[80..], "DISK"),
    ]);
    let configured = 2.0 * 0.875 + 3.0 * 0.5 + 4.0 * 0.25;
    let default = 2.0 + 3.0 * 0.3 + 4.0 * 0.05;
    let expected = [configured, configured, configured, configured, default];
    for (router, expected) in routers.iter().zip(expected) {
        let row = eventually("the events to be applied", || {
            let row = row_of_a(router, &prompt);
            let held = ["device_blocks", "host_blocks", "disk_blocks"].map(|name| term(&row, name));
            (held == [2.0, 3.0, 4.0]).then_some(row)
        });
        let weighted = term(&row, "weighted_blocks");
        assert!((weighted - expected).abs() < 1e-9, "{row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("V2")]
async fn the_topic_filter_reaches_the_subscription() {
    let mut publisher = EventPublisher::start().await;
    let engine = Program::engine(&["--no-kv-events"]);
    let worker = [format!("a={}", engine.url())];
    let events = format!("a={}", publisher.endpoint());
    let flags = ["--policy", "kv-aware", "--kv-events", &events];
    let filtered = Program::serve_with("kv_events: {topic_filter: \"kv@a\"}\n", &worker, &flags);
    let all = Program::serve(&worker, &flags);
    let (filtered, all) = (filtered.ready(1), all.ready(1));
    publisher.subscribed(2).await;
    let other: Vec<u32> = (1..=32).collect();
    let own: Vec<u32> = (501..=548).collect();
    publisher.publish_under("kv@b@sim", &[blocks(0, 0, &other, "GPU")]);
    publisher.publish_under("kv@a@sim", &[blocks(1 << 20, 0, &own, "GPU")]);
    for (router, of_other) in [(&filtered, 0.0), (&all, 2.0)] {
        eventually("the own topic's events", || {
            (term(&row_of_a(router, &own), "device_blocks") == 3.0).then_some(())
        });
        assert_eq!(
            term(&row_of_a(router, &other), "device_blocks"),
            of_other,
            "the events of the other topic were sent before"
        );
    }
    let streams = RawClient::get(&filtered.admin(), "/admin/streams").json();
    assert_eq!(
        streams["streams"][0]["counts"]["batches"], 1,
        "the publisher sends it no other topic"
    );
}
