//! `tenants.isolation: strict`: requests of tenants go only to engines that are shown to keep their
//! caches apart.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RawReply, RoutedFleet, RouterQueries as _, eventually, words,
};

const STRICT: &str = "tenants:\n  isolation: strict\n  expose_headers: always\n  api_keys:\n  - {name: a, key: \
                      sk-a}\n  - {name: b, key: sk-b}\n";

/// Sends a completion of a tenant.
fn post(router: &Program, key: &str, topic: &str) -> RawReply {
    let headers = [("x-api-key", key)];
    let body = json!({"model": "sim", "prompt": words(topic, 60), "max_tokens": 2}).to_string();
    RawClient::post_with(&router.data(), "/v1/completions", &headers, body.as_bytes())
}

/// Waits until this is known of the workers.
fn salts_are(router: &Program, expected: &[&str]) {
    eventually("the salts to be probed", || {
        let workers = router.workers();
        let salts = workers.iter().filter_map(|worker| worker["salt"].as_str());
        (salts.collect::<Vec<_>>() == expected).then_some(())
    });
}

/// Puts another value of the setting in force.
fn isolate(routed: &RoutedFleet, was: &str, isolation: &str) {
    let file = routed.path("warmroute.yaml");
    let text = std::fs::read_to_string(&file).expect("it can be read");
    let setting = |value: &str| format!("isolation: {value}\n");
    let changed = text.replacen(&setting(was), &setting(isolation), 1);
    assert_ne!(changed, text);
    std::fs::write(&file, changed).expect("it can be written");
    let reloaded = RawClient::post(&routed.router.admin(), "/admin/reload", b"{}").json();
    assert_eq!(reloaded["changed"], json!(["tenants.isolation"]));
}

/// The tokens that the engine found cached.
fn cached(router: &Program, reply: &RawReply) -> u64 {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let receipt = router.receipt_of(reply);
    let tokens = receipt["outcome"]["cached_tokens"].as_u64();
    tokens.unwrap_or_else(|| panic!("{receipt}"))
}

/// The workers that the receipt excludes, with the reasons, by name.
fn excluded(receipt: &Value) -> Vec<(String, String)> {
    let rows = receipt["excluded"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let mut rows: Vec<_> = rows
        .map(|row| (text(&row["target"]["worker"]), text(&row["reason"])))
        .collect();
    rows.sort_unstable();
    rows
}

#[test]
#[contract("S59", "S53")]
fn an_engine_that_ignores_the_salt_gets_no_requests_of_tenants_and_another_one_takes_them() {
    let engines: [&[&str]; 3] = [&["--ignore-salt"], &[], &["--no-usage-details"]];
    let routed = RoutedFleet::with(&engines, STRICT, &[]);
    let router = &routed.router;
    salts_are(router, &["ignored", "honoured", "unknown"]);
    for topic in ["one", "two", "three", "four"] {
        // The control: the tenant finds its own blocks.
        for (key, finds) in [("sk-a", false), ("sk-a", true), ("sk-b", false)] {
            let reply = post(router, key, topic);
            assert_eq!(cached(router, &reply) > 0, finds, "{topic} of {key}");
            assert_eq!(reply.header("x-warmroute-worker"), Some("b"));
            let reason = |worker: &str| (worker.to_owned(), "acl".to_owned());
            assert_eq!(
                excluded(&router.receipt_of(&reply)),
                [reason("a"), reason("c")]
            );
        }
    }
    eventually("the log to name both, once each", || {
        let log = router.stderr();
        (log.matches("(tenants.isolation: strict)").count() == 2).then_some(())
    });
}

#[test]
#[contract("S59")]
fn without_a_worker_that_honours_the_salt_the_error_names_the_setting_and_salted_takes_any() {
    let salted = STRICT.replacen("strict", "salted", 1);
    let routed = RoutedFleet::with(&[&["--ignore-salt"]], &salted, &[]);
    let router = &routed.router;
    salts_are(router, &["unknown"]);
    cached(router, &post(router, "sk-a", "one"));
    let others = cached(router, &post(router, "sk-b", "one"));
    assert!(others > 0, "the engine ignores the salt");
    isolate(&routed, "salted", "strict");
    salts_are(router, &["ignored"]);
    let refused = post(router, "sk-b", "one");
    assert_eq!((refused.status, &*refused.error_code()), (503, "no_worker"));
    let text = refused.text();
    assert!(text.contains("tenants.isolation: strict"), "{text}");
    isolate(&routed, "strict", "salted");
    cached(router, &post(router, "sk-b", "one"));
}

/// Forms, and the handshake of a conversation.
fn requests_without_a_salt(router: &Program) -> Vec<RawReply> {
    let form = "--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nsim\r\n--x--\r\n";
    let headers = [
        ("x-api-key", "sk-a"),
        ("content-type", "multipart/form-data; boundary=x"),
    ];
    let paths = [
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/images/edits",
        "/v1/images/variations",
    ];
    let mut replies: Vec<RawReply> = paths
        .iter()
        .map(|path| RawClient::post_with(&router.data(), path, &headers, form.as_bytes()))
        .collect();
    let mut client = RawClient::connect(&router.data());
    client.send_bytes(
        b"GET /v1/realtime?model=sim HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: sk-a\r\n\
          connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
          sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    let head = client.head();
    replies.push(if head.status == 101 {
        head
    } else {
        client.body(head)
    });
    replies
}

#[test]
#[contract("S53")]
fn forms_and_conversations_carry_no_salt_and_are_refused() {
    let routed = RoutedFleet::with(&[&[]], STRICT, &[]);
    salts_are(&routed.router, &["honoured"]);
    for reply in requests_without_a_salt(&routed.router) {
        let text = reply.text();
        assert_eq!(
            (reply.status, &*reply.error_code()),
            (403, "field_not_allowed"),
            "{text}"
        );
        assert!(text.contains("tenants.isolation: strict"), "{text}");
    }
    isolate(&routed, "strict", "salted");
    let replies = requests_without_a_salt(&routed.router);
    assert!(replies.iter().all(|reply| reply.status != 403));
    assert_eq!(replies.last().map(|reply| reply.status), Some(101));
}
