//! Refused subscriptions and their reasons.

use serde_json::json;

use super::subscriber::connected;
use crate::harness::{Program, RawClient, RoutedFleet, eventually};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn an_invalid_parameter_is_refused_with_the_accepted_values() {
    let routed = RoutedFleet::start(&[&[]]);
    for (query, status, code, param, says) in [
        (
            "format=json",
            400,
            "invalid_request",
            "format",
            "continuum or rfc1527",
        ),
        (
            "snapshot=yes",
            400,
            "invalid_request",
            "snapshot",
            "false or true",
        ),
        (
            "worker=nobody",
            400,
            "unknown_worker",
            "worker",
            "/admin/workers lists them",
        ),
        (
            "salts=plain",
            403,
            "field_not_allowed",
            "salts",
            "admin.token_file",
        ),
    ] {
        let reply = RawClient::get(&routed.router.admin(), &format!("/v1/kv_events?{query}"));
        assert_eq!(
            (reply.status, &*reply.error_code()),
            (status, code),
            "{query}"
        );
        let error = &reply.json()["error"];
        assert_eq!(error["param"], param);
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
    let twice = RawClient::get(&routed.router.admin(), "/v1/kv_events?worker=a&worker=b");
    assert_eq!(
        (twice.status, &*twice.error_code()),
        (400, "invalid_request")
    );
    let post = RawClient::post(&routed.router.admin(), "/v1/kv_events", b"");
    assert_eq!(post.status, 405);
}

#[test]
fn subscribers_over_the_limit_are_refused_until_one_leaves() {
    let routed = RoutedFleet::start(&[&[]]);
    let mut subscribers: Vec<RawClient> = (0..64).map(|_| connected(&routed.router, "")).collect();
    let reply = RawClient::get(&routed.router.admin(), "/v1/kv_events");
    assert_eq!((reply.status, &*reply.error_code()), (503, "overloaded"));
    assert!(reply.header("retry-after").is_some());
    assert!(reply.text().contains("64 subscribers"), "{}", reply.text());
    subscribers.pop();
    eventually("the place of the client that left", || {
        let mut client = RawClient::connect(&routed.router.admin());
        client.send("GET", "/v1/kv_events", &[], b"");
        (client.head().status == 200).then_some(())
    });
}

#[test]
fn a_required_token_gives_access_to_the_stream_and_the_salts() {
    let engine = Program::engine(&["--speed", "20"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let router = Program::serve(
        &[format!("a={}", engine.url())],
        &["--admin-token-file", &file.display().to_string()],
    );
    assert_eq!(RawClient::get(&router.admin(), "/v1/kv_events").status, 401);
    let bearer = format!("Bearer {TOKEN}");
    let salted = json!({"model": "sim", "prompt": "word ".repeat(60), "max_tokens": 1, "cache_salt": "between-us"});
    eventually("the engine to be ready", || {
        let reply = RawClient::post(
            &router.data(),
            "/v1/completions",
            salted.to_string().as_bytes(),
        );
        (reply.status == 200).then_some(())
    });
    let stream_text = |query: &str| {
        let mut client = RawClient::connect(&router.admin());
        let path = format!("/v1/kv_events?format=rfc1527&snapshot=true{query}");
        client.send("GET", &path, &[("authorization", &bearer)], b"");
        client.read_until("snapshot_end").text()
    };
    let plain = "\"additional_salt\":\"between-us\"";
    eventually("the salt to be sent", || {
        stream_text("&salts=plain").contains(plain).then_some(())
    });
    assert!(
        stream_text("").contains("\"additional_salt\":\"")
            && !stream_text("").contains("between-us")
    );
}
