//! The tiers of routing by prefix and by cache contents: what each key adds, and what it leaves
//! alone.

use std::collections::BTreeSet;

use contract_id::contract;
use serde_json::{Value, json};

use crate::{
    harness::{
        Program, RawClient, RoutedFleet, RoutedReply, RouterQueries as _, chat_message, eventually,
        words,
    },
    lifecycle::ConfiguredFleet,
};

const STRATEGIES: [&str; 3] = ["prefix_hash", "overflow", "fallback"];

/// `continuum_prefix_routing_requests_total` by strategy.
fn by_prefix(router: &Program) -> [f64; 3] {
    STRATEGIES.map(|strategy| {
        let labels = format!("strategy=\"{strategy}\"");
        router.metric("continuum_prefix_routing_requests_total", &labels)
    })
}

fn cardinality(router: &Program) -> f64 {
    router.metric("continuum_prefix_routing_prefix_cardinality", "")
}

fn placed_by_prefix(router: &Program) -> f64 {
    let of = |worker: &str| {
        let labels = format!("backend=\"{worker}\"");
        router.metric("continuum_prefix_routing_backend_distribution", &labels)
    };
    ["a", "b", "c"].into_iter().map(of).sum()
}

/// A chat whose system prompt is long enough for many blocks.
fn ask(
    routed: &RoutedFleet,
    assistant: usize,
    question: &str,
    headers: &[(&str, &str)],
) -> RoutedReply {
    let system = format!(
        "You are assistant {assistant}. {}",
        words(&assistant.to_string(), 200)
    );
    routed.chat(
        &[
            chat_message("system", &system),
            chat_message("user", question),
        ],
        headers,
    )
}

#[test]
#[contract("CK1", "CK64", "A12")]
fn block_events_still_place_requests_where_the_prefix_view_is_enabled() {
    for config in [
        "kv_cache_index: {enabled: true}\n",
        "prefix_routing: {enabled: true}\nkv_cache_index: {enabled: true}\n",
    ] {
        let routed = RoutedFleet::with(&[&[], &[], &[]], config, &[]);
        let homes = ["a", "b", "c", "a", "b", "c", "a", "b", "c"];
        for (assistant, home) in homes.iter().enumerate() {
            ask(&routed, assistant, "hello", &[("x-warmroute-worker", home)]);
        }
        let ids: Vec<u32> = (1000..1200).collect();
        routed.completion(json!({"prompt": ids}), &[("x-warmroute-worker", "c")]);

        for (assistant, home) in homes.iter().enumerate() {
            let turn = ask(&routed, assistant, "and now?", &[]);
            assert_eq!(turn.worker, *home, "{config}");
            let receipt = routed.receipt(&turn);
            assert_eq!(
                (&receipt["policy"], &receipt["method"]),
                (&json!("continuum"), &json!("policy"))
            );
        }
        let turn = routed.completion(json!({"prompt": ids}), &[]);
        assert_eq!(turn.worker, "c", "without a prefix key as well: {config}");
        let stats = RawClient::get(&routed.router.admin(), "/admin/kv-index/stats").json();
        assert_eq!(stats["routing_decisions"]["kv_aware"], 10, "{config}");
        assert_eq!(by_prefix(&routed.router), [0.0; 3], "the ring placed none");
    }
}

#[test]
#[contract("CK1", "CK66", "CK67")]
fn the_figures_of_prefix_routing_stay_at_zero_while_it_is_off() {
    let slow: &[&str] = &["--speed", "0.5"];
    for config in [
        "",
        "kv_cache_index: {enabled: true}\n",
        "  policy: composite\n",
    ] {
        let routed = RoutedFleet::with(&[slow, slow, slow], config, &[]);
        let body = json!({
            "model": "sim", "max_tokens": 100, "ignore_eos": true,
            "messages": [chat_message("user", "hello")],
        });
        let mut running = RawClient::chat(&routed.router.data(), &body);
        eventually("the request to run", || {
            let busy = ["a", "b", "c"].map(|worker| {
                let labels = format!("worker=\"{worker}\"");
                routed.router.metric("warmroute_in_flight", &labels)
            });
            (busy.iter().sum::<f64>() == 1.0).then_some(())
        });
        assert_eq!(placed_by_prefix(&routed.router), 0.0, "{config}");
        routed.completion(json!({"prompt": [1, 2, 3]}), &[]);
        assert_eq!(running.reply().status, 200);
        assert_eq!(by_prefix(&routed.router), [0.0; 3], "{config}");
        assert_eq!(cardinality(&routed.router), 0.0, "{config}");
    }
}

#[test]
#[contract("CK1", "CK15", "CK66", "CK67", "CK73")]
fn a_request_counts_as_placed_by_prefix_from_its_start_to_its_end() {
    let slow: &[&str] = &["--speed", "0.2"];
    let config = "prefix_routing: {enabled: true, anthropic_cache_control_injection: true}\n";
    let routed = RoutedFleet::with(&[slow, slow, slow], config, &[]);
    let body = |prompt: Value| json!({"model": "sim", "max_tokens": 1500, "ignore_eos": true, "prompt": prompt});
    let start = |prompt: Value| {
        let mut client = RawClient::connect(&routed.router.data());
        let body = body(prompt).to_string();
        client.send("POST", "/v1/completions", &[], body.as_bytes());
        client
    };
    let running = |count: f64| {
        eventually("the requests to run", || {
            (routed.router.metric("warmroute_leases", "") == count).then_some(())
        });
    };
    // One by its text, alone, so that its worker is not at its limit; then one by the fallback, and
    // one that names its worker.
    let by_text = start(json!("hello"));
    running(1.0);
    let by_ids = start(json!([1, 2, 3]));
    let mut pinned = RawClient::connect(&routed.router.data());
    let headers = [("x-warmroute-worker", "a")];
    pinned.send(
        "POST",
        "/v1/completions",
        &headers,
        body(json!("x")).to_string().as_bytes(),
    );
    running(3.0);
    assert_eq!(placed_by_prefix(&routed.router), 2.0);
    let stats = RawClient::get(&routed.router.admin(), "/admin/prefix-routing/stats").json();
    let placed: u64 = stats["backend_distribution"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|row| row["in_flight_requests"].as_u64())
        .sum();
    assert_eq!(placed, 2);
    assert_eq!(
        stats["config"]["anthropic_cache_control_injection"],
        json!(true)
    );
    // A client that hangs up ends its request as well.
    drop((by_text, by_ids));
    eventually("both to end", || {
        (placed_by_prefix(&routed.router) == 0.0).then_some(())
    });
    assert_eq!(by_prefix(&routed.router), [1.0, 0.0, 1.0]);
}

fn three(urls: &[String], rest: &str) -> String {
    let worker = |(name, url): (&str, &String)| format!("  - {{name: {name}, url: \"{url}\"}}\n");
    let workers: String = ["a", "b", "c"].into_iter().zip(urls).map(worker).collect();
    format!("workers:\n{workers}{rest}")
}

/// The workers of six requests without a prefix, all of one session.
fn placed_without_prefix(it: &ConfiguredFleet) -> Vec<String> {
    let one = || {
        let body = json!({"model": "sim", "max_tokens": 1, "prompt": [1, 2, 3]}).to_string();
        let mut client = RawClient::connect(&it.router.data());
        let session = [("x-session-id", "one")];
        client.send("POST", "/v1/completions", &session, body.as_bytes());
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply
            .header("x-warmroute-worker")
            .expect("the worker")
            .to_owned()
    };
    (0..6).map(|_| one()).collect()
}

#[test]
#[contract("CK15", "CK64", "A12", "V43")]
fn the_configured_strategy_places_requests_without_a_prefix_and_follows_a_reload() {
    let with = |urls: &[String], fallback: &str| {
        three(
            urls,
            &format!("prefix_routing: {{enabled: true}}\nrouting: {{fallback: {fallback}}}\n"),
        )
    };
    let it = ConfiguredFleet::start(3, |urls| with(urls, "round_robin"), &[]);
    it.until_ready(&["a", "b", "c"]);
    let placed = placed_without_prefix(&it);
    for round in placed.chunks(3) {
        let distinct: BTreeSet<_> = round.iter().collect();
        assert_eq!(distinct.len(), 3, "{placed:?}");
    }
    assert_eq!(placed[..3], placed[3..], "in turn");
    it.write(&with(&it.urls(), "ConsistentHash"));
    eventually("the new strategy", || {
        it.reload(false);
        (it.in_force("/routing/fallback") == "consistent_hash").then_some(())
    });
    let placed = placed_without_prefix(&it);
    let distinct: BTreeSet<_> = placed.iter().collect();
    assert_eq!(distinct.len(), 1, "the session's owner: {placed:?}");
    assert_eq!(it.in_force("/routing/policy"), "continuum");
    assert_eq!(by_prefix(&it.router), [0.0, 0.0, 12.0]);
    // A policy that may not decide itself is none.
    it.write(&with(&it.urls(), "prefix_hash"));
    let (status, outcome) = it.reload(false);
    assert_eq!(
        (status, &outcome["problems"][0]["path"]),
        (400, &json!("routing.fallback"))
    );
}

#[test]
#[contract("CK1", "A12", "V43")]
fn a_reload_that_adds_a_part_for_the_next_start_leaves_the_policy_as_it_is() {
    let it = ConfiguredFleet::start(3, |urls| three(urls, ""), &[]);
    it.until_ready(&["a", "b", "c"]);
    for (rest, path) in [
        (
            "kv_cache_index: {enabled: true}\n",
            "kv_cache_index.enabled",
        ),
        (
            "routing: {policy: lmcache_aware, lmcache: {controller_url: 'http://127.0.0.1:1'}}\n",
            "routing.lmcache.controller_url",
        ),
    ] {
        it.write(&three(&it.urls(), rest));
        let (status, outcome) = it.reload(false);
        assert_eq!(status, 200, "{outcome}");
        assert_eq!(outcome["changed"], json!([]), "{rest}");
        let left: BTreeSet<&str> = outcome["restart_needed"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert!(
            left.contains(path) && left.contains("routing.policy"),
            "{left:?}"
        );
        assert_eq!(it.in_force("/routing/policy"), "warm", "{rest}");
        let body = json!({"model": "sim", "max_tokens": 1, "prompt": "hello"}).to_string();
        let mut client = RawClient::connect(&it.router.data());
        client.send("POST", "/v1/completions", &[], body.as_bytes());
        let reply = client.reply();
        let id = reply
            .header("x-warmroute-decision")
            .expect("a decision")
            .to_owned();
        let policy = eventually("the receipt", || {
            let receipt = it.get(&format!("/admin/decisions/{id}"));
            receipt["policy"].as_str().map(str::to_owned)
        });
        assert_eq!(policy, "warm", "{rest}");
    }
    // The ring needs no restart, with or without the part that does.
    it.write(&three(
        &it.urls(),
        "prefix_routing: {enabled: true}\nkv_cache_index: {enabled: true}\n",
    ));
    eventually("the ring", || {
        it.reload(false);
        (it.in_force("/routing/policy") == "continuum").then_some(())
    });
    assert_eq!(it.in_force("/kv_cache_index/enabled"), json!(false));
}
