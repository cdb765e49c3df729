//! The settings of predicted blocks, in each place where they can be set.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{Program, RawClient, RoutedFleet, RouterQueries as _, eventually};

/// Ten blocks of 16 tokens that no other `number` has.
fn prompt(number: u32) -> Vec<u32> {
    (0..160).map(|n| 1000 * (number + 1) + n).collect()
}

/// The cached tokens that the router predicts for a prompt on a worker.
fn predicted(router: &Program, worker: &str, prompt: &[u32]) -> u64 {
    let body = json!({"model": "sim", "token_ids": prompt}).to_string();
    let reply = RawClient::post(&router.data(), "/v1/route", body.as_bytes()).json();
    let rows = reply["candidates"].as_array().expect("candidates");
    let row = rows
        .iter()
        .find(|row| row["target"]["worker"] == worker)
        .unwrap_or_else(|| panic!("no row of {worker} in {reply:#}"));
    row["predicted_cached_tokens"].as_u64().expect("tokens")
}

/// All predicted blocks.
fn blocks(router: &Program) -> Value {
    let stats = RawClient::get(&router.admin(), "/admin/kv-index/stats").json();
    stats["blocks"]["predicted"].clone()
}

fn send(router: &Program, prompt: &[u32]) {
    let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 1}).to_string();
    let reply = RawClient::post(&router.data(), "/v1/completions", body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// Routers before one engine without events, by the source of their settings.
struct PredictingRouters {
    workers: [String; 1],
    _engine: Program,
}

impl PredictingRouters {
    fn new() -> Self {
        let engine = Program::engine(&["--no-kv-events", "--speed", "20"]);
        Self {
            workers: [format!("a={}", engine.url())],
            _engine: engine,
        }
    }

    fn flags(&self, flags: &[&str]) -> Program {
        Program::serve(&self.workers, &[&["--no-kv-events"], flags].concat()).ready(1)
    }

    fn key(&self, prediction: &str) -> Program {
        let config = format!("kv_events: {{prediction: {{{prediction}}}}}\n");
        Program::serve_with(&config, &self.workers, &["--no-kv-events"]).ready(1)
    }

    fn variables(&self, variables: &[(&str, &str)]) -> Program {
        Program::serve_with_env(&self.workers, &["--no-kv-events"], variables).ready(1)
    }
}

#[test]
#[contract("DY4", "DY5")]
fn a_predicted_block_is_forgotten_after_the_time_from_any_source() {
    let routers = PredictingRouters::new();
    let long = routers.flags(&["--router-ttl", "1h"]);
    let short = [
        routers.flags(&["--router-ttl", "1s"]),
        routers.key("ttl: 1s"),
        routers.variables(&[("WARMROUTE_KV_EVENTS__PREDICTION__TTL", "1s")]),
    ];
    for router in short.iter().chain([&long]) {
        send(router, &prompt(0));
    }
    for router in &short {
        eventually("the prediction to end", || {
            (predicted(router, "a", &prompt(0)) == 0).then_some(())
        });
    }
    assert!(predicted(&long, "a", &prompt(0)) > 0);
}

#[test]
#[contract("DY5")]
fn the_time_of_predictions_holds_for_workers_without_events_beside_others_with_events() {
    let flags = ["--router-ttl", "1s"];
    let routed = RoutedFleet::with(&[&[], &["--no-kv-events"]], "", &flags);
    assert_eq!(routed.worker("a")["cache_source"], "events");
    assert_eq!(routed.worker("b")["cache_source"], "predicted");
    for worker in ["a", "b"] {
        let pin = [("x-warmroute-worker", worker)];
        routed.completion(json!({"prompt": prompt(0)}), &pin);
    }
    eventually("the prediction to end", || {
        (predicted(&routed.router, "b", &prompt(0)) == 0).then_some(())
    });
    let of_a = predicted(&routed.router, "a", &prompt(0));
    assert!(of_a > 0, "blocks that an engine announced do not expire");
}

#[test]
#[contract("DY6", "DY7")]
fn predicted_blocks_are_pruned_to_the_share_of_the_bound_from_any_source() {
    let routers = PredictingRouters::new();
    let flags = |ratio: &str| {
        routers.flags(&[
            "--router-max-tree-size",
            "40",
            "--router-prune-target-ratio",
            ratio,
        ])
    };
    let variables = [
        ("WARMROUTE_KV_EVENTS__PREDICTION__MAX_BLOCKS", "40"),
        ("WARMROUTE_KV_EVENTS__PREDICTION__PRUNE_TARGET_RATIO", "0.5"),
    ];
    // What the ratio leaves of the bound, and the ten new blocks.
    for (source, router, left) in [
        ("flags", flags("0.5"), 20 + 10),
        ("a lower ratio", flags("0.25"), 10 + 10),
        (
            "keys",
            routers.key("max_blocks: 40, prune_target_ratio: 0.5"),
            20 + 10,
        ),
        ("variables", routers.variables(&variables), 20 + 10),
        ("default", routers.flags(&[]), 50),
    ] {
        for number in 0..4 {
            send(&router, &prompt(number));
        }
        assert_eq!(blocks(&router), 40, "{source}: they fit");
        send(&router, &prompt(4));
        assert_eq!(blocks(&router), left, "{source}");
        let found = |number| predicted(&router, "a", &prompt(number));
        assert!(found(4) > 0, "{source}: the newest stay");
        assert_eq!(found(0) > 0, left == 50, "{source}: the oldest go first");
    }
}
