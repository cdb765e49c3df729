//! A router that is fed by another router's stream has the same index.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{Program, RawClient, RoutedFleet, RouterQueries, eventually, words};

fn get(router: &Program, path: &str) -> Value {
    RawClient::get(&router.admin(), path).json()
}

/// A router's index, without the fields that depend on its source.
fn digest(router: &Program) -> Value {
    get(router, "/admin/kv-index/digest")
}

/// An engine's traffic: stores, evictions, moves to host memory.
fn traffic(routed: &RoutedFleet, topics: &[&str]) {
    for topic in topics {
        for worker in ["a", "b"] {
            routed.completion(
                json!({"prompt": words(topic, 150)}),
                &[("x-warmroute-worker", worker)],
            );
        }
    }
    routed.caught_up();
}

/// A second router in front of the same engines, fed only by the stream of the first.
fn fed_router(routed: &RoutedFleet) -> Program {
    let worker = |name: &str, engine: &Program| {
        format!(
            "  - {{name: {name}, url: \"{}\", kv_events: {{endpoint: \
             \"http://{}/v1/kv_events?worker={name}&format=rfc1527&snapshot=true\"}}}}\n",
            engine.url(),
            routed.router.admin(),
        )
    };
    let [a, b] = &routed.engines[..] else {
        panic!("two engines")
    };
    let config = format!(
        "routing: {{tokenize_budget: 60s}}\nworkers:\n{}{}",
        worker("a", a),
        worker("b", b)
    );
    Program::serve_with(&config, &[], &[]).ready(2)
}

#[test]
#[contract("A8", "CK43", "MC9", "V41")]
fn a_router_that_follows_another_routers_stream_indexes_the_same_blocks() {
    let routed = RoutedFleet::start(&[
        &["--kv-blocks", "48", "--host-blocks", "1000"],
        &["--kv-blocks", "64"],
    ]);
    traffic(&routed, &["before", "the", "second", "router"]);
    let second = fed_router(&routed);
    let same = || (digest(&routed.router) == digest(&second)).then_some(());
    eventually("the snapshots to be the same", same);
    assert!(
        digest(&second)["targets"].as_array().unwrap().len() > 2,
        "two workers, and host memory: {}",
        digest(&second)
    );
    traffic(&routed, &["then", "more", "of", "it"]);
    eventually("the changes to be the same", same);

    let streams = get(&second, "/admin/streams");
    for stream in streams["streams"].as_array().unwrap() {
        assert_eq!(
            (&stream["source"], &stream["state"]),
            (&json!("sse"), &json!("live")),
            "{stream}"
        );
    }
    // Its decisions use those blocks, and its predictions are correct.
    let body = json!({"model": "sim", "prompt": words("it", 150), "max_tokens": 4});
    let reply = RawClient::post(
        &second.data(),
        "/v1/completions",
        body.to_string().as_bytes(),
    );
    let predicted: u64 = reply
        .header("x-warmroute-predicted-cached-tokens")
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        predicted > 0,
        "the prompt was sent to both engines a moment ago"
    );
    assert_eq!(
        reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"],
        predicted
    );
}

#[test]
#[contract("A8", "CK42", "CK43", "CK77", "CK78")]
fn the_prefix_view_is_fed_by_another_routers_stream() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    traffic(&routed, &["one", "two"]);
    let blocks = |worker: &str| {
        let targets = digest(&routed.router)["targets"]
            .as_array()
            .unwrap()
            .clone();
        targets
            .iter()
            .filter(|row| row["worker"] == worker)
            .map(|row| row["blocks"].as_u64().unwrap())
            .sum::<u64>()
    };
    let config = format!(
        "workers: [\"a={}\"]\nkv_cache_index:\n  enabled: true\n  event_sources:\n    - {{backend_name: a, endpoint: \
         \"http://{}/v1/kv_events?worker=a&snapshot=true\", prefix_hash_kind: sequence_hash}}\n",
        routed.engines[0].url(),
        routed.router.admin(),
    );
    let second = Program::serve_with(&config, &[], &[]).ready(1);
    let backends = || get(&second, "/admin/kv-index/backends");
    eventually("every block of a as a prefix", || {
        (backends()["backends"][0]["held"]["gpu_hot"] == blocks("a")).then_some(())
    });
    let backend = backends()["backends"][0].clone();
    assert_eq!(backend["connection"]["connected"], true);
    assert_eq!(backend["events"]["index_created"], blocks("a"));
    let stats = get(&second, "/admin/kv-index/stats");
    assert_eq!(
        (&stats["enabled"], &stats["index"]["entry_count"]),
        (&json!(true), &json!(blocks("a"))),
        "{stats}"
    );
    assert_eq!(stats["event_sources"][0]["connected"], true);

    let cleared = RawClient::post(&second.admin(), "/admin/kv-index/clear", b"").json();
    let all = blocks("a");
    assert_eq!(
        cleared,
        json!({"success": true, "entries_before_clear": all, "cleared_entries": all})
    );
    traffic(&routed, &["three"]);
    eventually("the following events", || {
        (backends()["backends"][0]["held"]["gpu_hot"].as_u64()? > 0).then_some(())
    });
}

/// A second router whose only knowledge of both engines' caches is the first one's stream of blocks,
/// as prefixes.
fn router_of_prefixes(routed: &RoutedFleet) -> Program {
    let worker = |name: &str, at: usize| format!("\"{name}={}\"", routed.engines[at].url());
    let source = |name: &str| {
        format!(
            "    - {{backend_name: {name}, endpoint: \"http://{}/v1/kv_events?worker={name}&snapshot=true\", \
             prefix_hash_kind: sequence_hash}}\n",
            routed.router.admin()
        )
    };
    let config = format!(
        "routing: {{policy: composite, tokenize_budget: 60s}}\nkv_events: {{enabled: false}}\n\
         workers: [{}, {}]\nkv_cache_index:\n  enabled: true\n  event_sources:\n{}{}",
        worker("a", 0),
        worker("b", 1),
        source("a"),
        source("b"),
    );
    Program::serve_with(&config, &[], &[]).ready(2)
}

/// The worker of a completion, and the tokens that it was expected to have cached.
fn placed(router: &Program, body: &Value) -> (String, u64) {
    let text = body.to_string();
    let reply = RawClient::post(&router.data(), "/v1/completions", text.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let receipt = router.receipt_of(&reply);
    let cached = receipt["candidates"][0]["terms"]["cached_tokens"].as_f64();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count"
    )]
    let cached = cached.unwrap_or(0.0) as u64;
    let worker = reply.header("x-warmroute-worker").expect("a worker");
    (worker.to_owned(), cached)
}

#[test]
#[contract("A9", "CK43", "CK57")]
fn decisions_read_the_blocks_in_another_routers_stream() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let ids = |first: u32, count: u32| (first..first + count).collect::<Vec<u32>>();
    for (worker, first) in [("a", 100), ("b", 500)] {
        let body = json!({"prompt": ids(first, 70), "max_tokens": 1});
        routed.completion(body, &[("x-warmroute-worker", worker)]);
    }
    let second = router_of_prefixes(&routed);
    eventually("the blocks of both engines as prefixes", || {
        let backends = get(&second, "/admin/kv-index/backends");
        let held = |at: usize| backends["backends"][at]["held"]["gpu_hot"].as_u64();
        (held(0) >= Some(4) && held(1) >= Some(4)).then_some(())
    });
    // Blocks have 16 tokens: the prompt of 70 left four whole ones, and these begin with it or a part
    // of it.
    for (worker, first) in [("a", 100), ("b", 500)] {
        let whole = ids(first, 70);
        let longer = [whole.clone(), ids(3000, 20)].concat();
        let part = [ids(first, 40), ids(4000, 9)].concat();
        for (prompt, cached) in [(whole, 64), (longer, 64), (part, 32)] {
            let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 1});
            assert_eq!(
                placed(&second, &body),
                (worker.to_owned(), cached),
                "{body}"
            );
        }
    }
    // Nothing is known of another prompt, nor of the same one under a salt.
    for other in [
        json!({"model": "sim", "prompt": ids(2000, 70), "max_tokens": 1}),
        json!({"model": "sim", "prompt": ids(100, 70), "max_tokens": 1, "cache_salt": "s"}),
    ] {
        assert_eq!(placed(&second, &other).1, 0, "{other}");
    }
}
