//! The prediction settings and the temperature of the Dynamo router act on a running router.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RoutedFleet, RouterQueries, chat_message, eventually, words,
};

/// The tokens that the router expects to be cached for a prompt.
fn predicted(router: &Program, prompt: &[u32]) -> u64 {
    let body = json!({"model": "sim", "token_ids": prompt}).to_string();
    let decision: Value = RawClient::post(&router.data(), "/v1/route", body.as_bytes()).json();
    decision["winner"]["predicted_cached_tokens"]
        .as_u64()
        .unwrap_or_else(|| panic!("{decision:#}"))
}

fn complete(router: &Program, prompt: &[u32]) {
    let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 1, "ignore_eos": true});
    let body = body.to_string();
    let reply = RawClient::post(&router.data(), "/v1/completions", body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// Prompt `n` of 160 tokens: ten blocks.
fn prompt(n: u32) -> Vec<u32> {
    (n * 1000..n * 1000 + 160).collect()
}

#[test]
#[contract("DY3")]
fn a_temperature_by_flag_key_or_variable_spreads_the_choices() {
    let engines = [(); 2].map(|()| Program::engine(&["--speed", "20"]));
    let workers = ["a", "b"]
        .into_iter()
        .zip(&engines)
        .map(|(name, engine)| format!("{name}={}", engine.url()))
        .collect::<Vec<_>>();
    let kv = ["--router-mode", "kv"];
    let routers = [
        (
            true,
            Program::serve(
                &workers,
                &[&kv[..], &["--router-temperature", "10"]].concat(),
            ),
        ),
        (
            true,
            Program::serve_with("routing: {temperature: 10}\n", &workers, &kv),
        ),
        (
            true,
            Program::serve_with_env(&workers, &kv, &[("WARMROUTE_ROUTING__TEMPERATURE", "10")]),
        ),
        (false, Program::serve(&workers, &kv)),
    ];
    for (hot, router) in routers {
        let router = router.ready(2);
        router.follows_events(2);
        let body = json!({
            "model": "sim", "messages": [chat_message("user", &words("heat", 200))], "max_tokens": 1,
        });
        let body = body.to_string();
        let ask = || {
            let reply = RawClient::post(&router.data(), "/v1/chat/completions", body.as_bytes());
            reply
                .header("x-warmroute-worker")
                .expect("a worker")
                .to_owned()
        };
        let first = ask();
        // The prompt is warm at the first worker from now on. At the highest temperature each draw
        // takes the other one nearly half of the time: forty equal draws practically never happen.
        let elsewhere = (0..40).any(|_| ask() != first);
        assert_eq!(elsewhere, hot, "temperature set: {hot}");
    }
}

#[test]
#[contract("DY5", "DY4")]
fn predictions_end_after_the_configured_time() {
    // The last router follows events, but its worker publishes none: the setting governs that too.
    for flags in [&["--no-kv-events"][..], &[]] {
        let engine = Program::engine(&["--no-kv-events", "--speed", "20"]);
        let serve = |ttl: &[&str]| {
            let workers = [format!("a={}", engine.url())];
            Program::serve(&workers, &[flags, ttl].concat()).ready(1)
        };
        let (short, usual) = (serve(&["--router-ttl", "1s"]), serve(&[]));
        for router in [&short, &usual] {
            complete(router, &prompt(1));
            assert_eq!(router.workers()[0]["cache_source"], "predicted");
        }
        assert_eq!(predicted(&usual, &prompt(1)), 144);
        complete(&short, &prompt(2));
        assert_eq!(predicted(&short, &prompt(2)), 144, "within a second");
        eventually("the prediction to end", || {
            (predicted(&short, &prompt(2)) == 0).then_some(())
        });
        assert_eq!(predicted(&usual, &prompt(1)), 144, "120 s by default");
    }
}

#[test]
#[contract("DY6", "DY7")]
fn more_predicted_blocks_than_configured_are_pruned_to_the_configured_share() {
    let flags = [
        "--no-kv-events",
        "--router-max-tree-size",
        "100",
        "--router-prune-target-ratio",
        "0.5",
    ];
    let routed = RoutedFleet::with(&[&["--no-kv-events"]], "", &flags);
    let blocks = || {
        let stats = RawClient::get(&routed.router.admin(), "/admin/kv-index/stats").json();
        stats["blocks"]["predicted"].as_u64().expect("a number")
    };
    for n in 1..=10 {
        routed.completion(json!({"prompt": prompt(n)}), &[]);
    }
    assert_eq!(blocks(), 100, "as many as allowed");
    routed.completion(json!({"prompt": prompt(11)}), &[]);
    assert!((41..=50).contains(&blocks()), "{} blocks", blocks());
    // The least recently used ones go.
    let known = |n: u32| predicted(&routed.router, &prompt(n));
    assert_eq!((known(1), known(5), known(10), known(11)), (0, 0, 144, 144));
}
