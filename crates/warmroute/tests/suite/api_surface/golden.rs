//! The bytes that every route forwards, as a plain reply and as a stream.

use std::collections::BTreeSet;

use contract_id::contract;
use gateway::RouteHandler;

use super::{RoutedEngine, forms};
use crate::harness::{ScriptedReply, json_reply, stream_reply};

/// Bodies as clients write them: odd spacing, unknown members and unusual number formats.
const ROUTES: [(&str, &str); 16] = [
    (
        "/v1/chat/completions",
        r#"{ "model":"m", "messages":[{"role":"user","content":"hi"}],"x":1e2 STREAM}"#,
    ),
    (
        "/v1/completions",
        r#"{"prompt" : "once", "model":"m" , "unknown":{"a":[1.50]} STREAM}"#,
    ),
    (
        "/v1/embeddings",
        r#"{"model":"m", "input":["a","b"],"encoding_format":"float", "x":1e2 STREAM}"#,
    ),
    (
        "/v1/rerank",
        r#"{"model":"m","query":"q", "documents":["a",{"text":"b"}], "top_n":2 STREAM}"#,
    ),
    (
        "/v1/score",
        r#"{"model":"m","text_1":"a","text_2":["b","c"] , "x":-0 STREAM}"#,
    ),
    (
        "/v2/rerank",
        r#"{"model":"m","query":"q","documents":["a"], "x":1e2 STREAM}"#,
    ),
    (
        "/rerank",
        r#"{"model":"m","query":"q","documents":["a"],"x":[1.50] STREAM}"#,
    ),
    (
        "/score",
        r#"{"model":"m","queries":["a"],"documents":["b"] , "x":-0 STREAM}"#,
    ),
    (
        "/classify",
        r#"{"model":"m", "input":["a","b"],"x":1e2 STREAM}"#,
    ),
    (
        "/pooling",
        r#"{"model":"m","messages":[{"role":"user","content":"a"}],"x":1e2 STREAM}"#,
    ),
    (
        "/v1/audio/speech",
        r#"{"model":"m","input":"Hi", "voice":"v","speed":1.50 STREAM}"#,
    ),
    (
        "/v1/images/generations",
        r#"{"model":"m","prompt":"a cat" ,"size":"1024x1024","x":1e2 STREAM}"#,
    ),
    (
        "/v1/responses",
        r#"{"model":"m","input":"hi", "store":false,"x":{"y":1e2} STREAM}"#,
    ),
    (
        "/v1/chat/completions/batch",
        r#"{"model":"m", "messages":[[{"role":"user","content":"a"}],[{"role":"user","content":"b"}]],"x":1e2 STREAM}"#,
    ),
    (
        "/inference/v1/generate",
        r#"{"token_ids":[ 1,2 , 3], "sampling_params":{"n":1, "x":1e2},"request_id":"r" STREAM}"#,
    ),
    (
        "/generate",
        r#"{"text" : "once","sampling_params":{"max_new_tokens":4.0}, "rid":"r","x":-0 STREAM}"#,
    ),
];

/// Routes of engines' own APIs, where a request needs no model.
const WITHOUT_MODEL: [&str; 2] = ["/inference/v1/generate", "/generate"];

#[test]
#[contract("V36")]
fn every_route_to_a_worker_has_golden_tests() {
    // Messages have theirs in `messages_native`, forms in `forms`.
    let golden: BTreeSet<&str> = ROUTES
        .iter()
        .map(|(path, _)| *path)
        .chain(forms::ROUTES)
        .chain(["/v1/messages", "/anthropic/v1/messages"])
        .collect();
    let routes: BTreeSet<&str> = gateway::ROUTES
        .iter()
        .filter(|route| {
            matches!(
                route.endpoint,
                RouteHandler::Generate(_) | RouteHandler::GenerateAnew(_) | RouteHandler::Form
            )
        })
        .map(|route| route.path)
        .collect();
    assert_eq!(golden, routes);
}

#[test]
#[contract("V36", "I12")]
fn a_whole_reply_and_its_request_cross_every_route_byte_for_byte() {
    let pair = RoutedEngine::start();
    for (path, body) in ROUTES {
        let body = body.replace(" STREAM", "");
        let reply_body = format!(
            r#"{{ "of":"{path}", "n": 1e2,"usage":{{"prompt_tokens":3,"total_tokens":3}}}}"#
        );
        pair.engine.script(ScriptedReply::whole(json_reply(
            "200 OK",
            "x-engine: kept\r\n",
            &reply_body,
        )));
        let (seen, reply) = pair.carried(path, &body);
        assert_eq!(seen.line(), format!("POST {path} HTTP/1.1"));
        assert_eq!(String::from_utf8_lossy(&seen.body), body);
        assert_eq!((reply.status, reply.text()), (200, reply_body), "{path}");
        assert_eq!(
            (
                reply.header("x-engine"),
                reply.header("x-warmroute-rewrites")
            ),
            (Some("kept"), None)
        );
        assert!(
            reply.header("x-warmroute-worker").is_some() && reply.header("request-id").is_none()
        );
    }
    pair.wait_until_idle();
}

#[test]
#[contract("V36", "I12")]
fn a_stream_and_its_request_cross_every_route_byte_for_byte() {
    let pair = RoutedEngine::start();
    for (path, body) in ROUTES {
        let body = body.replace(" STREAM", r#","stream":true"#);
        let pieces: [&[u8]; 3] = [
            b": hello\n\ndata: {\"a\": 1e2}\n\n",
            b"event: x\r\ndata: [1]\r\n\r\n",
            b"data: [DONE]\n\n",
        ];
        pair.engine
            .script(ScriptedReply::whole(stream_reply(&pieces)));
        let (seen, reply) = pair.carried(path, &body);
        assert_eq!(seen.line(), format!("POST {path} HTTP/1.1"));
        assert_eq!(String::from_utf8_lossy(&seen.body), body);
        assert_eq!((reply.status, reply.clean), (200, true));
        assert_eq!(reply.body, pieces.concat(), "{path}");
    }
    pair.wait_until_idle();
}

#[test]
#[contract("V36", "F16")]
fn an_engines_refusal_crosses_every_route_unchanged() {
    let pair = RoutedEngine::start();
    for (path, body) in ROUTES {
        let reply_body = r#"{ "object":"error","message":"no" }"#;
        pair.engine.script(ScriptedReply::whole(json_reply(
            "422 Unprocessable Entity",
            "",
            reply_body,
        )));
        let (_, reply) = pair.carried(path, &body.replace(" STREAM", ""));
        assert_eq!(
            (reply.status, reply.text().as_str()),
            (422, reply_body),
            "{path}"
        );
    }
}

#[test]
#[contract("V36")]
fn an_invalid_request_is_refused_in_the_format_of_its_api() {
    let pair = RoutedEngine::start();
    for (path, _) in ROUTES {
        for (body, code) in [
            ("{", "invalid_json"),
            ("{}", "invalid_request"),
            (r#"{"model":"m","model":"n"}"#, "duplicate_key"),
        ] {
            let reply = pair.post(path, body);
            if body == "{}" && WITHOUT_MODEL.contains(&path) {
                assert_eq!(reply.status, 200, "{path}: {}", reply.text());
                continue;
            }
            assert_eq!(
                (reply.status, reply.error_code().as_str()),
                (400, code),
                "{path} {body}"
            );
        }
        assert_eq!(
            pair.post(path, r#"{"model":"nobody"}"#).error_code(),
            "model_not_found",
            "{path}"
        );
    }
    for path in [
        "/v1/messages",
        "/anthropic/v1/messages",
        "/v1/messages/count_tokens",
    ] {
        for (body, status, kind) in [
            ("{", 400, "invalid_request_error"),
            ("{}", 400, "invalid_request_error"),
            (
                r#"{"model":"m","system":"a","system":"b"}"#,
                400,
                "invalid_request_error",
            ),
            (
                r#"{"model":"nobody","messages":[]}"#,
                404,
                "not_found_error",
            ),
        ] {
            let reply = pair.post(path, body);
            let reply_body = reply.json();
            assert_eq!(
                (
                    reply.status,
                    &reply_body["type"],
                    reply_body["error"]["type"].as_str()
                ),
                (status, &"error".into(), Some(kind))
            );
            assert_eq!(
                reply_body["request_id"].as_str(),
                reply.header("x-request-id"),
                "{path}"
            );
            assert_eq!(
                reply.header("request-id"),
                reply.header("x-request-id"),
                "{path}"
            );
            assert_eq!(reply.header("x-should-retry"), Some("false"));
        }
    }
    // Only the two without a model reached the engine.
    assert_eq!(pair.engine.requests(), WITHOUT_MODEL.len() as u64);
}

#[test]
#[contract("V36")]
fn load_of_requests_without_generation_is_counted_and_freed() {
    let pair = RoutedEngine::start();
    let list: Vec<String> = (0..400).map(|n| format!("\"text number {n}\"")).collect();
    pair.engine.script(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"data":[]}"#,
    )));
    let (_, reply) = pair.carried(
        "/v1/embeddings",
        &format!(r#"{{"model":"m","input":[{}]}}"#, list.join(",")),
    );
    let receipt = pair.receipt(&reply);
    assert_eq!(
        (
            receipt["route"].as_str(),
            receipt["prompt"]["source"].as_str()
        ),
        (Some("/v1/embeddings"), Some("none"))
    );
    assert!(
        receipt["prompt"]["tokens"].as_u64() > Some(500),
        "{receipt}"
    );
    assert!(
        receipt["reserved"]["prefill_tokens"].as_u64() > Some(500),
        "{receipt}"
    );
    pair.wait_until_idle();
}
