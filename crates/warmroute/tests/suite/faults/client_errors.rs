//! Requests that the router refuses, each with its status and code, on a connection that stays
//! usable.

use contract_id::contract;

use super::fleet::{CHAT, ScriptedFleet, fine};
use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, chat,
};

fn refused(reply: &RawReply, status: u16, code: &str) {
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (status, code),
        "{}",
        reply.text()
    );
    assert_eq!(reply.header("x-should-retry"), Some("false"), "{code}");
    assert!(reply.clean);
}

#[test]
fn an_invalid_request_is_refused_with_its_status_code_and_field() {
    let scripted = ScriptedFleet::one(
        ScriptedReply::whole(fine()),
        "server: {max_body_bytes: 1MiB}",
    );
    let data = scripted.router.data();
    let good = chat("m", "hi", 1).to_string();
    let send = |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let mut client = RawClient::connect(&data);
        client.send(method, path, headers, body.as_bytes());
        client.reply()
    };
    for (body, status, code, param) in [
        ("", 400, "invalid_json", None),
        ("{\"model\":\"m\"", 400, "invalid_json", None),
        ("{\"model\":\"m\",}", 400, "invalid_json", None),
        ("[]", 400, "invalid_request", None),
        ("{}", 400, "invalid_request", Some("model")),
        ("{\"model\":7}", 400, "invalid_request", Some("model")),
        (
            "{\"model\":\"m\",\"mod\\u0065l\":\"x\"}",
            400,
            "duplicate_key",
            Some("model"),
        ),
        (
            "{\"model\":\"m\",\"messages\":[],\"messages\":[]}",
            400,
            "duplicate_key",
            Some("messages"),
        ),
        (
            "{\"model\":\"nobody-serves-this\",\"messages\":[]}",
            404,
            "model_not_found",
            Some("model"),
        ),
    ] {
        let reply = send("POST", CHAT, &[], body);
        refused(&reply, status, code);
        assert_eq!(reply.json()["error"]["param"].as_str(), param, "{body}");
    }
    for (header, value, code) in [
        ("x-warmroute-policy", "fastest", "unknown_policy"),
        ("x-warmroute-worker", "nobody", "unknown_worker"),
        (
            "x-warmroute-worker",
            &format!("{}/7", scripted.engines[0].address()),
            "unknown_worker",
        ),
        ("x-warmroute-overlap-weight", "101", "invalid_request"),
        ("x-warmroute-temperature", "NaN", "invalid_request"),
        ("x-warmroute-priority", "0.5", "invalid_request"),
    ] {
        let reply = send("POST", CHAT, &[(header, value)], &good);
        refused(&reply, 400, code);
        assert_eq!(reply.json()["error"]["param"], header);
    }
    refused(
        &send("POST", "/v1/nothing", &[], &good),
        404,
        "unknown_route",
    );
    refused(
        &send("POST", "/v1/chat/completions/", &[], &good),
        404,
        "unknown_route",
    );
    refused(
        &send("GET", "/v1/models/nobody-serves-this", &[], ""),
        404,
        "model_not_found",
    );
    let wrong_method = send("GET", CHAT, &[], "");
    refused(&wrong_method, 405, "method_not_allowed");
    assert_eq!(wrong_method.header("allow"), Some("POST"));
    assert_eq!(
        send("DELETE", "/v1/models", &[], "").header("allow"),
        Some("GET, HEAD")
    );
    refused(
        &send("POST", CHAT, &[("content-encoding", "gzip")], &good),
        415,
        "unsupported_encoding",
    );
    refused(
        &send("POST", &format!("{CHAT}?{}", "a".repeat(9000)), &[], &good),
        414,
        "uri_too_long",
    );
    refused(
        &send("POST", CHAT, &[("x-long", &"a".repeat(40_000))], &good),
        431,
        "head_too_large",
    );
    assert_eq!(scripted.requests(), 0, "none of them reached the engine");
    assert_eq!(send("POST", CHAT, &[], &good).status, 200);
}

#[test]
fn a_body_over_the_limit_is_refused_as_soon_as_its_size_is_known() {
    let scripted = ScriptedFleet::one(
        ScriptedReply::whole(fine()),
        "server: {max_body_bytes: 1MiB}",
    );
    let data = scripted.router.data();
    let mut announced = RawClient::connect(&data);
    announced.send_bytes(
        format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1048577\r\n\r\n")
            .as_bytes(),
    );
    refused(&announced.reply(), 413, "body_too_large");
    let mut chunked = RawClient::connect(&data);
    chunked.send_bytes(
        format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes(),
    );
    let chunk = [b"10000\r\n".as_slice(), &vec![b' '; 65536], b"\r\n"].concat();
    for _ in 0..17 {
        chunked.offer_bytes(&chunk);
    }
    chunked.offer_bytes(b"0\r\n\r\n");
    refused(&chunked.reply(), 413, "body_too_large");
    let whole = format!(
        "{{\"model\":\"m\",\"messages\":[]{}}}",
        " ".repeat((1 << 20) - 27)
    );
    assert_eq!(whole.len(), 1 << 20);
    assert_eq!(
        RawClient::post(&data, CHAT, whole.as_bytes()).status,
        200,
        "the limit itself is fine"
    );
    assert_eq!(scripted.requests(), 1);
}

#[test]
fn a_key_is_required_where_one_is_configured() {
    let engine = crate::harness::ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = Program::serve(&[engine.url()], &["--api-key", "right"]).ready(1);
    let send = |headers: &[(&str, &str)]| {
        RawClient::post_with(
            &router.data(),
            CHAT,
            headers,
            chat("m", "hi", 1).to_string().as_bytes(),
        )
    };
    refused(&send(&[]), 401, "missing_api_key");
    refused(
        &send(&[("authorization", "Bearer wrong")]),
        401,
        "invalid_api_key",
    );
    assert_eq!(send(&[("authorization", "Bearer right")]).status, 200);
    assert_eq!(RawClient::get(&router.data(), "/livez").status, 200);
}

#[test]
#[contract("S15")]
fn a_web_page_of_another_site_cannot_use_a_router_without_a_key() {
    let scripted = ScriptedFleet::one(
        ScriptedReply::whole(fine()),
        "server: {allowed_origins: [\"https://app.example\"]}",
    );
    let data = scripted.router.data();
    let body = chat("m", "hi", 1).to_string();
    let status = |method: &str, path: &str, headers: &[(&str, &str)]| {
        let mut client = RawClient::connect(&data);
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let body = if method == "POST" { body.as_str() } else { "" };
        let length = body.len();
        client.send_bytes(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes());
        client.reply().status
    };
    let own = format!("http://{data}");
    for (method, path, headers, expected) in [
        ("POST", CHAT, &[("host", &*data)][..], 200),
        ("POST", CHAT, &[("host", &*data), ("origin", &*own)], 200),
        (
            "POST",
            CHAT,
            &[("host", &*data), ("origin", "https://app.example")],
            200,
        ),
        (
            "POST",
            CHAT,
            &[("host", &*data), ("origin", "http://evil.test")],
            403,
        ),
        ("POST", CHAT, &[("host", &*data), ("origin", "null")], 403),
        (
            "POST",
            CHAT,
            &[("host", &*data), ("content-type", "text/plain")],
            415,
        ),
        ("GET", "/v1/models", &[("host", "evil.test")], 403),
        ("GET", "/v1/models", &[("host", "app.example")], 200),
        ("GET", "/livez", &[("host", "evil.test")], 200),
    ] {
        assert_eq!(
            status(method, path, headers),
            expected,
            "{path} {headers:?}"
        );
    }
}

#[test]
#[contract("S15")]
fn a_page_of_an_allowed_origin_gets_its_preflight_and_its_reply() {
    let origin = "https://app.example";
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let yaml = format!("server: {{allowed_origins: [\"{origin}\"]}}");
    let flags = ["--api-key", "sk-page"];
    let router = Program::serve_with(&yaml, &[engine.url()], &flags).ready(1);
    let mut client = RawClient::connect(&router.data());
    let mut send = |method: &str, headers: &[(&str, &str)], body: &str| {
        client.send(method, CHAT, headers, body.as_bytes());
        client.reply()
    };
    let asks = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
    ];
    let preflight = send("OPTIONS", &asks, "");
    assert_eq!((preflight.status, preflight.body.len()), (204, 0));
    for (name, value) in [
        ("access-control-allow-origin", origin),
        ("access-control-allow-methods", "POST"),
        ("access-control-allow-headers", "authorization"),
        ("access-control-max-age", "600"),
        ("vary", "origin"),
    ] {
        assert_eq!(preflight.header(name), Some(value), "{name}");
    }
    let body = chat("m", "hi", 1).to_string();
    let own = [("origin", origin), ("authorization", "Bearer sk-page")];
    let reply = send("POST", &own, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("access-control-allow-origin"), Some(origin));
    let exposed = reply.header("access-control-expose-headers");
    assert!(exposed.is_some_and(|names| names.contains("x-warmroute-worker")));
    let refused = send("POST", &own[..1], &body);
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("access-control-allow-origin"), Some(origin));

    let foreign = ("origin", "https://evil.test");
    let preflight = send("OPTIONS", &[foreign, asks[1], asks[2]], "");
    assert_eq!(preflight.status, 405);
    let reply = send("POST", &[foreign, own[1]], &body);
    for reply in [preflight, reply] {
        let of_cors = |(name, _): &&(String, Vec<u8>)| name.starts_with("access-control-");
        assert!(!reply.headers.iter().any(|it| of_cors(&it)));
    }
    assert_eq!(engine.requests(), 2);
}
