//! `/v1/responses/input_tokens`: counted by the router, or by a worker.

use contract_id::contract;
use serde_json::json;

use super::RoutedEngine;
use crate::harness::{RawClient, RoutedFleet, ScriptedReply, json_reply, words};

const PATH: &str = "/v1/responses/input_tokens";

#[test]
#[contract("V36")]
fn the_routers_own_count_of_a_response_equals_the_engines_count() {
    let routed = RoutedFleet::start(&[&[]]);
    let (instructions, input) = (words("system", 30), words("said", 20));
    let body = json!({"model": "sim", "instructions": instructions, "input": input}).to_string();
    let counted = RawClient::post(&routed.router.data(), PATH, body.as_bytes());
    assert_eq!(counted.status, 200, "{}", counted.text());
    let created = RawClient::post(&routed.router.data(), "/v1/responses", body.as_bytes());
    let tokens = &created.json()["usage"]["input_tokens"];
    assert!(tokens.as_u64() > Some(50), "{tokens}");
    assert_eq!(
        counted.json(),
        json!({"object": "response.input_tokens", "input_tokens": tokens})
    );
}

#[test]
#[contract("V36")]
fn without_a_tokenizer_a_worker_counts_a_response() {
    let pair = RoutedEngine::start();
    let reply_body = r#"{ "object":"response.input_tokens", "input_tokens": 7 }"#;
    pair.engine
        .script(ScriptedReply::whole(json_reply("200 OK", "", reply_body)));
    let body = r#"{"model":"m", "input":"hi","x":1e2}"#;
    let (seen, reply) = pair.carried(PATH, body);
    assert_eq!(seen.line(), format!("POST {PATH} HTTP/1.1"));
    assert_eq!(String::from_utf8_lossy(&seen.body), body);
    assert_eq!((reply.status, reply.text().as_str()), (200, reply_body));
    pair.wait_until_idle();
}

#[test]
#[contract("V36")]
fn a_prompt_that_goes_on_with_a_response_is_counted_by_the_engine_that_has_it() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let post = |path: &str, body: &serde_json::Value| {
        RawClient::post(&routed.router.data(), path, body.to_string().as_bytes())
    };
    for _ in 0..4 {
        let first = post("/v1/responses", &json!({"model": "sim", "input": "One"}));
        let home = first.header("x-warmroute-worker").unwrap();
        let id = first.json()["id"].clone();
        // The simulated engine has no such route: what matters is which one refuses.
        let counted = post(
            PATH,
            &json!({"model": "sim", "input": "Two", "previous_response_id": id}),
        );
        assert_eq!(
            (counted.status, counted.header("x-warmroute-worker")),
            (404, Some(home))
        );
    }
}
