//! `/v1/responses`: routed by the equivalent chat, and stored by the engine.

use contract_id::contract;
use serde_json::json;

use super::RoutedEngine;
use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, json_reply, stream_reply,
};

fn two(reply: ScriptedReply) -> (Vec<ScriptedEngine>, Program) {
    let engines = [
        ScriptedEngine::start(reply.clone()),
        ScriptedEngine::start(reply),
    ];
    let workers: Vec<String> = ["a", "b"]
        .iter()
        .zip(&engines)
        .map(|(name, it)| format!("{name}={}", it.url()))
        .collect();
    let router = Program::serve(&workers, &["--policy", "round_robin"]).ready(2);
    (engines.into(), router)
}

fn worker_of(router: &Program, body: &str) -> String {
    let reply = RawClient::post(&router.data(), "/v1/responses", body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.header("x-warmroute-worker").unwrap().to_owned()
}

#[test]
fn a_response_is_routed_like_the_equivalent_chat() {
    let pair = RoutedEngine::start();
    let usage = r#""usage":{"input_tokens":20,"input_tokens_details":{"cached_tokens":16},"output_tokens":4}"#;
    pair.engine.script(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        &format!(r#"{{"id":"resp_1","object":"response",{usage}}}"#),
    )));
    let text = "word ".repeat(300);
    let (_, reply) = pair.carried(
        "/v1/responses",
        &format!(r#"{{"model":"m","instructions":"Be brief.","input":"{text}"}}"#),
    );
    let receipt = pair.receipt(&reply);
    assert_eq!(receipt["prompt"]["source"], "text_prefix");
    assert!(
        receipt["prompt"]["tokens"].as_u64() > Some(200),
        "{receipt}"
    );
    let outcome = &receipt["outcome"];
    assert_eq!(
        (&outcome["prompt_tokens"], &outcome["cached_tokens"]),
        (&json!(20), &json!(16))
    );
}

#[test]
fn a_continued_response_goes_to_the_worker_that_stores_it() {
    for streamed in [false, true] {
        let (engines, router) = two(ScriptedReply::Silence);
        for (engine, id) in engines.iter().zip(["resp_a", "resp_b"]) {
            let response = json!({"id": id, "object": "response", "usage": null});
            let created = format!(
                "event: response.created\ndata: {}\n\n",
                json!({"type": "response.created", "response": response})
            );
            let whole = json_reply("200 OK", "", &response.to_string());
            engine.script(ScriptedReply::whole(if streamed {
                stream_reply(&[created.as_bytes()])
            } else {
                whole
            }));
        }
        let send = |previous: &str| {
            format!(r#"{{"model":"m","input":"hi","stream":{streamed}{previous}}}"#)
        };
        let first = worker_of(&router, &send(""));
        let second = worker_of(&router, &send(""));
        assert_ne!(first, second);
        for (worker, id) in [("a", "resp_a"), ("b", "resp_b")] {
            for _ in 0..3 {
                assert_eq!(
                    worker_of(
                        &router,
                        &send(&format!(r#","previous_response_id":"{id}""#))
                    ),
                    worker
                );
            }
        }
        // An unknown id is routed like any other request.
        let unknown = send(r#","previous_response_id":"resp_x""#);
        assert_ne!(worker_of(&router, &unknown), worker_of(&router, &unknown));
    }
}

/// Two engines that each close the connection of their first request; returns the status and the
/// number of requests sent.
fn send_to_closing_pair(fields: &str) -> (u16, u64) {
    let (engines, router) = two(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    engines
        .iter()
        .for_each(|engine| engine.once(ScriptedReply::Cut(Vec::new())));
    let body = format!(r#"{{"model":"m","input":"hi"{fields}}}"#);
    let reply = RawClient::post(&router.data(), "/v1/responses", body.as_bytes());
    (
        reply.status,
        engines.iter().map(ScriptedEngine::requests).sum(),
    )
}

#[test]
#[contract("I4")]
fn a_stored_response_is_not_retried_when_it_may_have_begun() {
    for fields in [
        r#","store":true"#,
        "",
        r#","store":false,"previous_response_id":"resp_x""#,
    ] {
        assert_eq!(send_to_closing_pair(fields), (502, 1), "{fields}");
    }
    // A response that is not stored is also tried at the other engine.
    let (_, attempts) = send_to_closing_pair(r#","store":false"#);
    assert!(attempts > 1, "{attempts}");
}

#[test]
#[contract("I4")]
fn a_stored_response_is_retried_when_it_certainly_has_not_begun() {
    let (engines, router) = two(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"id":"r","object":"response"}"#,
    )));
    for engine in &engines {
        engine.forget();
    }
    engines[0].script(ScriptedReply::whole(json_reply(
        "503 Service Unavailable",
        "",
        "{}",
    )));
    for _ in 0..2 {
        assert_eq!(
            worker_of(&router, r#"{"model":"m","input":"hi","store":true}"#),
            "b"
        );
    }
    assert!(engines[0].requests() > 0);
}

#[test]
#[contract("S43")]
fn kv_transfer_fields_are_refused_on_responses_and_messages_too() {
    let pair = RoutedEngine::start();
    let body = r#"{"model":"m","input":"hi","kv_transfer_params":{"remote_host":"h"}}"#;
    let reply = pair.post("/v1/responses", body);
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (403, "field_not_allowed")
    );
    let body = r#"{"model":"m","messages":[],"kv_transfer_params":{"remote_host":"h"}}"#;
    assert_eq!(pair.post("/v1/messages", body).status, 403);
    assert_eq!(pair.engine.requests(), 0);
}
