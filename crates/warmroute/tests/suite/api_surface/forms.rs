//! Forms with files: `/v1/audio/transcriptions` and `translations`, `/v1/images/edits` and
//! `variations`.

use contract_id::contract;
use serde_json::json;

use super::RoutedEngine;
use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, chunked,
    json_reply, stream_reply,
};

pub(super) const ROUTES: [&str; 4] = [
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/edits",
    "/v1/images/variations",
];
const PATH: &str = ROUTES[0];
const TYPE: (&str, &str) = ("content-type", "multipart/form-data; boundary=e-n-d");
const MIB: usize = 1 << 20;

/// The order of a form's parts.
#[derive(Clone, Copy)]
enum ModelAt {
    Start,
    End,
    Nowhere,
}

/// A form with a file of this many bytes.
fn form(model: &str, at: ModelAt, file_bytes: usize) -> Vec<u8> {
    let field =
        format!("--e-n-d\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n");
    let head = "--e-n-d\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
                Content-Type: audio/wav\r\n\r\n";
    // Delimiters of other forms, and half of this one's, are in the file.
    let noise = b"\r\n--e-n\r\n--e\r\x00\xff";
    let file: Vec<u8> = noise.iter().copied().cycle().take(file_bytes).collect();
    let parts: [&[u8]; 3] = match at {
        ModelAt::Start => [field.as_bytes(), head.as_bytes(), &file],
        ModelAt::End | ModelAt::Nowhere => [b"", head.as_bytes(), &file],
    };
    let mut body = parts.concat();
    body.extend(b"\r\n");
    if let ModelAt::End = at {
        body.extend(field.as_bytes());
    }
    body.extend(b"--e-n-d--\r\n");
    body
}

/// Sends as much of a form as the router accepts.
fn post(router: &Program, path: &str, body: &[u8]) -> RawReply {
    let mut client = RawClient::connect(&router.data());
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\n{}: {}\r\ncontent-length: {}\r\n\r\n",
        TYPE.0,
        TYPE.1,
        body.len()
    );
    client.send_bytes(head.as_bytes());
    client.offer_bytes(body);
    client.reply()
}

fn two(yaml: &str) -> (Vec<ScriptedEngine>, Program) {
    let engines =
        [0, 1].map(|_| ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}"))));
    let workers: Vec<String> = ["a", "b"]
        .iter()
        .zip(&engines)
        .map(|(name, it)| format!("{name}={}", it.url()))
        .collect();
    let router = Program::serve_with(yaml, &workers, &["--policy", "round_robin"]).ready(2);
    (engines.into(), router)
}

#[test]
#[contract("V36", "I12")]
fn a_form_and_its_reply_cross_every_route_byte_for_byte() {
    let pair = RoutedEngine::start();
    let text = r#"{ "text":"hello", "n": 1e2 }"#;
    let reply = json_reply("200 OK", "x-engine: kept\r\n", text);
    pair.engine.script(ScriptedReply::whole(reply));
    for path in ROUTES {
        for at in [ModelAt::Start, ModelAt::End] {
            for size in [0, 1000, 3 * MIB] {
                let body = form("m", at, size);
                let reply = post(&pair.router, path, &body);
                assert_eq!((reply.status, reply.text().as_str()), (200, text), "{path}");
                assert_eq!(
                    (
                        reply.header("x-engine"),
                        reply.header("x-warmroute-rewrites")
                    ),
                    (Some("kept"), None)
                );
                let seen = pair.engine.next_request();
                assert_eq!(seen.line(), format!("POST {path} HTTP/1.1"));
                assert_eq!(seen.header("content-type").as_deref(), Some(TYPE.1));
                assert_eq!(seen.header("content-length"), Some(body.len().to_string()));
                assert!(seen.body == body, "the form changed on its way: {path}");
                let receipt = pair.receipt(&reply);
                let streamed = (size > MIB).then_some(true);
                assert_eq!(receipt["body_streamed"].as_bool(), streamed, "{receipt}");
            }
        }
    }
    pair.wait_until_idle();
}

#[test]
#[contract("V36", "I12")]
fn the_stream_that_answers_a_form_crosses_every_route_byte_for_byte() {
    let pair = RoutedEngine::start();
    let pieces: [&[u8]; 3] = [
        b": hello\n\ndata: {\"type\": \"transcript.text.delta\", \"n\": 1e2}\n\n",
        b"event: x\r\ndata: [1]\r\n\r\n",
        b"data: [DONE]\n\n",
    ];
    pair.engine
        .script(ScriptedReply::whole(stream_reply(&pieces)));
    for path in ROUTES {
        for size in [1000, 3 * MIB] {
            let reply = post(&pair.router, path, &form("m", ModelAt::Start, size));
            assert_eq!((reply.status, reply.clean), (200, true), "{path}");
            let kind = reply.header("content-type").unwrap_or_default();
            assert!(kind.starts_with("text/event-stream"), "{kind}");
            assert_eq!(reply.body, pieces.concat(), "{path} {size}");
        }
    }
    pair.wait_until_idle();
}

#[test]
#[contract("V36")]
fn a_form_of_40_mib_is_not_collected_in_memory() {
    test_programs::require!(ProcStatus);
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    let pair = RoutedEngine::with(
        engine,
        "server: {max_body_bytes: 64MiB, max_held_bytes: 64MiB}\n",
    );
    assert_eq!(
        post(&pair.router, PATH, &form("m", ModelAt::Start, 2 * MIB)).status,
        200
    );
    pair.engine.forget();
    let before = pair.router.most_resident();
    let body = form("m", ModelAt::Start, 40 * MIB);
    let reply = post(&pair.router, PATH, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(
        pair.engine.next_request().body == body,
        "the form changed on its way"
    );
    let grown = pair.router.most_resident() - before;
    assert!(grown < 16 * MIB as u64, "{grown} bytes more were resident");
    pair.wait_until_idle();
}

#[test]
#[contract("V36")]
fn a_chunked_form_crosses_chunked_and_ends_at_the_limit_of_bodies() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    let pair = RoutedEngine::with(engine, "server: {max_body_bytes: 4MiB}\n");
    let send = |body: &[u8]| {
        let pieces: Vec<&[u8]> = body.chunks(100_000).collect();
        let mut client = RawClient::connect(&pair.router.data());
        let head = format!(
            "POST {PATH} HTTP/1.1\r\nhost: a\r\n{}: {}\r\ntransfer-encoding: chunked\r\n\r\n",
            TYPE.0, TYPE.1
        );
        client.send_bytes(head.as_bytes());
        client.offer_bytes(&chunked(&pieces));
        client.reply()
    };
    let body = form("m", ModelAt::Start, 3 * MIB);
    assert_eq!(send(&body).status, 200);
    let seen = pair.engine.next_request();
    assert_eq!(seen.header("content-length"), None);
    assert!(seen.body == body, "the form changed on its way");
    let small = form("m", ModelAt::End, 1000);
    assert_eq!(send(&small).status, 200);
    let seen = pair.engine.next_request();
    assert_eq!(seen.header("content-length"), Some(small.len().to_string()));
    // The engine never has a whole request.
    let reply = send(&form("m", ModelAt::Start, 4 * MIB));
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (413, "body_too_large")
    );
    let announced = post(&pair.router, PATH, &form("m", ModelAt::Start, 4 * MIB));
    assert_eq!(announced.status, 413);
    assert_eq!(pair.engine.seen_lines(), [""; 0]);
    pair.wait_until_idle();
}

#[test]
#[contract("V36", "I12")]
fn an_alias_in_a_form_is_replaced_by_the_models_name() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    let pair = RoutedEngine::with(engine, "models: {aliases: {whisper-1: m}}\n");
    for (at, size) in [
        (ModelAt::Start, 1000),
        (ModelAt::End, 1000),
        (ModelAt::Start, 3 * MIB),
    ] {
        let reply = post(&pair.router, PATH, &form("whisper-1", at, size));
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("x-warmroute-rewrites"), Some("model"));
        let seen = pair.engine.next_request();
        assert!(seen.body == form("m", at, size), "only the model changes");
        assert_eq!(
            seen.header("content-length"),
            Some(seen.body.len().to_string())
        );
        let receipt = pair.receipt(&reply);
        assert_eq!(receipt["rewrites"], json!(["model"]), "{receipt}");
    }
}

#[test]
#[contract("F1", "F2")]
fn a_short_form_is_sent_again_and_a_long_one_is_not_once_it_is_begun() {
    let (engines, router) = two("");
    let count =
        |engines: &[ScriptedEngine]| -> u64 { engines.iter().map(ScriptedEngine::requests).sum() };
    engines[0].once(ScriptedReply::Cut(Vec::new()));
    let short = form("m", ModelAt::Start, 1000);
    for _ in 0..2 {
        assert_eq!(post(&router, PATH, &short).status, 200);
    }
    assert_eq!(count(&engines), 3, "one of the forms was sent again");

    for engine in &engines {
        engine.once(ScriptedReply::Cut(Vec::new()));
    }
    let body = form("m", ModelAt::Start, 3 * MIB);
    let reply = post(&router, PATH, &body);
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (502, "upstream_reset")
    );
    assert_eq!(count(&engines), 4, "a long form is sent once");
    router.wait_until_idle();
}

#[test]
#[contract("F1")]
fn a_long_form_goes_to_another_worker_where_one_refuses_connections() {
    // No connection is kept open to the worker that leaves: on one it could get a part of the form.
    let (mut engines, router) = two("");
    drop(engines.remove(0));
    let body = form("m", ModelAt::Start, 3 * MIB);
    for _ in 0..4 {
        let reply = post(&router, PATH, &body);
        assert_eq!(
            (reply.status, reply.header("x-warmroute-worker")),
            (200, Some("b")),
            "{}",
            reply.text()
        );
        assert!(
            engines[0].next_request().body == body,
            "the form changed on its way"
        );
    }
    router.wait_until_idle();
}

#[test]
#[contract("V36")]
fn a_form_whose_model_is_not_found_is_refused() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    let models = json!({"object": "list", "data": [
        {"id": "m", "object": "model", "created": 1, "owned_by": "t"},
        {"id": "n", "object": "model", "created": 1, "owned_by": "t"},
    ]});
    engine.answer("/v1/models", "200 OK", &models.to_string());
    let yaml = "pre_routing_hooks: [{name: guard, url: \"http://127.0.0.1:9/\", models: [n]}]\n";
    let pair = RoutedEngine::with(engine, yaml);
    for (body, status, code, part) in [
        (
            form("m", ModelAt::Nowhere, 10),
            400,
            "invalid_request",
            "no field model",
        ),
        (
            form("m", ModelAt::End, 3 * MIB),
            400,
            "invalid_request",
            "before the files",
        ),
        (
            form("", ModelAt::Start, 10),
            400,
            "invalid_request",
            "1 to 1024",
        ),
        (
            form("nobody", ModelAt::Start, 3 * MIB),
            404,
            "model_not_found",
            "nobody",
        ),
        (
            form("n", ModelAt::Start, 10),
            400,
            "invalid_request",
            "guard",
        ),
        (b"{}".to_vec(), 400, "invalid_request", "Content-Type"),
    ] {
        let reply = post(&pair.router, PATH, &body);
        assert_eq!((reply.status, reply.error_code().as_str()), (status, code));
        assert!(reply.text().contains(part), "{part}: {}", reply.text());
    }
    let json = RawClient::post(&pair.router.data(), PATH, br#"{"model":"m"}"#);
    assert_eq!(
        (json.status, json.error_code().as_str()),
        (400, "invalid_request")
    );
    assert!(
        json.text().contains("multipart/form-data"),
        "{}",
        json.text()
    );
    // The router's own requests are others: it looks for a tokenizer.
    let forms = pair.engine.seen_lines();
    let forms = forms.iter().filter(|line| line.contains(PATH)).count();
    assert_eq!(forms, 0);
    pair.wait_until_idle();
}
