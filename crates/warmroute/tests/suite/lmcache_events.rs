//! LMCache publishes through the engine: its chunks of 256 tokens count as the engine's blocks.

use contract_id::contract;
use kv_events::vllm::{WireEvent, WireHash, WireRemoved};
use serde_json::{Value, json};

use crate::{
    event_publisher::{EventPublisher, PublishedWorker, blocks, chunks, recorded},
    harness::{Program, RawClient, RouterQueries, eventually},
};

/// Names of the engine's blocks, and of LMCache's chunks.
const ENGINE: u64 = 1 << 40;
const LMCACHE: u64 = 1 << 41;

fn tokens() -> Vec<u32> {
    (1000..1300).collect()
}

/// The row of a worker.
fn row<'a>(decision: &'a Value, worker: &str) -> &'a Value {
    let rows = decision["candidates"].as_array().expect("candidates");
    rows.iter()
        .find(|row| row["target"]["worker"] == worker)
        .expect("its row")
}

/// Tokens of `a`'s cache in the order device, host, disk.
fn warm(decision: &Value) -> [u64; 3] {
    tiers(row(decision, "a"))
}

fn tiers(row: &Value) -> [u64; 3] {
    ["device", "host", "disk"].map(|tier| row["warm_tokens"][tier].as_u64().expect("tokens"))
}

fn removed(names: impl Iterator<Item = u64>, medium: &str) -> WireEvent {
    WireEvent::Removed(WireRemoved {
        hashes: names.map(WireHash::from).collect(),
        medium: Some(medium.to_owned()),
    })
}

#[tokio::test(flavor = "multi_thread")]
#[contract("V17", "V47")]
async fn chunks_of_lmcache_are_credited_to_the_next_request_as_host_memory() {
    let workers = PublishedWorker::start().await;
    let (mut publisher, router) = (workers.publisher, workers.router);
    let prompt = tokens();
    let ask = |headers: &[(&str, &str)]| {
        let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 2, "ignore_eos": true});
        let body = body.to_string();
        RawClient::post_with(&router.data(), "/v1/completions", headers, body.as_bytes())
    };
    let dry_run = || {
        let body = json!({"model": "sim", "token_ids": prompt}).to_string();
        RawClient::post(&router.data(), "/v1/route", body.as_bytes()).json()
    };
    assert_eq!(ask(&[("x-warmroute-worker", "a")]).status, 200);
    // What the engine and LMCache in it publish for this request: the engine's own blocks, a chunk,
    // and a shorter one at the end of the prompt, in which two more blocks end.
    publisher.publish(&[
        blocks(ENGINE, 0, &prompt[..288], "GPU"),
        chunks(LMCACHE, 0, &prompt[..256], (256, "cpu")),
        chunks(LMCACHE, 256, &prompt[256..], (44, "cpu")),
    ]);
    eventually("the engine's own blocks to be credited first", || {
        (warm(&dry_run()) == [288, 0, 0]).then_some(())
    });
    // The engine evicts its blocks; LMCache keeps the chunks.
    publisher.publish(&[removed((1..=18).rev().map(|n| ENGINE + n * 16), "GPU")]);
    eventually("the chunks to be credited", || {
        (warm(&dry_run()) == [0, 288, 0]).then_some(())
    });
    let second = ask(&[]);
    assert_eq!(second.header("x-warmroute-worker"), Some("a"));
    assert_eq!(
        second.header("x-warmroute-predicted-cached-tokens"),
        Some("288")
    );
    let receipt = router.receipt_of(&second);
    assert_eq!(warm(&receipt), [0, 288, 0], "{receipt:#}");
    let terms = &receipt["candidates"][0]["terms"];
    assert_eq!(terms["host_blocks"], 18.0);
    let weighted = terms["weighted_blocks"].as_f64().expect("a term");
    assert!((weighted - 18.0 * 0.3).abs() < 1e-9, "the weight of cpu");
}

#[tokio::test(flavor = "multi_thread")]
#[contract("V17", "V47")]
async fn recorded_chunks_give_the_same_prediction_as_the_engines_own_events() {
    let mut with_chunks = EventPublisher::start().await;
    let mut own = EventPublisher::start().await;
    let engines = [(); 2].map(|()| Program::engine(&["--no-kv-events", "--speed", "20"]));
    let worker = |name: &str, engine: &Program, publisher: &EventPublisher| {
        let (url, events) = (engine.url(), publisher.endpoint());
        format!("  - {{name: {name}, url: \"{url}\", kv_events: {{endpoint: \"{events}\"}}}}\n")
    };
    let yaml = format!(
        "workers:\n{}{}",
        worker("a", &engines[0], &with_chunks),
        worker("b", &engines[1], &own)
    );
    let router = Program::serve_with(&yaml, &[], &["--policy", "kv-aware"]).ready(2);
    with_chunks.subscribed(1).await;
    own.subscribed(1).await;
    // Both engines have the first four blocks of 16 tokens. LMCache in one of them has all 256
    // tokens as a chunk, and the other one has offloaded its own blocks.
    let prompt: Vec<u32> = (1..=256).collect();
    for publisher in [&mut with_chunks, &mut own] {
        publisher.publish_payload("", &recorded("vllm_0_24_stored_root_map"));
    }
    with_chunks.publish_payload("", &recorded("lmcache_stored_cpu"));
    own.publish(&[blocks(ENGINE, 0, &prompt, "CPU")]);
    let decision = eventually("both to be credited", || {
        let body = json!({"model": "sim", "token_ids": prompt}).to_string();
        let decision = RawClient::post(&router.data(), "/v1/route", body.as_bytes()).json();
        ["a", "b"]
            .iter()
            .all(|worker| tiers(row(&decision, worker))[1] > 0)
            .then_some(decision)
    });
    let [a, b] = ["a", "b"].map(|worker| row(&decision, worker));
    assert_eq!(tiers(a), [64, 192, 0], "{decision:#}");
    for field in ["warm_tokens", "predicted_cached_tokens", "cost"] {
        assert_eq!(a[field], b[field], "{decision:#}");
    }
    let predicted = |worker: &str| {
        let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 1}).to_string();
        let pin = [("x-warmroute-worker", worker)];
        let reply = RawClient::post_with(&router.data(), "/v1/completions", &pin, body.as_bytes());
        let tokens = reply.header("x-warmroute-predicted-cached-tokens");
        tokens.expect("a prediction").to_owned()
    };
    let of_chunks = predicted("a");
    assert_ne!(of_chunks, "0");
    assert_eq!(of_chunks, predicted("b"));
}
