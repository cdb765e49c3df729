//! Keys whose effect is one observation each.

use std::time::Duration;

use contract_id::contract;
use serde_json::json;

use crate::harness::{
    Program, RawClient, RoutedFleet, RouterQueries as _, ScriptedEngine, ScriptedReply, Stopwatch,
    chat, eventually, json_reply, words,
};

fn fine() -> ScriptedReply {
    ScriptedReply::whole(json_reply("200 OK", "", "{\"choices\": []}"))
}

#[test]
fn an_idle_connection_is_closed_after_the_keep_alive_time() {
    let router = Program::serve_with("workers: []\nserver: {keep_alive: 1s}\n", &[], &[]);
    let mut client = RawClient::connect(&router.data());
    let idle = Stopwatch::start();
    client.send("GET", "/livez", &[], b"");
    assert_eq!(client.reply().status, 200);
    assert!(client.is_closed());
    // The default is 75 s; a connection that is closed at once would not be kept at all.
    assert!(
        idle.elapsed() >= Duration::from_secs(1),
        "{:?}",
        idle.elapsed()
    );
    assert!(
        idle.elapsed() < Duration::from_secs(30),
        "{:?}",
        idle.elapsed()
    );
}

#[test]
#[contract("S34")]
fn a_head_is_refused_above_the_configured_size() {
    let engine = ScriptedEngine::start(fine());
    let config = "server: {max_head_bytes: 8KiB}\n";
    let router = Program::serve_with(config, &[engine.url()], &[]).ready(1);
    let status = |bytes: usize| {
        let body = chat("m", "hi", 1).to_string();
        let long = [("x-long", &*"a".repeat(bytes))];
        RawClient::post_with(
            &router.data(),
            "/v1/chat/completions",
            &long,
            body.as_bytes(),
        )
        .status
    };
    assert_eq!((status(4 << 10), status(9 << 10)), (200, 431));
}

#[test]
fn a_worker_is_ejected_after_as_many_failed_requests_as_configured_and_for_as_long() {
    for (breaker, ejects) in [
        (
            "consecutive_failures: 2, ejection: 2s, max_ejected_ratio: 1",
            true,
        ),
        (
            "consecutive_failures: 2, ejection: 2s, max_ejected_ratio: 0",
            false,
        ),
        ("consecutive_failures: 200", false),
        ("enabled: false, consecutive_failures: 2", false),
    ] {
        let cut = ScriptedEngine::start(ScriptedReply::Cut(Vec::new()));
        let well = ScriptedEngine::start(fine());
        let config = format!(
            "circuit_breaker: {{{breaker}}}\nhealth_checks: {{interval: 100ms}}\nrouting: {{policy: round_robin}}\n"
        );
        let workers = [format!("cut={}", cut.url()), format!("well={}", well.url())];
        let router = Program::serve_with(&config, &workers, &[]).ready(2);
        let state = || {
            let workers = router.workers();
            let worker = workers.iter().find(|worker| worker["name"] == "cut");
            worker.expect("a worker")["state"]
                .as_str()
                .expect("a state")
                .to_owned()
        };
        let started = Stopwatch::start();
        let mut ejected = false;
        for _ in 0..12 {
            let reply = RawClient::chat(&router.data(), &chat("m", "hi", 1)).reply();
            assert_eq!(reply.status, 200, "{}", reply.text());
            ejected |= state() == "ejected";
        }
        assert_eq!(ejected, ejects, "{breaker}");
        if ejects {
            eventually("the end of the ejection", || {
                (state() == "ready").then_some(())
            });
            assert!(started.elapsed() >= Duration::from_secs(2));
        }
    }
}

#[test]
fn the_hash_function_and_its_seed_name_the_blocks() {
    let digest = |config: &str| {
        let routed = RoutedFleet::with(&[&[]], config, &[]);
        let prompt = words("one", 200);
        routed.completion(json!({"prompt": prompt}), &[]);
        let digest = routed.digest();
        assert!(digest.to_string().contains("\"blocks\":"), "{digest}");
        digest
    };
    let usual = digest("");
    assert_eq!(
        digest("kv_events: {block_hash: xxh3, block_hash_seed: 1337}\n"),
        usual
    );
    let seeded = digest("kv_events: {block_hash_seed: 7}\n");
    let fnv = digest("kv_events: {block_hash: fnv1a}\n");
    assert!(
        seeded != usual && fnv != usual && fnv != seeded,
        "{usual} {seeded} {fnv}"
    );
}
