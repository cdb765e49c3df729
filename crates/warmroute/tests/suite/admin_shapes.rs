//! The admin listener's replies have the documented shapes, and a strict scraper accepts
//! `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Page, Program, RawClient, RawReply, RoutedFleet, RoutedReply, RouterQueries, SimControls,
    assert_shape, chat_message, eventually, words,
};

fn get(routed: &RoutedFleet, path: &str) -> RawReply {
    RawClient::get(&routed.router.admin(), path)
}

fn list<'a>(body: &'a Value, key: &str) -> &'a Vec<Value> {
    body[key]
        .as_array()
        .unwrap_or_else(|| panic!("no list {key} in {body}"))
}

fn target() -> Value {
    json!({"worker": "string", "dp_rank": "int"})
}

fn receipt() -> Value {
    json!({
        "schema": "string", "id": "hex", "at": "time", "request_id": "string", "tenant": "string", "dry_run": "bool",
        "route": "string", "model": "string", "served_model": "string", "lora": "null|string", "session": "null|string",
        "cluster": "null", "stream": "bool", "priority": "int", "policy": "string", "method": "string",
        "prompt": {
            "source": "string", "exact": "bool", "tokens": "int", "blocks": "int", "block_size": "int", "new_tokens": "int",
        },
        "candidates": [{
            "target": target(), "rank": "int",
            "warm_tokens": {"device": "int", "host": "int", "disk": "int", "remote": "int", "speculative": "int"},
            "predicted_cached_tokens": "int", "uncached_tokens": "int", "cache_source": "string",
            "stream_state": "null|string", "health": "string",
            "load": {
                "in_flight": "int", "queued_prefill_tokens": "int", "decode_sequences": "int", "decode_blocks": "int",
            },
            "cost": "number", "cost_unit": "string", "predicted_ttft_ms": "null|number", "terms": "numbers",
        }],
        "candidates_total": "int", "excluded": [{"target": target(), "reason": "string"}],
        "winner": target(), "runner_up": target(), "regret_ms": "number", "prefill": "null",
        "hold": {"held_ms": "number", "reason": "null"},
        "reserved": {"prefill_tokens": "int", "decode_blocks": "int"},
        "attempts": [{
            "n": "int", "target": target(), "class": "null|string", "result": "string", "status": "int", "ms": "number",
        }],
        "timing_us": {
            "accept": "number", "cache": "number", "render": "number", "tokenize": "number", "hash": "number",
            "lookup": "number", "decide": "number", "total": "number",
        },
        "rewrites": ["string"],
        "outcome": {
            "kind": "string", "status": "int", "ttft_ms": "null|number", "duration_ms": "number", "prompt_tokens": "int",
            "completion_tokens": "int", "cached_tokens": "int", "drift_tokens": "int", "finish_reason": "string",
        },
    })
}

/// Two engines, one chat sent twice, and the replies.
fn routed() -> (RoutedFleet, Vec<RoutedReply>) {
    let routed = RoutedFleet::start(&[&["--loras", "red"], &["--dp-size", "2"]]);
    let messages = [chat_message("user", &words("shape", 60))];
    let turns = vec![
        routed.chat(&messages, &[]),
        routed.chat(&messages, &[("x-request-id", "mine")]),
    ];
    (routed, turns)
}

#[test]
fn a_worker_object_has_all_documented_fields() {
    let (routed, _) = routed();
    let worker = json!({
        "name": "string", "url": "string", "type": "string", "state": "string", "since": "time", "models": ["string"],
        "loras": ["string"], "messages": "string", "role": "string", "weight": "number", "block_size": "int", "dp_ranks": "int",
        "engine": {
            "version": "string", "num_blocks": "int", "kv_usage_ratio": "number", "running": "int", "waiting": "int",
        },
        "load": {"in_flight": "int", "queued_prefill_tokens": "int", "decode_blocks": "int"},
        "warm_blocks": {"device": "int", "host": "int", "disk": "int", "remote": "int"},
        "rates": {
            "prefill_tokens_per_s": "number", "overhead_ms": "number", "decode_ms_per_sequence": "number",
            "samples": "int", "learned": "bool",
        },
        "cache_source": "string", "circuit": "string", "parity": "string", "salt": "string",
        "last_error": "null",
    });
    let body = get(&routed, "/admin/workers").json();
    assert_shape(&body, &json!({"workers": [worker]}));
    let a = &list(&body, "workers")[0];
    let field = |key: &str| a[key].clone();
    assert_eq!(a["url"], routed.engines[0].url());
    assert_eq!(
        [field("name"), field("type"), field("state"), field("role")],
        ["a", "vllm", "ready", "unified"]
    );
    assert_eq!(
        [field("models"), field("loras")],
        [json!(["sim"]), json!(["red"])]
    );
    assert_eq!(
        [field("block_size"), field("dp_ranks"), field("weight")],
        [json!(16), json!(1), json!(1.0)]
    );
    assert_eq!(
        [field("cache_source"), field("circuit"), field("parity")],
        ["events", "closed", "no_data"]
    );
    assert_eq!(a["engine"]["num_blocks"], 4096);
    let keys = |worker: &Value| {
        worker
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        keys(&routed.worker("a")),
        keys(a),
        "one worker has the shape of one in the list"
    );
    let unknown = get(&routed, "/admin/workers/nobody");
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("worker_not_found"))
    );
}

#[test]
fn a_stream_object_has_all_documented_fields() {
    let (routed, turns) = routed();
    let stream = json!({
        "worker": "string", "dp_rank": "int", "source": "string", "endpoint": "string", "replay_endpoint": "string",
        "state": "string", "epoch": "int", "last_seq": "null|int", "lag_events": "int", "lag_ms": "null|number",
        "last_event_at": "null|time",
        "counts": {
            "batches": "int", "events": "int", "applied": "int", "ignored": "int", "decode_errors": "int",
            "orphans": "int", "duplicates": "int", "gaps": "int", "holes": "int", "restarts": "int", "dropped": "int",
            "rehashed": "int", "unlisted_media": "int",
        },
        "last_error": "null",
    });
    let body = get(&routed, "/admin/streams").json();
    assert_shape(&body, &json!({"streams": [stream]}));
    let streams = list(&body, "streams");
    let names: Vec<_> = streams
        .iter()
        .map(|it| (it["worker"].as_str(), it["dp_rank"].as_u64()))
        .collect();
    assert_eq!(
        names,
        [
            (Some("a"), Some(0)),
            (Some("b"), Some(0)),
            (Some("b"), Some(1))
        ]
    );
    let used = streams
        .iter()
        .find(|it| it["worker"] == *turns[0].worker && it["counts"]["batches"] != 0);
    let used = used.expect("the engine that answered published something");
    assert_eq!(
        (&used["source"], &used["state"], &used["epoch"]),
        (&json!("zmq"), &json!("live"), &json!(1))
    );
    assert_eq!(used["counts"]["applied"], used["counts"]["events"]);
}

#[test]
fn a_receipt_has_all_documented_fields() {
    let (routed, turns) = routed();
    let last = routed.receipt(&turns[1]);
    assert_shape(&last, &receipt());
    let field = |key: &str| last[key].clone();
    assert_eq!(
        [field("schema"), field("request_id")],
        ["warmroute.receipt/1", "mine"]
    );
    assert_eq!(
        [field("route"), field("method"), field("tenant")],
        ["/v1/chat/completions", "policy", "default"]
    );
    assert_eq!(last["id"], turns[1].decision);
    assert_eq!(last["winner"]["worker"], turns[1].worker);
    assert_eq!(last["candidates_total"], 3);
    let rows = list(&last, "candidates");
    let ranks: Vec<_> = rows.iter().map(|row| row["rank"].as_u64()).collect();
    assert_eq!(ranks, [Some(1), Some(2), Some(3)]);
    assert_eq!(
        (&rows[0]["target"], &rows[1]["target"]),
        (&last["winner"], &last["runner_up"])
    );
    let cost = |row: &Value| row["cost"].as_f64().expect("a cost");
    assert!(cost(&rows[0]) <= cost(&rows[1]), "the cheapest wins");
    for row in rows {
        let terms = row["terms"]
            .as_object()
            .expect("terms")
            .values()
            .filter_map(Value::as_f64)
            .sum::<f64>();
        assert!(
            (terms - cost(row)).abs() < 1e-6,
            "the terms of {row} add up to its cost"
        );
    }
    assert_eq!(
        (&last["prompt"]["tokens"], &last["outcome"]["kind"]),
        (&json!(turns[1].prompt_tokens), &json!("ok"))
    );
    assert_eq!(
        (
            &last["outcome"]["cached_tokens"],
            &last["outcome"]["drift_tokens"]
        ),
        (&json!(turns[1].cached), &json!(0))
    );
    assert_eq!(last["attempts"][0]["result"], "ok");
    assert_eq!(
        last["outcome"]["ttft_ms"],
        Value::Null,
        "a plain reply does not show the time of its first token"
    );
    assert!(last["request_id"] == "mine" && turns[1].reply.header("x-request-id") == Some("mine"));
    let missing = get(&routed, "/admin/decisions/0123456789abcdef");
    assert_eq!(
        (missing.status, &missing.json()["error"]["code"]),
        (404, &json!("decision_not_found"))
    );
    assert_eq!(get(&routed, "/admin/decisions/none").status, 404);
}

#[test]
#[contract("V43")]
fn decisions_are_listed_newest_first_and_can_be_filtered() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let ids: Vec<String> = [
        ("a", "warm"),
        ("b", "warm"),
        ("a", "random"),
        ("b", "round_robin"),
        ("a", "warm"),
    ]
    .map(|(worker, policy)| {
        let headers = [
            ("x-warmroute-worker", worker),
            ("x-warmroute-policy", policy),
        ];
        routed
            .chat(&[chat_message("user", "hi")], &headers)
            .decision
    })
    .into();
    let listed = |query: &str| -> Vec<usize> {
        let body = get(&routed, &format!("/admin/decisions{query}")).json();
        let summary = |receipt: &Value| {
            ids.iter()
                .position(|id| receipt["id"] == **id)
                .expect("a request of this test")
        };
        list(&body, "decisions").iter().map(summary).collect()
    };
    assert_eq!(listed(""), [4, 3, 2, 1, 0]);
    assert_eq!(listed("?limit=2"), [4, 3]);
    assert_eq!(listed("?limit=0"), [0; 0]);
    assert_eq!(listed("?limit=100000"), [4, 3, 2, 1, 0]);
    assert_eq!(listed("?worker=b"), [3, 1]);
    assert_eq!(listed("?policy=warm"), [4, 1, 0]);
    assert_eq!(listed("?policy=warm&worker=a&limit=1"), [4]);
    assert_eq!(listed("?tenant=default").len(), 5);
    assert_eq!(listed("?tenant=nobody"), [0; 0]);
    assert_eq!(listed("?worker=nobody"), [0; 0]);
    for (query, code) in [
        ("limit=x", "invalid_request"),
        ("limit=-1", "invalid_request"),
        ("policy=x", "unknown_policy"),
    ] {
        let reply = get(&routed, &format!("/admin/decisions?{query}"));
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (400, &json!(code)),
            "{query}"
        );
        assert_eq!(
            reply.json()["error"]["param"],
            query.split_once('=').expect("a pair").0
        );
    }
}

#[test]
fn the_model_list_names_the_sources_of_tokens_and_templates() {
    let (routed, _) = routed();
    let model = json!({
        "id": "string", "workers": ["string"],
        "tokenizer": {"source": "string", "engine": "string", "digest": "string", "self_test": "string"},
        "template": {"source": "string", "digest": "string"},
        "block_sizes": ["int"], "max_context_tokens": "int",
    });
    let body = get(&routed, "/admin/models").json();
    assert_shape(&body, &json!({"models": [model]}));
    let models = list(&body, "models");
    let sim = models
        .iter()
        .find(|it| it["id"] == "sim")
        .expect("the engines' model");
    assert_eq!(
        (&sim["workers"], &sim["block_sizes"]),
        (&json!(["a", "b"]), &json!([16]))
    );
    assert_eq!(
        (&sim["tokenizer"]["source"], &sim["template"]["source"]),
        (&json!("engine"), &json!("engine"))
    );
    assert_eq!(sim["max_context_tokens"], 32768);
    let red = models
        .iter()
        .find(|it| it["id"] == "red")
        .expect("the adapter");
    assert_eq!(red["workers"], json!(["a"]));
}

#[test]
fn the_index_endpoint_reports_its_content() {
    let (routed, turns) = routed();
    let salted = json!({"prompt": words("salted", 40), "cache_salt": "secret-salt"});
    routed.completion(salted, &[("x-warmroute-worker", "a")]);
    let body = routed.digest();
    let row = json!({"worker": "string", "dp_rank": "int", "tier": "string", "blocks": "int", "digest": "hex"});
    assert_shape(&body, &json!({"targets": [row]}));
    let reply = get(&routed, "/admin/kv-index/dump");
    let text = reply.text();
    assert!(
        !text.contains("secret-salt"),
        "a salt is shown as its digest only"
    );
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON lines"))
        .collect();
    let template = json!({
        "model": "string", "lora": "null|string", "salt": "null|hex", "block_size": "int", "worker": "string",
        "dp_rank": "int", "tier": "string", "depth": "int", "hash": "hex", "parent": "null|hex",
    });
    rows.iter().for_each(|row| assert_shape(row, &template));
    let namespaces: BTreeSet<bool> = rows.iter().map(|row| row["salt"].is_null()).collect();
    assert_eq!(namespaces.len(), 2, "one with a salt and one without");
    for row in &rows {
        let depth = row["depth"].as_u64().expect("a depth");
        let parent = rows
            .iter()
            .find(|other| other["hash"] == row["parent"] && other["salt"] == row["salt"]);
        match parent {
            None => assert_eq!((depth, &row["parent"]), (0, &Value::Null), "{row}"),
            Some(parent) => assert_eq!(parent["depth"], depth - 1, "{row}"),
        }
    }
    let blocks: u64 = list(&body, "targets")
        .iter()
        .filter_map(|row| row["blocks"].as_u64())
        .sum();
    assert_eq!(rows.len() as u64, blocks);
    let chat = rows
        .iter()
        .filter(|row| row["worker"] == *turns[0].worker && row["salt"].is_null())
        .count() as u64;
    assert!(
        chat >= turns[0].prompt_tokens / 16,
        "every whole block of the prompt is in the index"
    );
}

#[test]
#[contract("V32")]
fn a_tenant_object_has_all_documented_fields() {
    let (routed, turns) = routed();
    let tenant = json!({
        "name": "string", "enabled": "bool", "in_flight": "int", "queued": "int", "requests": "int", "limited": "int",
        "prompt_tokens": "int", "cached_tokens": "int", "completion_tokens": "int", "errors": "int", "metadata": {},
    });
    let ended = || {
        let body = get(&routed, "/admin/tenants").json();
        (body["tenants"][0]["in_flight"] == 0).then_some(body)
    };
    let body = eventually("both requests have ended", ended);
    assert_shape(&body, &json!({"tenants": [tenant]}));
    let only = &list(&body, "tenants")[0];
    assert_eq!(only["name"], "default", "no keys are configured");
    assert_eq!(only["requests"], turns.len());
    let prompt_tokens: u64 = turns.iter().map(|turn| turn.prompt_tokens).sum();
    assert_eq!(only["prompt_tokens"], prompt_tokens);
    let cached_tokens: u64 = turns.iter().map(|turn| turn.cached).sum();
    assert!(cached_tokens > 0, "the second turn repeats the first");
    assert_eq!(only["cached_tokens"], cached_tokens);
}

#[test]
#[contract("V32")]
fn the_sessions_object_has_all_documented_fields() {
    let (routed, turns) = routed();
    let body = get(&routed, "/admin/sessions").json();
    let ended = json!({"room": "int", "budget": "int", "overdue": "int", "refused": "int"});
    let shape = json!({
        "enabled": "bool", "keep_seconds": "number", "return_share": "number", "workers": [], "waiting_total": "int",
        "waiting": [], "ended": ended,
    });
    assert_shape(&body, &shape);
    assert_eq!(body["enabled"], false, "after {} requests", turns.len());
    let wrong = RawClient::get(&routed.router.admin(), "/admin/sessions?limit=x");
    assert_eq!(wrong.status, 400);
}

#[test]
fn unknown_paths_methods_and_models_answer_with_the_documented_errors() {
    let routed = RoutedFleet::start(&[&[]]);
    let error = json!({
        "error": {
            "message": "string", "type": "string", "param": "null|string", "code": "string", "request_id": "string",
        },
    });
    let later = ["/admin/simulate", "/admin/dashboard", "/nope", "/"];
    for path in later {
        let reply = get(&routed, path);
        assert_eq!(reply.status, 404, "{path}");
        assert_shape(&reply.json(), &error);
        let body = reply.json()["error"].clone();
        assert_eq!(
            [&body["code"], &body["type"]],
            ["unknown_route", "not_found_error"],
            "{path}"
        );
        assert_eq!(reply.header("x-request-id"), body["request_id"].as_str());
        assert_eq!(reply.header("x-should-retry"), Some("false"));
    }
    let wrong = RawClient::post(&routed.router.admin(), "/admin/models", b"{}");
    assert_eq!(
        (wrong.status, &wrong.json()["error"]["code"]),
        (405, &json!("method_not_allowed"))
    );
    assert_eq!(wrong.header("allow"), Some("GET,HEAD"));
    let data = routed.router.data();
    for path in ["/v1/rout", "/reset_prefix_cache", "/v1/nothing"] {
        let reply = RawClient::post(&data, path, b"{}");
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (404, &json!("unknown_route")),
            "{path}"
        );
    }
    let model = RawClient::post(
        &data,
        "/v1/completions",
        br#"{"model":"none","prompt":"x"}"#,
    );
    assert_eq!(
        (model.status, &model.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}

#[test]
fn health_is_served_on_the_data_listener() {
    let mut routed = RoutedFleet::start(&[&[], &[]]);
    let health = |routed: &RoutedFleet| RawClient::get(&routed.router.data(), "/health");
    let good = health(&routed);
    let whole = json!({"status": "ok", "workers": {"ready": 2, "total": 2}, "degraded": []});
    assert_eq!((good.status, good.json()), (200, whole));
    for path in ["/livez", "/readyz"] {
        let reply = RawClient::get(&routed.router.data(), path);
        assert_eq!(
            (reply.status, reply.json()),
            (200, json!({"status": "ok", "reasons": []})),
            "{path}"
        );
    }
    routed.engines[0].kill();
    eventually("the loss to show", || {
        (health(&routed).json()["status"] == "degraded").then_some(())
    });
    assert_eq!(
        health(&routed).json()["workers"],
        json!({"ready": 1, "total": 2})
    );
    routed.engines[1].kill();
    eventually("the outage to show", || {
        (health(&routed).json()["status"] == "unavailable").then_some(())
    });
    assert_eq!(RawClient::get(&routed.router.data(), "/livez").status, 200);
    assert_eq!(RawClient::get(&routed.router.data(), "/readyz").status, 503);
}

/// Streams a completion from this worker and returns its receipt.
fn stream(routed: &RoutedFleet, worker: &str) -> Value {
    let body = json!({
        "model": "sim", "prompt": "hi", "max_tokens": 3, "stream": true, "stream_options": {"include_usage": true},
    });
    let mut client = RawClient::connect(&routed.router.data());
    let headers = [("x-warmroute-worker", worker), ("x-request-id", "streamed")];
    client.send(
        "POST",
        "/v1/completions",
        &headers,
        body.to_string().as_bytes(),
    );
    let reply = client.reply();
    assert!(
        reply.clean && reply.text().ends_with("data: [DONE]\n\n"),
        "{}",
        reply.text()
    );
    routed.caught_up();
    routed.router.receipt("streamed")
}

/// Every family with its type and its labels except `le`.
const FAMILIES: &[(&str, &str, &[&str])] = &[
    ("warmroute_requests", "counter", &["route", "outcome"]),
    ("warmroute_attempts", "counter", &["class", "result"]),
    ("warmroute_shed", "counter", &["reason"]),
    ("warmroute_slo_requests", "counter", &["slo", "result"]),
    ("warmroute_admission", "counter", &["outcome"]),
    ("warmroute_fetches", "counter", &["result"]),
    ("warmroute_throttled_keys", "counter", &["listener"]),
    ("warmroute_audit_lines", "counter", &["result"]),
    ("warmroute_decisions", "counter", &["policy", "method"]),
    ("warmroute_panics", "counter", &[]),
    ("warmroute_task_panics", "counter", &["task"]),
    ("warmroute_telemetry_dropped", "counter", &["sink"]),
    ("warmroute_scheduler_stall_seconds", "counter", &[]),
    (
        "warmroute_upstream_failures",
        "counter",
        &["worker", "reason"],
    ),
    ("warmroute_local_failures", "counter", &[]),
    ("warmroute_upstream_throttled", "counter", &["worker"]),
    ("warmroute_streams_incomplete", "counter", &["worker"]),
    ("warmroute_snapshot_saves", "counter", &["result"]),
    ("warmroute_snapshot_rejected", "counter", &["reason"]),
    ("warmroute_snapshot_age_seconds", "gauge", &[]),
    ("warmroute_snapshot_bytes", "gauge", &[]),
    ("warmroute_snapshot_save_seconds", "gauge", &[]),
    ("warmroute_memory_stage", "gauge", &[]),
    ("warmroute_config_reloads", "counter", &["result"]),
    ("warmroute_prompt_tokens", "counter", &["worker"]),
    ("warmroute_predicted_cached_tokens", "counter", &["worker"]),
    ("warmroute_actual_cached_tokens", "counter", &["worker"]),
    (
        "warmroute_parity_requests",
        "counter",
        &["worker", "result"],
    ),
    ("warmroute_parity_exact_ratio", "gauge", &["worker"]),
    ("warmroute_kv_events", "counter", &["worker", "kind"]),
    ("warmroute_kv_events_ignored", "counter", &["reason"]),
    ("warmroute_kv_decode_errors", "counter", &["worker"]),
    ("warmroute_kv_unlisted_media", "counter", &["worker"]),
    ("warmroute_kv_gaps", "counter", &["worker"]),
    ("warmroute_kv_resets", "counter", &["worker"]),
    ("warmroute_index_shed", "counter", &["reason"]),
    ("warmroute_prompt_computations", "counter", &["result"]),
    ("warmroute_background_computations", "counter", &["result"]),
    ("warmroute_conversation_memory_bytes", "gauge", &[]),
    ("warmroute_conversations_remembered", "gauge", &[]),
    ("warmroute_prompt_source", "counter", &["source"]),
    ("warmroute_prefill", "counter", &["result"]),
    ("warmroute_ttft_seconds", "histogram", &["worker"]),
    ("warmroute_stage_seconds", "histogram", &["stage"]),
    ("warmroute_decision_seconds", "histogram", &["policy"]),
    ("warmroute_queue_wait_seconds", "histogram", &[]),
    ("warmroute_request_seconds", "histogram", &["route"]),
    ("warmroute_overlap_ratio", "histogram", &[]),
    ("warmroute_workers", "gauge", &["state"]),
    ("warmroute_in_flight", "gauge", &["worker"]),
    ("warmroute_open_streams", "gauge", &[]),
    ("warmroute_leases", "gauge", &[]),
    ("warmroute_queued", "gauge", &[]),
    ("warmroute_admission_waiting", "gauge", &[]),
    ("warmroute_held_body_bytes", "gauge", &[]),
    ("warmroute_index_blocks", "gauge", &["tier"]),
    ("warmroute_index_memberships", "gauge", &[]),
    ("warmroute_index_bytes", "gauge", &[]),
    ("warmroute_index_budget_bytes", "gauge", &[]),
    ("warmroute_kv_stream_state", "gauge", &["worker", "state"]),
    ("warmroute_kv_lag_seconds", "gauge", &["worker"]),
    ("warmroute_kv_last_event_age_seconds", "gauge", &["worker"]),
    ("warmroute_cache_source", "gauge", &["worker", "source"]),
    ("warmroute_prefill_tokens_per_second", "gauge", &["worker"]),
    ("warmroute_degraded", "gauge", &["part"]),
    ("continuum_response_cache_requests", "counter", &["result"]),
    ("continuum_response_cache_entries", "gauge", &[]),
    ("continuum_response_cache_size_bytes", "gauge", &[]),
    ("continuum_response_cache_hit_rate", "gauge", &[]),
    ("continuum_response_cache_evictions", "counter", &[]),
    ("continuum_cache_backend_type", "gauge", &["backend"]),
    (
        "continuum_cache_tier_requests",
        "counter",
        &["result", "tier"],
    ),
    ("continuum_cache_promotions", "counter", &[]),
    ("continuum_cache_demotions", "counter", &[]),
    (
        "continuum_cache_s3_latency_seconds",
        "histogram",
        &["operation"],
    ),
    ("continuum_cache_redis_connections_active", "gauge", &[]),
    ("continuum_cache_redis_connections_idle", "gauge", &[]),
    ("continuum_cache_redis_errors", "counter", &["type"]),
    (
        "continuum_cache_redis_latency_seconds",
        "histogram",
        &["operation"],
    ),
    ("continuum_cache_fallback_active", "gauge", &[]),
    ("warmroute_cache_lookups_abandoned", "counter", &[]),
    ("warmroute_cache_writes_dropped", "counter", &[]),
    ("warmroute_cache_auth_failures", "counter", &[]),
    ("warmroute_s3_errors", "counter", &["code"]),
    ("vllm_router_cache_similarity", "histogram", &[]),
    ("warmroute_tenant_requests", "counter", &["tenant"]),
    ("warmroute_tenant_errors", "counter", &["tenant"]),
    ("warmroute_tenant_limited", "counter", &["tenant", "limit"]),
    ("warmroute_tenant_tokens", "counter", &["tenant", "kind"]),
    ("warmroute_tenant_in_flight", "gauge", &["tenant"]),
    ("warmroute_tenant_limit_routers", "gauge", &[]),
    ("warmroute_key_validations", "counter", &["result"]),
    ("warmroute_key_validation_up", "gauge", &[]),
    ("vllm_router_tenant_requests", "counter", &["tenant"]),
    ("vllm_router_tenant_errors", "counter", &["tenant"]),
    ("vllm_router_tenant_rate_limited", "counter", &["tenant"]),
    ("vllm_router_tenant_tokens", "counter", &["tenant", "kind"]),
    (
        "vllm_router_tenant_request_duration_seconds",
        "histogram",
        &["tenant"],
    ),
    ("warmroute_build_info", "gauge", &["version", "features"]),
    ("warmroute_hedged_requests", "counter", &["result"]),
    ("warmroute_deduplicated_requests", "counter", &["result"]),
    ("warmroute_model_list_refreshes", "counter", &[]),
    ("warmroute_hooks", "counter", &["hook", "result"]),
    ("warmroute_replica_messages", "counter", &["direction"]),
    ("warmroute_replica_bytes", "counter", &["direction"]),
    ("warmroute_replica_ignored_messages", "counter", &["reason"]),
    ("warmroute_replica_repairs", "counter", &[]),
    ("warmroute_replica_lost_changes", "counter", &[]),
    ("warmroute_replica_unknown_changes", "counter", &[]),
    ("warmroute_replica_peers", "gauge", &[]),
    ("warmroute_replica_connected", "gauge", &[]),
    (
        "continuum_prefix_routing_requests",
        "counter",
        &["strategy"],
    ),
    (
        "continuum_prefix_routing_backend_distribution",
        "gauge",
        &["backend"],
    ),
    ("continuum_prefix_routing_prefix_cardinality", "gauge", &[]),
    ("continuum_kv_event_received", "counter", &["backend"]),
    ("continuum_kv_event_processed", "counter", &["backend"]),
    ("continuum_kv_event_dropped", "counter", &["backend"]),
    ("continuum_kv_consumer_connected", "gauge", &["backend"]),
    ("continuum_kv_consumer_reconnects", "counter", &["backend"]),
    ("continuum_kv_index_entries", "gauge", &[]),
    ("continuum_kv_index_events", "counter", &["backend", "type"]),
    ("continuum_kv_index_query_latency_seconds", "histogram", &[]),
    (
        "continuum_kv_index_routing_decisions",
        "counter",
        &["decision"],
    ),
    ("continuum_kv_index_overlap_score", "histogram", &[]),
    (
        "continuum_kv_index_event_source_status",
        "gauge",
        &["backend", "status"],
    ),
];

/// Families whose label values are unknown before the first sample.
pub(crate) const ONLY_WHEN_IT_HAPPENS: &[&str] = &[
    "warmroute_shed",
    "warmroute_upstream_failures",
    "warmroute_hooks",
    "warmroute_upstream_throttled",
    "warmroute_streams_incomplete",
];

#[test]
fn metrics_are_open_metrics_with_closed_label_sets_and_correct_values() {
    let (routed, turns) = routed();
    turns.iter().for_each(|turn| drop(routed.receipt(turn)));
    let worker = turns[0].worker.as_str();
    let other = if worker == "a" { "b" } else { "a" };
    let streamed = stream(&routed, other);
    assert!(
        streamed["outcome"]["ttft_ms"].as_f64() > Some(0.0),
        "{streamed:#}"
    );
    let reply = get(&routed, "/metrics");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some(kind))
    );
    let page = Page::read(&reply.text());

    let known: BTreeMap<&str, (&str, BTreeSet<&str>)> = FAMILIES
        .iter()
        .map(|(name, kind, labels)| (*name, (*kind, labels.iter().copied().collect())))
        .collect();
    for (name, (kind, _)) in &known {
        if ONLY_WHEN_IT_HAPPENS.contains(name) {
            continue;
        }
        assert_eq!(
            page.families.get(*name).map(String::as_str),
            Some(*kind),
            "{name}"
        );
    }
    for name in page.families.keys() {
        assert!(known.contains_key(&**name), "{name} is documented");
    }
    for sample in &page.samples {
        let labels: BTreeSet<&str> = sample
            .labels
            .keys()
            .map(String::as_str)
            .filter(|label| *label != "le")
            .collect();
        assert_eq!(labels, known[&*sample.family].1, "{sample:?}");
    }

    let sum = |count: fn(&RoutedReply) -> u64| turns.iter().map(count).sum::<u64>() as f64;
    let route = ("route", "/v1/chat/completions");
    let workers = routed.router.workers();
    let warm = |tier: &str| {
        workers
            .iter()
            .filter_map(|worker| worker["warm_blocks"][tier].as_u64())
            .sum::<u64>() as f64
    };
    let version = Program::finish(&["--version"]).stdout;
    let version = version
        .trim()
        .strip_prefix("warmroute ")
        .expect("name and version")
        .to_owned();
    for (name, labels, value) in [
        (
            "warmroute_requests_total",
            &[route, ("outcome", "ok")][..],
            2.0,
        ),
        (
            "warmroute_decisions_total",
            &[("policy", "warm"), ("method", "policy")],
            2.0,
        ),
        (
            "warmroute_prompt_tokens_total",
            &[("worker", worker)],
            sum(|turn| turn.prompt_tokens),
        ),
        (
            "warmroute_predicted_cached_tokens_total",
            &[("worker", worker)],
            sum(|turn| turn.predicted),
        ),
        (
            "warmroute_actual_cached_tokens_total",
            &[("worker", worker)],
            sum(|turn| turn.cached),
        ),
        (
            "warmroute_parity_requests_total",
            &[("worker", worker), ("result", "exact")],
            2.0,
        ),
        (
            "warmroute_prompt_source_total",
            &[("source", "tokens")],
            3.0,
        ),
        (
            "warmroute_decisions_total",
            &[("policy", "warm"), ("method", "pinned")],
            1.0,
        ),
        ("warmroute_ttft_seconds_count", &[("worker", other)], 1.0),
        ("warmroute_request_seconds_count", &[route], 2.0),
        ("warmroute_workers", &[("state", "ready")], 2.0),
        ("warmroute_workers", &[("state", "down")], 0.0),
        ("warmroute_in_flight", &[("worker", worker)], 0.0),
        ("warmroute_leases", &[], 0.0),
        ("warmroute_open_streams", &[], 0.0),
        ("warmroute_held_body_bytes", &[], 0.0),
        (
            "warmroute_index_blocks",
            &[("tier", "device")],
            warm("device"),
        ),
        ("warmroute_index_blocks", &[("tier", "remote")], 0.0),
        ("warmroute_index_memberships", &[], warm("device")),
        ("warmroute_index_budget_bytes", &[], f64::from(512 << 20)),
        (
            "warmroute_index_shed_total",
            &[("reason", "memory_budget")],
            0.0,
        ),
        (
            "warmroute_kv_stream_state",
            &[("worker", "b"), ("state", "live")],
            1.0,
        ),
        (
            "warmroute_cache_source",
            &[("worker", "a"), ("source", "events")],
            1.0,
        ),
        (
            "warmroute_cache_source",
            &[("worker", "a"), ("source", "predicted")],
            0.0,
        ),
        ("warmroute_kv_decode_errors_total", &[("worker", "a")], 0.0),
        ("warmroute_degraded", &[("part", "workers")], 0.0),
        ("warmroute_degraded", &[("part", "tokenizer")], 0.0),
        (
            "warmroute_build_info",
            &[
                ("version", &*version),
                ("features", "nats,otel,redis-cache,s3-cache"),
            ],
            1.0,
        ),
    ] {
        assert_eq!(
            page.value(name, labels).to_bits(),
            value.to_bits(),
            "{name} {labels:?}"
        );
    }
    assert!(warm("device") > 0.0);
    assert!(page.value("warmroute_index_bytes", &[]) > 0.0);
    assert!(page.value("warmroute_prefill_tokens_per_second", &[("worker", "b")]) > 0.0);
}

#[test]
fn failures_and_refusals_are_counted_with_their_reasons() {
    let mut routed = RoutedFleet::start(&[&[]]);
    let send = |routed: &RoutedFleet| {
        let body = json!({"model": "sim", "prompt": "hi", "max_tokens": 1}).to_string();
        RawClient::post(&routed.router.data(), "/v1/completions", body.as_bytes()).status
    };
    routed.engines[0].fault("500", 1);
    assert_eq!(send(&routed), 500);
    routed.engines[0].kill();
    eventually("the router to have no worker", || {
        (send(&routed) == 503).then_some(())
    });
    let page = Page::read(&get(&routed, "/metrics").text());
    assert!(page.value("warmroute_shed_total", &[("reason", "no_worker")]) > 0.0);
    let failures: Vec<_> = page.of("warmroute_upstream_failures_total").collect();
    assert!(
        failures
            .iter()
            .any(|it| it.labels["worker"] == "a" && it.value > 0.0),
        "{failures:?}"
    );
    assert_eq!(
        page.value("warmroute_degraded", &[("part", "workers")])
            .to_bits(),
        1.0f64.to_bits()
    );
    routed.router.wait_until_idle();
}

#[test]
fn a_request_in_flight_shows_in_the_gauges() {
    let routed = RoutedFleet::start(&[&["--speed", "1", "--overhead-ms", "1000"]]);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| routed.chat(&[chat_message("user", "slow")], &[]));
        eventually("the request to be counted", || {
            let page = Page::read(&get(&routed, "/metrics").text());
            let one = [
                ("warmroute_in_flight", &[("worker", "a")][..]),
                ("warmroute_leases", &[]),
            ];
            one.iter()
                .all(|(name, labels)| page.value(name, labels) > 0.5)
                .then_some(())
        });
        slow.join().expect("the request is answered");
    });
    routed.router.wait_until_idle();
}

#[test]
fn metrics_can_be_switched_off() {
    let routed = RoutedFleet::with(&[&[]], "metrics: {enabled: false}\n", &[]);
    let reply = get(&routed, "/metrics");
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (404, &json!("unknown_route"))
    );
}
