//! Per-request count limits.

use contract_id::contract;
use serde_json::{Value, json};

use crate::{
    faults::fleet::{ScriptedFleet, fine},
    harness::{RawClient, RawReply, RouterQueries as _, ScriptedReply},
};

fn send(scripted: &ScriptedFleet, path: &str, body: &Value) -> RawReply {
    RawClient::post(&scripted.router.data(), path, body.to_string().as_bytes())
}

fn many(count: usize) -> Value {
    json!(vec!["x"; count])
}

/// Routes, bodies with this many items, and the field that the error names.
fn cases(choices: usize, prompts: usize, stops: usize) -> Vec<(&'static str, Value, &'static str)> {
    let message = || json!([{"role": "user", "content": "hi"}]);
    vec![
        (
            "/v1/chat/completions",
            json!({"model": "m", "messages": message(), "n": choices}),
            "n",
        ),
        (
            "/v1/chat/completions",
            json!({"model": "m", "messages": message(), "n": choices.to_string()}),
            "n",
        ),
        (
            "/v1/chat/completions",
            json!({"model": "m", "messages": message(), "stop": many(stops)}),
            "stop",
        ),
        (
            "/v1/completions",
            json!({"model": "m", "prompt": many(prompts)}),
            "prompt",
        ),
        (
            "/v1/completions",
            json!({"model": "m", "prompt": "x", "n": choices}),
            "n",
        ),
        (
            "/v1/embeddings",
            json!({"model": "m", "input": many(prompts)}),
            "input",
        ),
        (
            "/v1/rerank",
            json!({"model": "m", "query": "x", "documents": many(prompts)}),
            "documents",
        ),
        (
            "/v1/messages",
            json!({"model": "m", "max_tokens": 1, "messages": message(), "stop_sequences": many(stops)}),
            "stop_sequences",
        ),
        (
            "/v1/chat/completions/batch",
            json!({"model": "m", "messages": vec![message(); prompts]}),
            "messages",
        ),
        (
            "/inference/v1/generate",
            json!({"model": "m", "token_ids": [1], "sampling_params": {"n": choices}}),
            "sampling_params.n",
        ),
        (
            "/generate",
            json!({"model": "m", "text": many(prompts)}),
            "text",
        ),
        (
            "/generate",
            json!({"model": "m", "text": "x", "sampling_params": {"stop": many(stops)}}),
            "sampling_params.stop",
        ),
    ]
}

fn are_refused(scripted: &ScriptedFleet, cases: Vec<(&str, Value, &str)>) {
    let before = scripted.requests();
    for (path, body, field) in cases {
        let reply = send(scripted, path, &body);
        assert_eq!(reply.status, 400, "{path} {field}");
        let error = &reply.json()["error"];
        assert!(
            error["message"].as_str().unwrap().contains(field),
            "{error}"
        );
        if path != "/v1/messages" {
            assert_eq!(
                (error["code"].as_str(), error["param"].as_str()),
                (Some("invalid_request"), Some(field))
            );
        }
    }
    assert_eq!(
        scripted.requests(),
        before,
        "none of them reached the engine"
    );
}

fn are_taken(scripted: &ScriptedFleet, cases: Vec<(&str, Value, &str)>) {
    for (path, body, field) in cases {
        // The engine's reply does not matter, only that the request reached it.
        let before = scripted.requests();
        send(scripted, path, &body);
        assert_eq!(scripted.requests(), before + 1, "{path} {field}");
    }
}

#[test]
#[contract("S61", "S72")]
fn a_request_may_have_128_choices_2048_prompts_and_64_stop_sequences() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    are_refused(&scripted, cases(129, 2049, 65));
    are_taken(&scripted, cases(128, 2048, 64));
    scripted.router.wait_until_idle();
}

#[test]
fn each_count_limit_can_be_set_and_switched_off() {
    let scripted = ScriptedFleet::one(
        ScriptedReply::whole(fine()),
        "server: {max_choices: 2, max_prompts: 3, max_stop: 4}\n",
    );
    are_refused(&scripted, cases(3, 4, 5));
    are_taken(&scripted, cases(2, 3, 4));
    let scripted = ScriptedFleet::one(
        ScriptedReply::whole(fine()),
        "server: {max_choices: 0, max_prompts: 0, max_stop: 0}\n",
    );
    are_taken(&scripted, cases(1000, 3000, 100));
}
