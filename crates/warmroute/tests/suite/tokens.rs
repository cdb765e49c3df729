//! Token counts for clients, and tokens that the router has to fetch from engines.

use std::{path::PathBuf, time::Duration};

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, chat,
    eventually, json_reply,
};

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vllm-real")
}

/// The replies of a real vLLM 0.32.0.
fn recorded(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixtures().join(file)).expect("the fixture exists");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("each line is json"))
        .collect()
}

/// A configuration with a tokenizer directory for the model `tiny`.
fn tiny_here() -> String {
    format!(
        "models: {{entries: {{tiny: {{tokenizer: {}}}}}}}\n",
        fixtures().join("tiny-qwen").display()
    )
}

/// The address of a worker that is down.
fn absent_worker() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("w=http://{}", listener.local_addr().expect("an address"))
}

fn post(client: &mut RawClient, path: &str, body: &str) -> RawReply {
    client.send("POST", path, &[], body.as_bytes());
    client.reply()
}

#[test]
fn every_recorded_prompt_and_chat_gets_the_engines_ids_over_http() {
    let directory = fixtures().join("tiny-qwen").display().to_string();
    let engine = Program::engine(&[
        "--model",
        "tiny",
        "--tokenizer",
        &directory,
        "--no-kv-events",
    ]);
    let router = Program::serve_with(&tiny_here(), &[engine.url()], &[]).ready(1);
    let mut client = RawClient::connect(&router.data());
    let lines = recorded("tokens-tiny-qwen.jsonl");
    for line in &lines {
        let mut body = match line["kind"].as_str() {
            Some("chat") => line["request"].clone(),
            _ => {
                json!({"prompt": line["prompt"], "add_special_tokens": line["add_special_tokens"]})
            }
        };
        body["model"] = "tiny".into();
        let reply = post(&mut client, "/tokenize", &body.to_string());
        assert_eq!(reply.status, line["status"], "{body}");
        assert_eq!(
            reply.header("x-warmroute-worker"),
            None,
            "answered by the router"
        );
        let tokenized = reply.json();
        assert_eq!(
            (&tokenized["tokens"], &tokenized["count"]),
            (&line["tokens"], &line["count"]),
            "{body}"
        );
        assert_eq!(
            (&tokenized["max_model_len"], &tokenized["token_strs"]),
            (&json!(32_768), &Value::Null)
        );
        if line["kind"] == "prompt" {
            let body = json!({"model": "tiny", "tokens": line["tokens"]}).to_string();
            assert_eq!(
                post(&mut client, "/detokenize", &body).json(),
                json!({"prompt": line["detokenized"]})
            );
        }
    }
    assert_eq!(lines.len(), 156);
}

#[test]
fn tokens_and_text_are_served_without_a_worker_and_refused_where_the_engine_refuses() {
    let router = Program::serve_with(&tiny_here(), &[absent_worker()], &[]);
    let mut client = RawClient::connect(&router.data());
    // Requests that need an engine, by the status that the real engine answered.
    let mut for_an_engine = std::collections::BTreeMap::<u64, u32>::new();
    for line in recorded("tokenize-edges-tiny-qwen.jsonl") {
        let (route, body) = (
            line["route"].as_str().expect("a route"),
            line["body"].as_str().expect("a body"),
        );
        let reply = post(&mut client, route, body);
        match reply.status {
            200 => {
                let mut expected = line["reply"].clone();
                if route == "/tokenize" {
                    // No worker has reported its longest prompt; the tokenizer's files have.
                    expected["max_model_len"] = 8_192.into();
                }
                assert_eq!(reply.json(), expected, "{body}");
            }
            // A model that no worker lists may belong to a worker that is still down.
            503 => {
                assert_eq!(
                    (reply.error_code().as_str(), reply.header("retry-after")),
                    ("no_worker", Some("1"))
                );
                *for_an_engine
                    .entry(line["status"].as_u64().expect("a status"))
                    .or_default() += 1;
            }
            status => {
                assert_eq!(line["status"], status, "{body}: {}", reply.text());
                assert!(
                    reply.error_code().starts_with("invalid"),
                    "{body}: {}",
                    reply.text()
                );
            }
        }
    }
    assert_eq!(
        for_an_engine.into_iter().collect::<Vec<_>>(),
        [(200, 10), (400, 36), (404, 2)]
    );
}

#[test]
fn without_a_tokenizer_tokenize_goes_to_a_worker_and_its_cache_is_not_credited() {
    let answer = r#"{"count":2,"max_model_len":4096,"tokens":[7,8],"token_strs":null}"#;
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", answer)));
    let config = "models: {defaults: {tokenizer: none}}\n";
    let router = Program::serve_with(config, &[format!("w={}", engine.url())], &[]).ready(1);
    let text = "word ".repeat(400);
    let body = json!({"model": "m", "prompt": text, "unknown": [1, {"a": null}]}).to_string();
    let reply = RawClient::post_with(
        &router.data(),
        "/tokenize",
        &[("x-request-id", "q1")],
        body.as_bytes(),
    );
    assert_eq!(
        (
            reply.status,
            reply.text().as_str(),
            reply.header("x-warmroute-worker")
        ),
        (200, answer, Some("w"))
    );
    let seen = engine.next_request();
    assert_eq!(seen.line(), "POST /tokenize HTTP/1.1");
    assert_eq!(
        String::from_utf8_lossy(&seen.body),
        body,
        "the client's own bytes"
    );
    let receipt = router.receipt("q1");
    assert_eq!(
        (&receipt["route"], &receipt["prompt"]["source"]),
        (&json!("/tokenize"), &json!("none"))
    );
    assert_eq!(
        (
            &receipt["prompt"]["tokens"],
            &receipt["reserved"]["prefill_tokens"]
        ),
        (&json!(0), &json!(0))
    );
    let warm = &router.workers()[0]["warm_blocks"];
    assert!(
        warm.as_object()
            .is_some_and(|tiers| tiers.values().all(|blocks| *blocks == 0)),
        "{warm}"
    );

    engine.script(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"prompt":"ab"}"#,
    )));
    let reply = RawClient::post(&router.data(), "/detokenize", br#"{"tokens":[7,8]}"#);
    assert_eq!(
        reply.json(),
        json!({"prompt": "ab"}),
        "the only model is meant when none is named"
    );
    engine.script(ScriptedReply::whole(json_reply(
        "400 Bad Request",
        "",
        r#"{"error":{"message":"no"}}"#,
    )));
    let reply = RawClient::post(&router.data(), "/tokenize", br#"{"prompt":"a"}"#);
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (400, r#"{"error":{"message":"no"}}"#)
    );
    router.wait_until_idle();
}

#[test]
fn a_model_without_a_worker_is_not_found() {
    let engine = ScriptedEngine::start(ScriptedReply::Silence);
    let router = Program::serve(&[engine.url()], &[]).ready(1);
    for (route, body) in [
        ("/tokenize", r#"{"model":"x","prompt":"a"}"#),
        ("/detokenize", r#"{"model":"x","tokens":[1]}"#),
    ] {
        let reply = RawClient::post(&router.data(), route, body.as_bytes());
        assert_eq!(
            (reply.status, reply.error_code().as_str()),
            (404, "model_not_found")
        );
    }
}

/// A router that fetches tokens from its engine, with a generous budget.
fn router_for(engine: &ScriptedEngine) -> Program {
    let config = "models: {entries: {m: {tokenizer: engine}}}\nrouting: {tokenize_budget: 400ms}\n";
    Program::serve_with(config, &[format!("w={}", engine.url())], &[]).ready(1)
}

fn tokens_reply(count: u32) -> Vec<u8> {
    let tokens: Vec<u32> = (0..count).collect();
    let answer =
        json!({"count": count, "max_model_len": 4096, "tokens": tokens, "token_strs": null});
    json_reply("200 OK", "", &answer.to_string())
}

fn fine() -> Vec<u8> {
    json_reply("200 OK", "", r#"{"id":"fine"}"#)
}

fn send(router: &Program, id: &str, body: &Value) -> RawClient {
    let mut client = RawClient::connect(&router.data());
    client.send(
        "POST",
        "/v1/chat/completions",
        &[("x-request-id", id)],
        body.to_string().as_bytes(),
    );
    client
}

/// Request lines at the engine, without those of probes.
fn lines_seen(engine: &ScriptedEngine, count: usize) -> Vec<String> {
    let path = |line: String| line.split(' ').nth(1).unwrap_or_default().to_owned();
    (0..count)
        .map(|_| path(engine.next_request().line()))
        .collect()
}

const CHAT: &str = "/v1/chat/completions";

#[test]
fn tokens_are_fetched_once_and_make_the_prompt_exact() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = router_for(&engine);
    let model = &RawClient::get(&router.admin(), "/admin/models").json()["models"][0];
    assert_eq!(
        (&model["tokenizer"]["source"], &model["tokenizer"]["engine"]),
        (&json!("engine"), &json!("remote"))
    );
    eventually("the verdict to report it", || {
        router.stderr().contains("tokenizer=engine").then_some(())
    });

    let body = chat("m", "hello", 3);
    engine.once(ScriptedReply::whole(tokens_reply(100)));
    assert_eq!(send(&router, "first", &body).reply().status, 200);
    let query = engine.next_request();
    assert_eq!(query.line(), "POST /tokenize HTTP/1.1");
    let question: Value = serde_json::from_slice(&query.body).expect("a question is json");
    assert_eq!(
        question,
        json!({"model": "m", "messages": body["messages"]}),
        "only the fields that affect the tokens"
    );
    assert_eq!(send(&router, "again", &body).reply().status, 200);
    assert_eq!(
        lines_seen(&engine, 2),
        [CHAT, CHAT],
        "the second time no query is sent"
    );
    assert_eq!(engine.requests(), 3);
    for (id, new_tokens) in [("first", 100), ("again", 0)] {
        let prompt = router.receipt(id)["prompt"].clone();
        let expected = json!({"source": "engine_tokenize", "exact": true, "tokens": 100, "new_tokens": new_tokens});
        for (key, value) in expected.as_object().expect("an object") {
            assert_eq!(prompt[key], *value, "{id}: {prompt}");
        }
    }
}

#[test]
fn equal_simultaneous_token_queries_are_one_query() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = router_for(&engine);
    engine.once(ScriptedReply::Late(
        Duration::from_millis(500),
        tokens_reply(100),
    ));
    let body = chat("m", "the same", 1);
    let mut clients: Vec<_> = (0..8)
        .map(|n| send(&router, &format!("r{n}"), &body))
        .collect();
    assert!(
        clients
            .iter_mut()
            .all(|client| client.reply().status == 200)
    );
    let seen = lines_seen(&engine, 9);
    assert_eq!(
        seen.iter().filter(|path| *path == "/tokenize").count(),
        1,
        "{seen:?}"
    );
    assert!(
        (0..8).all(|n| router.receipt(&format!("r{n}"))["prompt"]["source"] == "engine_tokenize")
    );
}

#[test]
fn a_client_that_hangs_up_does_not_cancel_a_shared_token_query() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = router_for(&engine);
    engine.once(ScriptedReply::Silence);
    let body = chat("m", "the same", 1);
    let first = send(&router, "first", &body);
    assert_eq!(lines_seen(&engine, 1), ["/tokenize"]);
    engine.once(ScriptedReply::whole(tokens_reply(100)));
    let mut second = send(&router, "second", &body);
    drop(first);
    assert_eq!(second.reply().status, 200);
    assert_eq!(
        router.receipt("second")["prompt"]["source"],
        "engine_tokenize"
    );
}

/// Sends a chat and returns the source of its tokens.
fn source(router: &Program, id: &str, body: &Value) -> Value {
    assert_eq!(send(router, id, body).reply().status, 200);
    router.receipt(id)["prompt"]["source"].clone()
}

#[test]
fn an_engine_that_fails_token_queries_costs_exactness_and_opens_the_breaker() {
    for bad in [json_reply("500 Oops", "", "{}"), fine()] {
        let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
        let router = router_for(&engine);
        for text in ["one", "two", "three"] {
            engine.once(ScriptedReply::whole(bad.clone()));
            assert_eq!(source(&router, text, &chat("m", text, 1)), "text_prefix");
        }
        assert_eq!(
            source(&router, "four", &chat("m", "four", 1)),
            "text_prefix"
        );
        assert_eq!(router.receipt("four")["prompt"]["exact"], false);
        assert_eq!(
            lines_seen(&engine, 7),
            [
                "/tokenize",
                CHAT,
                "/tokenize",
                CHAT,
                "/tokenize",
                CHAT,
                CHAT
            ]
        );
        assert_eq!(router.workers()[0]["state"], "ready", "it still serves");
    }
}

#[test]
fn one_failed_token_query_does_not_stop_others() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = router_for(&engine);
    for round in 0..5 {
        engine.once(ScriptedReply::whole(json_reply("500 Oops", "", "{}")));
        assert_eq!(
            source(&router, &format!("odd{round}"), &chat("m", "odd", 1)),
            "text_prefix"
        );
    }
    engine.once(ScriptedReply::whole(tokens_reply(10)));
    assert_eq!(
        source(&router, "another", &chat("m", "another", 1)),
        "engine_tokenize"
    );
}

#[test]
fn a_closed_connection_costs_only_the_token_query_on_it() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = router_for(&engine);
    engine.once(ScriptedReply::whole(tokens_reply(10)));
    assert_eq!(
        source(&router, "first", &chat("m", "first", 1)),
        "engine_tokenize"
    );
    engine.once(ScriptedReply::Cut(Vec::new()));
    assert_eq!(source(&router, "cut", &chat("m", "cut", 1)), "text_prefix");
    engine.once(ScriptedReply::whole(tokens_reply(10)));
    assert_eq!(
        source(&router, "next", &chat("m", "next", 1)),
        "engine_tokenize"
    );
}

#[test]
fn a_token_reply_with_two_lengths_is_rejected() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = router_for(&engine);
    let body = r#"{"count":1,"max_model_len":1,"tokens":[7]}"#;
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n";
    let reply = format!(
        "{head}content-length: {}\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len(),
        body.len()
    );
    engine.once(ScriptedReply::whole(reply));
    assert_eq!(source(&router, "two", &chat("m", "two", 1)), "text_prefix");
}

#[test]
fn token_queries_in_flight_are_limited_and_the_next_prompt_uses_its_text() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = router_for(&engine);
    let waiting: Vec<_> = (0..8)
        .map(|n| {
            engine.once(ScriptedReply::Silence);
            send(
                &router,
                &format!("w{n}"),
                &chat("m", &format!("question {n}"), 1),
            )
        })
        .collect();
    assert_eq!(lines_seen(&engine, 8), ["/tokenize"; 8]);
    assert_eq!(
        source(&router, "ninth", &chat("m", "another", 1)),
        "text_prefix"
    );
    assert_eq!(lines_seen(&engine, 1), [CHAT]);
    // Clients that leave free their places.
    drop(waiting);
    for _ in 0..8 {
        engine.hang_up();
    }
    engine.once(ScriptedReply::whole(tokens_reply(10)));
    assert_eq!(
        source(&router, "tenth", &chat("m", "yet another", 1)),
        "engine_tokenize"
    );
}

#[test]
fn a_chat_with_an_image_for_an_engine_other_than_vllm_uses_its_text() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = router_that_renders(&engine, "openai");
    assert_eq!(source(&router, "image", &looking("AA==")), "text_prefix");
    assert_eq!(router.receipt("image")["prompt"]["exact"], false);
    assert_eq!(lines_seen(&engine, 1), [CHAT]);
}

/// A router in front of an engine that counts as one of this kind, with a generous time for
/// rendering.
fn router_that_renders(engine: &ScriptedEngine, kind: &str) -> Program {
    let config = format!(
        "models: {{entries: {{m: {{tokenizer: engine}}}}}}\nrouting: {{render_timeout: 20s}}\n\
         workers: [{{name: w, type: {kind}, url: \"{}\"}}]\n",
        engine.url()
    );
    Program::serve_with(&config, &[], &[]).ready(1)
}

const RENDER: &str = "/v1/chat/completions/render";

/// A chat with an image of this content.
fn looking(data: &str) -> Value {
    let mut body = chat("m", "look", 1);
    let image = json!({"url": format!("data:image/png;base64,{data}")});
    body["messages"][0]["content"] = json!([{"type": "image_url", "image_url": image}]);
    body
}

#[test]
#[contract("D2")]
fn a_chat_with_an_image_is_rendered_once_and_its_prompt_is_exact() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = router_that_renders(&engine, "vllm");
    let rendered = json!({
        "request_id": "r", "token_ids": (0..100).collect::<Vec<u32>>(), "sampling_params": {"n": 1},
        "features": {
            "mm_hashes": {"image": ["a1"]}, "kwargs_data": null,
            "mm_placeholders": {"image": [{"offset": 4, "length": 60}]},
        },
    });
    engine.once(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        &rendered.to_string(),
    )));
    let body = looking("AAAA");
    assert_eq!(source(&router, "first", &body), "engine_render");
    let query = engine.next_request();
    assert_eq!(query.line(), format!("POST {RENDER} HTTP/1.1"));
    let sent: Value = serde_json::from_slice(&query.body).expect("a query is json");
    let mut expected = body.clone();
    expected["return_mm_kwargs"] = json!(false);
    assert_eq!(sent, expected);
    assert_eq!(source(&router, "again", &body), "engine_render");
    assert_eq!(lines_seen(&engine, 2), [CHAT, CHAT], "one query for both");
    for (id, new_tokens) in [("first", 100), ("again", 0)] {
        let prompt = router.receipt(id)["prompt"].clone();
        assert_eq!(
            (&prompt["tokens"], &prompt["new_tokens"], &prompt["exact"]),
            (&json!(100), &json!(new_tokens), &json!(true))
        );
    }
    assert!(!router.stderr().contains("base64"), "no media in the log");
}

#[test]
#[contract("D2")]
fn an_engine_without_the_route_is_asked_once_and_one_that_refuses_again() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = router_that_renders(&engine, "vllm");
    let refused = json_reply("400 Bad Request", "", "{}");
    engine.once(ScriptedReply::whole(refused));
    assert_eq!(source(&router, "refused", &looking("AAAA")), "text_prefix");
    let absent = json_reply("404 Not Found", "", r#"{"detail":"Not Found"}"#);
    engine.once(ScriptedReply::whole(absent));
    for id in ["absent", "later"] {
        assert_eq!(source(&router, id, &looking(id)), "text_prefix");
        assert_eq!(router.receipt(id)["prompt"]["exact"], false);
    }
    assert_eq!(lines_seen(&engine, 5), [RENDER, CHAT, RENDER, CHAT, CHAT]);
    assert_eq!(router.workers()[0]["state"], "ready", "it still serves");
}

#[test]
fn an_engine_that_returns_with_another_tokenizer_is_queried_again() {
    let flags = ["--model", "tiny", "--no-kv-events"];
    let mut engine = Program::engine(&flags);
    let config =
        "models: {entries: {tiny: {tokenizer: engine}}}\nrouting: {tokenize_budget: 400ms}\n";
    let router = Program::serve_with(config, &[format!("w={}", engine.url())], &[]).ready(1);
    let body = chat("tiny", "What does the router do with a prompt?", 1);
    let exact = |engine: &Program, id: &str| {
        let tokenized =
            RawClient::post(&engine.data(), "/tokenize", body.to_string().as_bytes()).json();
        assert_eq!(source(&router, id, &body), "engine_tokenize");
        assert_eq!(
            router.receipt(id)["prompt"]["tokens"],
            tokenized["count"],
            "{id}"
        );
        tokenized["count"].clone()
    };
    let before = exact(&engine, "before");
    let address = engine.data();
    engine.kill();
    assert_ne!(send(&router, "gone", &body).reply().status, 200);
    let port = address.rsplit_once(':').expect("host and port").1;
    let directory = fixtures().join("tiny-qwen").display().to_string();
    let engine =
        Program::engine(&[&flags[..], &["--port", port, "--tokenizer", &directory]].concat());
    eventually("the engine to be back", || {
        (router.workers()[0]["state"] == "ready").then_some(())
    });
    assert_ne!(exact(&engine, "after"), before, "another tokenizer");
}

#[test]
fn a_refused_token_query_does_not_stop_others() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = router_for(&engine);
    engine.once(ScriptedReply::whole(json_reply(
        "400 Bad Request",
        "",
        "{}",
    )));
    assert_eq!(
        send(&router, "first", &chat("m", "one", 1)).reply().status,
        200
    );
    assert_eq!(router.receipt("first")["prompt"]["source"], "text_prefix");
    engine.once(ScriptedReply::whole(tokens_reply(10)));
    assert_eq!(
        send(&router, "second", &chat("m", "another", 1))
            .reply()
            .status,
        200
    );
    assert_eq!(
        router.receipt("second")["prompt"]["source"],
        "engine_tokenize"
    );
}

#[test]
fn a_batch_of_prompts_counts_by_its_length() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = Program::serve(&[engine.url()], &[]).ready(1);
    let body = json!({"model": "m", "prompt": ["four", "words ".repeat(100)], "max_tokens": 1})
        .to_string();
    let reply = RawClient::post_with(
        &router.data(),
        "/v1/completions",
        &[("x-request-id", "b")],
        body.as_bytes(),
    );
    assert_eq!(reply.status, 200);
    let receipt = router.receipt("b");
    // Two strings of 6 and 602 bytes of JSON.
    assert_eq!(
        (&receipt["prompt"]["tokens"], &receipt["prompt"]["source"]),
        (&json!(152), &json!("none"))
    );
    assert_eq!(receipt["reserved"]["prefill_tokens"], 152);
}
