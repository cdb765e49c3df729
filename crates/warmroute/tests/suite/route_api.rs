//! `/v1/route`: the target of a request and a reservation there, for programs that send requests
//! themselves.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RawReply, RoutedFleet, RouterQueries, assert_shape, chat_message,
    eventually, words,
};

fn call(router: &Program, method: &str, path: &str, body: &Value) -> RawReply {
    let mut client = RawClient::connect(&router.data());
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    client.send(method, path, &[], body.as_bytes());
    client.reply()
}

/// Calls `/v1/route`, which must succeed.
fn route(router: &Program, body: &Value) -> Value {
    let reply = call(router, "POST", "/v1/route", body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn refused(router: &Program, method: &str, path: &str, body: &Value) -> (u16, String) {
    let reply = call(router, method, path, body);
    (reply.status, reply.error_code())
}

/// The fields with a prompt of `topic`.
fn with_prompt(topic: &str, fields: Value) -> Value {
    let mut body = json!({"model": "sim", "messages": [chat_message("user", &words(topic, 60))]});
    for (key, value) in fields.as_object().expect("fields are an object") {
        body[key] = value.clone();
    }
    body
}

/// All state that a request could leave behind.
fn traces(routed: &RoutedFleet) -> Value {
    let router = &routed.router;
    eventually("the running requests to be settled", || {
        router.receipts().iter().all(is_finished).then_some(())
    });
    let load: Vec<Value> = router
        .workers()
        .iter()
        .map(|worker| json!([worker["load"], worker["warm_blocks"]]))
        .collect();
    json!({
        "digest": routed.digest(),
        "load": load,
        "leases": router.metric("warmroute_leases", ""),
        "decisions": router.metric("warmroute_decisions_total", "policy="),
        "receipts": router.receipts().len(),
    })
}

/// Whether a receipt is complete. A reservation's is incomplete until its end, and no request runs
/// for it.
fn is_finished(receipt: &Value) -> bool {
    receipt["route"] == "/v1/route" || !receipt["outcome"].is_null()
}

/// The parts of a candidate that do not depend on the moment of the query.
fn stable_parts(receipt: &Value) -> Vec<Value> {
    let rows = receipt["candidates"].as_array().expect("candidates");
    rows.iter()
        .map(|row| json!([row["target"], row["rank"], row["warm_tokens"], row["load"]]))
        .collect()
}

#[test]
#[contract("DY28")]
fn a_dry_run_names_the_target_of_the_request_and_leaves_no_trace() {
    let routed = RoutedFleet::start(&[&[], &[], &[]]);
    routed.chat(&[chat_message("user", &words("warm", 60))], &[]);
    let before = traces(&routed);
    for policy in [
        "warm",
        "kv",
        "kv-aware",
        "least_loaded",
        "round-robin",
        "random",
    ] {
        for topic in ["warm", "cold"] {
            let body = with_prompt(topic, json!({"policy": policy}));
            let receipts: Vec<Value> = (0..3).map(|_| route(&routed.router, &body)).collect();
            assert!(
                receipts
                    .iter()
                    .all(|it| it["winner"] == receipts[0]["winner"]),
                "{policy}, {topic}"
            );
            assert_eq!(traces(&routed), before, "{policy}, {topic}");
        }
    }
    for policy in [
        "warm",
        "kv",
        "kv_aware",
        "least_loaded",
        "round_robin",
        "random",
    ] {
        let dry = route(
            &routed.router,
            &with_prompt("warm", json!({"policy": policy})),
        );
        assert_eq!(
            (&dry["dry_run"], &dry["outcome"], &dry["attempts"]),
            (&json!(true), &Value::Null, &json!([]))
        );
        assert!(dry.get("reservation").is_none());
        let turn = routed.chat(
            &[chat_message("user", &words("warm", 60))],
            &[("x-warmroute-policy", policy)],
        );
        let real = routed.receipt(&turn);
        assert_eq!(dry["winner"], real["winner"], "{policy}");
        assert_eq!(
            dry["overlap_blocks"],
            turn.predicted / 16,
            "{policy}: the request's prediction, in blocks of 16 tokens"
        );
        assert_eq!(stable_parts(&dry), stable_parts(&real), "{policy}");
        assert_eq!(dry["prompt"]["tokens"], real["prompt"]["tokens"]);
        assert_eq!(dry["policy"], real["policy"]);
    }
}

#[test]
#[contract("DY28")]
fn a_dry_run_answers_with_a_receipt() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let prompts = [
        (
            json!({"messages": [chat_message("user", "hello")]}),
            "tokens",
        ),
        (json!({"prompt": "hello there"}), "tokens"),
        (json!({"prompt": [5, 6, 7]}), "given"),
        (
            json!({"token_ids": (0..100).collect::<Vec<u32>>()}),
            "given",
        ),
    ];
    for (mut body, source) in prompts {
        body["model"] = json!("sim");
        let receipt = route(&routed.router, &body);
        let shape = json!({
            "schema": "string", "id": "hex", "at": "time", "request_id": "string", "tenant": "string", "dry_run": "bool",
            "route": "string", "model": "string", "served_model": "string", "lora": "null", "session": "null|string",
            "stream": "bool", "priority": "int", "policy": "string", "method": "string",
            "prompt": {"source": "string", "exact": "bool", "tokens": "int", "blocks": "int", "block_size": "int"},
            "candidates": [{"rank": "int", "cost": "number", "cost_unit": "string", "terms": "numbers"}],
            "candidates_total": "int", "excluded": [], "winner": {"worker": "string", "dp_rank": "int"},
            "reserved": {"prefill_tokens": "int", "decode_blocks": "int"}, "timing_us": "numbers", "outcome": "null",
        });
        assert_shape(&receipt, &shape);
        assert_eq!(
            (&receipt["route"], &receipt["prompt"]["source"]),
            (&json!("/v1/route"), &json!(source))
        );
    }
    let ids = route(
        &routed.router,
        &json!({"model": "sim", "token_ids": (0..100).collect::<Vec<u32>>()}),
    );
    assert_eq!(ids["prompt"]["tokens"], 100);
    assert_eq!(ids["overlap_blocks"], 0, "no worker has it");
    // Of the 100 tokens six blocks of 16 are cached after a request.
    let prompt: Vec<u32> = (0..100).collect();
    routed.completion(json!({"prompt": prompt}), &[]);
    let ids = route(
        &routed.router,
        &json!({"model": "sim", "token_ids": prompt}),
    );
    assert_eq!(ids["overlap_blocks"], 6);
}

#[test]
#[contract("DY28", "DY31", "DY32")]
fn a_reservation_holds_its_load_until_it_is_freed() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let router = &routed.router;
    let body = with_prompt(
        "place",
        json!({"request_id": "r/1", "expected_output_tokens": 50}),
    );
    let receipt = route(router, &body);
    assert_eq!(
        (&receipt["dry_run"], &receipt["request_id"]),
        (&json!(false), &json!("r/1"))
    );
    assert_shape(
        &receipt,
        &json!({"reservation": {"request_id": "string", "expires_at": "time"}}),
    );
    let worker = receipt["winner"]["worker"]
        .as_str()
        .expect("a winner")
        .to_owned();
    let tokens = receipt["prompt"]["tokens"].as_u64().expect("tokens");
    let load = || routed.worker(&worker)["load"].clone();
    assert_eq!(
        load(),
        json!({"in_flight": 1, "queued_prefill_tokens": tokens, "decode_blocks": receipt["reserved"]["decode_blocks"]})
    );
    assert_eq!(
        receipt["reserved"],
        json!({"prefill_tokens": tokens, "decode_blocks": tokens.div_ceil(16)})
    );

    let stored = RawClient::get(
        &router.admin(),
        &format!(
            "/admin/decisions/{}",
            receipt["id"].as_str().expect("an id")
        ),
    );
    assert_eq!(stored.json()["winner"], receipt["winner"]);
    assert_eq!(
        refused(router, "POST", "/v1/route", &body),
        (409, "reservation_exists".to_owned())
    );
    assert_eq!(
        load()["in_flight"],
        1,
        "a refused reservation counts nothing"
    );

    let complete = call(
        router,
        "POST",
        "/v1/route/r%2F1/prefill_complete",
        &Value::Null,
    );
    assert_eq!(
        (complete.status, complete.json()),
        (200, json!({"request_id": "r/1", "state": "decoding"}))
    );
    assert_eq!(
        (&load()["queued_prefill_tokens"], &load()["in_flight"]),
        (&json!(0), &json!(1))
    );
    // The router does not know when the request was sent, so its first token is no measure of the
    // engine.
    assert_eq!(routed.worker(&worker)["rates"]["samples"], 0);
    assert_eq!(
        call(
            router,
            "POST",
            "/v1/route/r/1/prefill_complete",
            &Value::Null
        )
        .status,
        200,
        "the same reply again"
    );

    let freed = call(router, "DELETE", "/v1/route/r/1", &Value::Null);
    assert_eq!(
        (freed.status, freed.json()),
        (200, json!({"request_id": "r/1", "state": "freed"}))
    );
    router.wait_until_idle();
    let finished = router.receipt("r/1");
    assert_eq!(finished["outcome"]["kind"], "ok");
    assert!(
        finished["outcome"]["ttft_ms"].as_f64() <= finished["outcome"]["duration_ms"].as_f64(),
        "{finished:#}"
    );

    let unknown = (404, "reservation_not_found".to_owned());
    assert_eq!(
        refused(router, "DELETE", "/v1/route/r/1", &Value::Null),
        unknown
    );
    assert_eq!(
        refused(
            router,
            "POST",
            "/v1/route/r/1/prefill_complete",
            &Value::Null
        ),
        unknown
    );
    assert_eq!(
        refused(router, "DELETE", "/v1/route/never", &Value::Null),
        unknown
    );
    assert_eq!(
        refused(router, "POST", "/v1/route/r/1", &Value::Null),
        (404, "unknown_route".to_owned())
    );
    assert_eq!(
        route(router, &body)["dry_run"],
        false,
        "a freed id may be used again"
    );
}

#[test]
fn a_reservation_attracts_equal_prompts_like_a_request() {
    let routed = RoutedFleet::start(&[&[], &[], &[]]);
    let first = route(
        &routed.router,
        &with_prompt("drawn", json!({"request_id": "r1"})),
    );
    let second = route(&routed.router, &with_prompt("drawn", json!({})));
    assert_eq!(second["winner"], first["winner"]);
    assert!(
        second["candidates"][0]["warm_tokens"]["speculative"].as_u64() > Some(0),
        "{second:#}"
    );
}

#[test]
fn a_reservation_without_a_call_expires() {
    let engine = Program::engine(&[]);
    let env = [("WARMROUTE_ROUTING__RESERVATION_TTL", "50ms")];
    let router = Program::serve_with_env(&[engine.url()], &[], &env).ready(1);
    route(&router, &with_prompt("late", json!({"request_id": "r1"})));
    router.wait_until_idle();
    let unknown = (404, "reservation_not_found".to_owned());
    assert_eq!(
        refused(
            &router,
            "POST",
            "/v1/route/r1/prefill_complete",
            &Value::Null
        ),
        unknown
    );
    assert_eq!(router.receipt("r1")["outcome"]["kind"], "client_gone");
}

#[test]
fn a_reservation_on_a_worker_that_goes_away_is_freed() {
    let mut engine = Program::engine(&[]);
    let env = [("WARMROUTE_HEALTH_CHECKS__INTERVAL", "100ms")];
    let router = Program::serve_with_env(&[engine.url()], &[], &env).ready(1);
    route(&router, &with_prompt("lost", json!({"request_id": "r1"})));
    engine.kill();
    eventually("the reservation to be freed", || {
        (router.metric("warmroute_leases", "") == 0.0).then_some(())
    });
    assert_eq!(
        refused(&router, "DELETE", "/v1/route/r1", &Value::Null),
        (404, "reservation_not_found".to_owned())
    );
    assert_eq!(router.receipt("r1")["outcome"]["kind"], "upstream_error");
}

#[test]
#[contract("DY30")]
fn potential_loads_give_the_load_that_every_target_would_have() {
    let routed = RoutedFleet::start(&[&[], &["--dp-size", "2"]]);
    let router = &routed.router;
    let reserved = route(
        router,
        &with_prompt("held", json!({"request_id": "r1", "worker": "b/1"})),
    );
    assert_eq!(
        (&reserved["method"], &reserved["winner"]),
        (&json!("pinned"), &json!({"worker": "b", "dp_rank": 1}))
    );
    let reserved_tokens = reserved["prompt"]["tokens"].as_u64().expect("tokens");
    let before = traces(&routed);
    let ids: Vec<u32> = (0..100).collect();
    let reply = call(
        router,
        "POST",
        "/v1/route/potential_loads",
        &json!({"model": "sim", "token_ids": ids}),
    );
    assert_eq!(
        reply.json(),
        json!({"loads": [
            {"worker_id": "a", "dp_rank": 0, "potential_prefill_tokens": 100, "potential_decode_blocks": 7},
            {"worker_id": "b", "dp_rank": 0, "potential_prefill_tokens": 100, "potential_decode_blocks": 7},
            {"worker_id": "b", "dp_rank": 1, "potential_prefill_tokens": 100 + reserved_tokens,
             "potential_decode_blocks": 7 + reserved_tokens.div_ceil(16)},
        ]})
    );
    let again = call(
        router,
        "POST",
        "/v1/route/potential_loads",
        &with_prompt("held", json!({})),
    );
    let last = again.json()["loads"][2].clone();
    // The same prompt once more: its whole blocks exist, and only its last, partial one would be
    // new.
    assert!(
        last["potential_decode_blocks"].as_u64() <= Some(reserved_tokens.div_ceil(16) + 1),
        "{last}"
    );
    assert_eq!(traces(&routed), before);
}

#[test]
#[contract("DY16")]
fn the_body_overrides_headers_and_configuration() {
    let routed = RoutedFleet::with(&[&[], &[]], "", &["--router-mode", "kv"]);
    let router = &routed.router;
    let weight = |receipt: &Value| receipt["candidates"][0]["terms"]["overlap_weight"].clone();
    let send = |headers: &[(&str, &str)], fields: Value| {
        let body = with_prompt("over", fields).to_string();
        RawClient::post_with(&router.data(), "/v1/route", headers, body.as_bytes()).json()
    };
    assert_eq!(weight(&send(&[], json!({}))), 1.0);
    let header = [
        ("x-warmroute-overlap-weight", "3"),
        ("x-warmroute-policy", "KV"),
    ];
    assert_eq!(weight(&send(&header, json!({}))), 3.0);
    let body = json!({"router_config_override": {"overlap_score_weight": 0.5}});
    assert_eq!(weight(&send(&header, body)), 0.5);
    assert_eq!(
        send(&header, json!({"policy": "round-robin"}))["policy"],
        "round_robin"
    );
    let pinned = send(&[("x-warmroute-worker", "a")], json!({"worker": "b"}));
    assert_eq!(
        (&pinned["winner"]["worker"], &pinned["method"]),
        (&json!("b"), &json!("pinned"))
    );
    let spared = send(&[], json!({"exclude": ["a", "long-gone"]}));
    assert_eq!(spared["winner"]["worker"], "b");
    assert_eq!(
        spared["excluded"],
        json!([{"target": {"worker": "a", "dp_rank": 0}, "reason": "failed_before"}])
    );
}

#[test]
fn workers_and_single_ranks_may_be_excluded() {
    let routed = RoutedFleet::start(&[&[], &["--dp-size", "2"]]);
    let send = |exclude: Value| {
        route(
            &routed.router,
            &with_prompt("spare", json!({"exclude": exclude})),
        )
    };
    assert_eq!(
        send(json!(["a", "b/0"]))["winner"],
        json!({"worker": "b", "dp_rank": 1})
    );
    assert_eq!(
        send(json!(["b"]))["winner"],
        json!({"worker": "a", "dp_rank": 0})
    );
    let unknown = send(json!(["a/1", "b/2", "b/x", "/"]));
    assert_eq!(
        (&unknown["excluded"], &unknown["candidates_total"]),
        (&json!([]), &json!(3))
    );
    let reserved = route(
        &routed.router,
        &with_prompt(
            "spare",
            json!({"exclude": ["a/0", "b/1"], "request_id": "r1"}),
        ),
    );
    assert_eq!(reserved["winner"], json!({"worker": "b", "dp_rank": 0}));
}

#[test]
fn a_query_without_an_answer_gets_the_reason() {
    let routed = RoutedFleet::start(&[&[]]);
    for (fields, status, code, param) in [
        (json!({"model": "other"}), 404, "model_not_found", "model"),
        (json!({"worker": "nobody"}), 400, "unknown_worker", "worker"),
        (json!({"worker": "a/1"}), 400, "unknown_worker", "worker"),
        (json!({"policy": "best"}), 400, "unknown_policy", "policy"),
        (
            json!({"token_ids": [1]}),
            400,
            "invalid_request",
            "messages",
        ),
        (
            json!({"messages": "hello"}),
            400,
            "invalid_request",
            "messages",
        ),
        (
            json!({"messages": null, "prompt": {}}),
            400,
            "invalid_request",
            "prompt",
        ),
        (
            json!({"request_id": "no spaces"}),
            400,
            "invalid_request",
            "request_id",
        ),
        (
            json!({"router_config_override": {"router_temperature": 11}}),
            400,
            "invalid_request",
            "router_config_override.router_temperature",
        ),
    ] {
        for path in ["/v1/route", "/v1/route/potential_loads"] {
            let reply = call(
                &routed.router,
                "POST",
                path,
                &with_prompt("bad", fields.clone()),
            );
            assert_eq!(
                (reply.status, reply.error_code()),
                (status, code.to_owned()),
                "{fields}"
            );
            assert_eq!(reply.json()["error"]["param"], param, "{fields}");
        }
    }
    let nobody = with_prompt("bad", json!({"exclude": ["a"], "request_id": "r1"}));
    let reply = call(&routed.router, "POST", "/v1/route", &nobody);
    assert_eq!(
        (reply.status, reply.error_code()),
        (503, "no_worker".to_owned())
    );
    assert!(reply.header("retry-after").is_some());
    assert_eq!(
        refused(&routed.router, "GET", "/v1/route", &Value::Null),
        (405, "method_not_allowed".to_owned())
    );
    let reading = call(&routed.router, "GET", "/v1/route/r1", &Value::Null);
    assert_eq!(
        (reading.status, reading.header("allow")),
        (405, Some("DELETE, POST"))
    );
    routed.router.wait_until_idle();
}

#[test]
fn reservations_require_a_client_key() {
    let engine = Program::engine(&[]);
    let router = Program::serve(&[engine.url()], &["--api-key", "sk-1"]).ready(1);
    for (method, path) in [
        ("POST", "/v1/route"),
        ("POST", "/v1/route/potential_loads"),
        ("POST", "/v1/route/r1/prefill_complete"),
        ("DELETE", "/v1/route/r1"),
    ] {
        assert_eq!(
            refused(&router, method, path, &with_prompt("key", json!({}))),
            (401, "missing_api_key".to_owned()),
            "{path}"
        );
    }
}

#[test]
fn operators_may_query_but_not_reserve() {
    let routed = RoutedFleet::start(&[&[]]);
    let before = traces(&routed);
    let send = |fields: Value| {
        let body = with_prompt("admin", fields).to_string();
        RawClient::post(&routed.router.admin(), "/v1/route", body.as_bytes())
    };
    assert_eq!(send(json!({})).json()["dry_run"], true);
    let reserving = send(json!({"request_id": "r1"}));
    assert_eq!(
        (reserving.status, reserving.error_code()),
        (400, "invalid_request".to_owned())
    );
    let reading = RawClient::get(&routed.router.admin(), "/v1/route");
    assert_eq!(
        (reading.status, reading.error_code()),
        (405, "method_not_allowed".to_owned())
    );
    assert_eq!(traces(&routed), before);
}
