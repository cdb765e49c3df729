//! The policy of a request: its own, its model's, or the global one.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{RawClient, RoutedFleet, chat, chat_message, eventually};

/// `sim` is routed by prefix, its adapter `sql` by its own policy.
const MODELS: &str = "  policy: random\n  temperature: 3\n  models:\n    \"s*\": {policy: kv_aware, overlap_weight: 2}\n    \
                      sql: {policy: round-robin}\n    other: {policy: warm}\n";

fn routed() -> RoutedFleet {
    // Replaces the routing section that every test has.
    let engine: &[&str] = &["--loras", "sql,tagger"];
    RoutedFleet::with_routing(&[engine, engine], MODELS)
}

fn send(routed: &RoutedFleet, model: &str, headers: &[(&str, &str)]) -> (String, Value) {
    let body = chat(model, "hello", 2).to_string();
    let mut client = RawClient::connect(&routed.router.data());
    client.send("POST", "/v1/chat/completions", headers, body.as_bytes());
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let id = reply
        .header("x-warmroute-decision")
        .expect("a decision")
        .to_owned();
    let receipt = eventually("the receipt to be settled", || {
        let receipt =
            RawClient::get(&routed.router.admin(), &format!("/admin/decisions/{id}")).json();
        (!receipt["outcome"].is_null()).then_some(receipt)
    });
    (
        reply
            .header("x-warmroute-policy")
            .expect("a policy")
            .to_owned(),
        receipt,
    )
}

#[test]
fn a_model_has_its_own_policy_and_a_request_overrides_it() {
    let routed = routed();
    // The base model by its prefix; the adapter by its name, else by its base model.
    for (model, policy) in [
        ("sim", "kv_aware"),
        ("sql", "round_robin"),
        ("tagger", "kv_aware"),
    ] {
        let (header, receipt) = send(&routed, model, &[]);
        assert_eq!(
            (header.as_str(), &receipt["policy"]),
            (policy, &json!(policy)),
            "{model}"
        );
    }
    let (header, receipt) = send(&routed, "sql", &[("x-warmroute-policy", "least-loaded")]);
    assert_eq!(
        (header.as_str(), &receipt["policy"]),
        ("least_loaded", &json!("least_loaded"))
    );
    let shown = RawClient::get(&routed.router.admin(), "/admin/config").json();
    let shown = &shown["routing"]["models"]["s*"];
    assert_eq!(
        (&shown["policy"], &shown["overlap_weight"]),
        (&json!("kv_aware"), &json!(2.0))
    );
    let query = json!({"model": "sql", "prompt": "hello"}).to_string();
    let dry = RawClient::post(&routed.router.data(), "/v1/route", query.as_bytes()).json();
    assert_eq!(dry["policy"], "round_robin");
}

#[test]
fn each_model_has_its_own_round_robin_turns() {
    let routed = routed();
    let one = |model: &str| {
        send(&routed, model, &[]).1["winner"]["worker"]
            .as_str()
            .expect("a winner")
            .to_owned()
    };
    let workers = [one("sql"), one("sql"), one("sql"), one("sql")];
    assert_eq!(workers[0], workers[2]);
    assert_eq!(workers[1], workers[3]);
    assert_ne!(workers[0], workers[1]);
}

#[test]
#[contract("DY16")]
fn every_policy_accepts_a_requests_weight_temperature_and_priority_within_bounds() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let policies = [
        "warm",
        "kv_aware",
        "dynamo_cost",
        "kv",
        "least_loaded",
        "round_robin",
        "random",
        "weighted_round_robin",
        "least_latency",
        "power_of_two",
        "consistent_hash",
        "rendezvous_hash",
        "prefix_hash",
        "cache_aware",
        "composite",
        "continuum",
        "lmetric",
        "dualmap",
        "sticky",
    ];
    for policy in policies {
        for (weight, temperature, priority) in [
            ("0", "0", "-100"),
            ("100", "10", "100"),
            ("0.5", "1e-3", "+7"),
        ] {
            let headers = [
                ("x-warmroute-policy", policy),
                ("x-warmroute-overlap-weight", weight),
                ("x-warmroute-temperature", temperature),
                ("x-warmroute-priority", priority),
            ];
            let (ruled, receipt) = send(&routed, "sim", &headers);
            let name = if policy == "kv" {
                "dynamo_cost"
            } else {
                policy
            };
            assert_eq!((ruled.as_str(), &receipt["policy"]), (name, &json!(name)));
            assert_eq!(
                receipt["priority"],
                json!(priority.parse::<i32>().expect("a number")),
                "{policy}"
            );
        }
    }
}

#[test]
#[contract("DY16")]
fn a_request_setting_out_of_range_is_refused_with_its_value_and_the_range() {
    let routed = RoutedFleet::start(&[&[]]);
    let body = chat("sim", "hello", 2).to_string();
    for (header, range, values) in [
        (
            "x-warmroute-overlap-weight",
            "a number from 0 to 100",
            ["-0.1", "100.1", "inf", "NaN", "much", ""],
        ),
        (
            "x-warmroute-temperature",
            "a number from 0 to 10",
            ["-1", "10.01", "inf", "nan", "hot", ""],
        ),
        (
            "x-warmroute-priority",
            "an integer from -100 to 100",
            ["-101", "101", "1.5", "high", "1e2", ""],
        ),
    ] {
        for value in values {
            let mut client = RawClient::connect(&routed.router.data());
            client.send(
                "POST",
                "/v1/chat/completions",
                &[(header, value)],
                body.as_bytes(),
            );
            let reply = client.reply();
            let error = &reply.json()["error"];
            assert_eq!(
                (reply.status, &error["code"]),
                (400, &json!("invalid_request")),
                "{header}: {value}"
            );
            assert_eq!(error["param"], json!(header));
            let message = error["message"].as_str().expect("a message");
            assert!(
                message.contains(range) && message.contains(&format!("{value:?}")),
                "{message}"
            );
        }
    }
    let (key, value) = ("overlap_score_weight", 100.5);
    let query = json!({"model": "sim", "prompt": "hello", "router_config_override": {key: value}})
        .to_string();
    let refused = RawClient::post(&routed.router.data(), "/v1/route", query.as_bytes());
    assert_eq!(refused.status, 400);
    let message = refused.json()["error"]["message"]
        .as_str()
        .expect("a message")
        .to_owned();
    assert!(
        message.contains("100.5") && message.contains("a number from 0 to 100"),
        "{message}"
    );
    let query = json!({
        "model": "sim", "messages": [chat_message("user", "hello")], "policy": "kv",
        "router_config_override": {"overlap_score_weight": 100, "router_temperature": 10},
    });
    let taken = RawClient::post(
        &routed.router.data(),
        "/v1/route",
        query.to_string().as_bytes(),
    );
    assert_eq!(
        (taken.status, &taken.json()["policy"]),
        (200, &json!("dynamo_cost"))
    );
}
