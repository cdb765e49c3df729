use bytes::Bytes;
use http::{Method, header};
use proxy::FakeReply;
use serde_json::{Value, json};

use super::{
    test_gateway::{ReplyEnding, TestGateway},
    *,
};

/// What a client gets from [`answer`].
struct ClientReply {
    status: u16,
    headers: http::HeaderMap,
    body: String,
    ending: ReplyEnding,
}

impl ClientReply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    fn code(&self) -> String {
        self.json()["error"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

async fn send(test: &TestGateway, method: Method, path: &str, body: &str) -> ClientReply {
    send_with(test, method, path, &[], body).await
}

async fn send_with(
    test: &TestGateway,
    method: Method,
    path: &str,
    fields: &[(&'static str, &'static str)],
    body: &str,
) -> ClientReply {
    use http_body_util::BodyExt as _;
    let mut request = Request::new(RequestBody::of_length(body.to_owned()));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().expect("a path");
    for (name, value) in fields {
        let value = http::HeaderValue::from_static(value);
        request.headers_mut().insert(*name, value);
    }
    let sender = super::RequestSender {
        share: net::server::PeerAddress::Local,
        address: None,
    };
    let response = answer(Arc::new(test.gateway.clone()), request, sender).await;
    let (head, mut reply) = response.into_parts();
    let mut text = String::new();
    let ending = loop {
        match reply.frame().await {
            None => break ReplyEnding::Clean,
            Some(Err(_)) => break ReplyEnding::Broken,
            Some(Ok(frame)) => {
                let data: Bytes = frame.into_data().expect("no trailers");
                text.push_str(&String::from_utf8_lossy(&data));
            }
        }
    };
    drop(reply);
    assert_eq!(test.gateway.running_requests(), 0);
    ClientReply {
        status: head.status.as_u16(),
        headers: head.headers,
        body: text,
        ending,
    }
}

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#;

#[tokio::test]
async fn a_path_without_a_route_and_a_method_without_a_handler_are_refused() {
    let test = TestGateway::new();
    let unknown = send(&test, Method::POST, "/v1/nothing", "{}").await;
    assert_eq!(
        (unknown.status, unknown.code().as_str()),
        (404, "unknown_route")
    );
    let method = send(&test, Method::GET, "/v1/chat/completions", "").await;
    assert_eq!(method.status, 405);
    assert_eq!(method.headers[header::ALLOW], "POST");
    let anthropic = send(&test, Method::POST, "/anthropic/nothing", "{}").await;
    assert_eq!(anthropic.json()["type"], "error");
    assert!(anthropic.headers.contains_key("request-id"));
}

#[tokio::test]
async fn a_head_request_gets_the_head_of_its_get_and_no_body() {
    let test = TestGateway::new();
    let get = send(&test, Method::GET, "/livez", "").await;
    assert_eq!(
        (get.status, get.json()["status"].as_str()),
        (200, Some("ok"))
    );
    let head = send(&test, Method::HEAD, "/livez", "").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn the_request_id_of_the_client_is_in_every_reply_and_a_new_one_where_it_has_none() {
    let test = TestGateway::new();
    let own = [("x-request-id", "mine-1")];
    for path in ["/livez", "/v1/nothing", "/v1/models/x"] {
        let reply = send_with(&test, Method::GET, path, &own, "").await;
        assert_eq!(reply.headers["x-request-id"], "mine-1", "{path}");
        let reply = send(&test, Method::GET, path, "").await;
        let id = reply.headers["x-request-id"].to_str().expect("ASCII");
        assert!(id.starts_with("req-"), "{path}: {id}");
    }
}

#[tokio::test]
async fn probes_say_what_an_empty_fleet_can_do() {
    let test = TestGateway::new();
    let ready = send(&test, Method::GET, "/readyz", "").await;
    assert_eq!(
        (ready.status, ready.json()["status"].as_str()),
        (503, Some("unavailable"))
    );
    let health = send(&test, Method::GET, "/health", "").await;
    assert_eq!(
        (health.status, &health.json()["workers"]["total"]),
        (200, &json!(0))
    );
    let chat = send(&test, Method::POST, "/v1/chat/completions", CHAT).await;
    assert_eq!((chat.status, chat.code().as_str()), (503, "no_worker"));
    assert!(chat.headers.contains_key(header::RETRY_AFTER));
}

#[tokio::test]
async fn a_body_that_is_no_request_is_refused_before_any_worker_is_asked() {
    let (test, _) = TestGateway::with_worker().await;
    for body in [
        "",
        "[]",
        "{",
        r#"{"messages":[]}"#,
        r#"{"model":7,"messages":[]}"#,
    ] {
        let reply = send(&test, Method::POST, "/v1/chat/completions", body).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.body);
        assert_eq!(reply.headers["x-should-retry"], "false");
    }
    let unknown = CHAT.replace(r#""m""#, r#""other""#);
    let reply = send(&test, Method::POST, "/v1/chat/completions", &unknown).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (404, "model_not_found")
    );
    let forged = CHAT.replacen('{', r#"{"kv_transfer_params":{},"#, 1);
    let reply = send(&test, Method::POST, "/v1/chat/completions", &forged).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (403, "field_not_allowed")
    );
    assert!(test.upstream.take_requests().is_empty());
}

#[tokio::test]
async fn a_generation_reaches_its_worker_as_received_and_its_reply_the_client() {
    let (test, worker) = TestGateway::with_worker().await;
    test.upstream
        .script(worker, FakeReply::json(200, r#"{"id":"c"}"#));
    let reply = send(&test, Method::POST, "/v1/chat/completions", CHAT).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, r#"{"id":"c"}"#));
    assert_eq!(reply.ending, ReplyEnding::Clean);
    assert_eq!(reply.headers["x-warmroute-worker"], "w1");
    let sent = test.upstream.take_requests().pop().expect("one request");
    assert_eq!(
        (sent.uri().path(), &**sent.body()),
        ("/v1/chat/completions", CHAT.as_bytes())
    );
    assert_eq!(test.router.open_reservations(), 0);
    assert!(test.has_metric("warmroute_prompt_source_total{source=\"text_prefix\"} 1"));
}

#[tokio::test]
async fn only_a_stream_of_one_choice_whose_bytes_did_not_wait_for_its_client_shows_decode_steps() {
    let paced = std::time::Duration::from_millis(100);
    let at_once = std::time::Duration::ZERO;
    for (n, pause, has_length, has_speed) in [
        (1, paced, true, true),
        (1, at_once, true, false),
        (2, paced, false, false),
    ] {
        // A machine that stands still for longer than a pause holds the events up as a client does.
        let mut tries = if has_speed { 20 } else { 1 };
        loop {
            tries -= 1;
            let (knows_length, samples) = learned_from_a_stream(n, pause).await;
            assert_eq!(knows_length, has_length, "{n} {pause:?}");
            if samples == usize::from(has_speed) {
                break;
            }
            assert!(tries > 0, "{n} {pause:?}: {samples} samples");
        }
    }
}

/// Returns whether a new router learned the length of a reply, and its samples of decode steps.
async fn learned_from_a_stream(n: u32, pause: std::time::Duration) -> (bool, usize) {
    let (test, worker) = TestGateway::with_worker().await;
    let expected = || test.router.expected_reply_length(None);
    let before = expected();
    let counts = r#"{"prompt_tokens":7,"completion_tokens":900}"#;
    let pieces = [
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n".to_owned(),
        format!("data: {{\"choices\":[],\"usage\":{counts}}}\n\n"),
        "data: [DONE]\n\n".to_owned(),
    ];
    let reply = FakeReply::events(pieces.map(|piece| Ok(Bytes::from(piece))));
    test.upstream.script(worker, reply.paced(pause));
    let fields = format!(r#"{{"stream":true,"n":{n},"#);
    let body = CHAT.replacen('{', &fields, 1);
    let reply = send(&test, Method::POST, "/v1/chat/completions", &body).await;
    assert_eq!((reply.status, reply.ending), (200, ReplyEnding::Clean));
    let learned = test.router.learned(test.gateway.clock().now());
    let learned = serde_json::to_value(learned).expect("plain data");
    let samples = learned["decode_speeds"]["samples"]
        .as_array()
        .map_or(0, Vec::len);
    (expected() != before, samples)
}

#[tokio::test]
async fn the_named_worker_is_used_or_the_request_refused() {
    let (test, worker) = TestGateway::with_worker().await;
    test.upstream.script(worker, FakeReply::json(200, "{}"));
    for (name, status) in [("w1", 200), ("w2", 400), ("w1/7", 400)] {
        let field = [("x-warmroute-worker", name)];
        let path = "/v1/chat/completions";
        let reply = send_with(&test, Method::POST, path, &field, CHAT).await;
        assert_eq!(reply.status, status, "{name}: {}", reply.body);
    }
    assert_eq!(test.upstream.take_requests().len(), 1);
}

#[tokio::test]
async fn the_models_of_the_workers_are_listed_and_found_by_name() {
    let (test, _) = TestGateway::with_worker().await;
    let list = send(&test, Method::GET, "/v1/models", "").await;
    assert_eq!(list.json()["data"][0]["id"], "m");
    let one = send(&test, Method::GET, "/v1/models/m", "").await;
    assert_eq!((one.status, &one.json()["id"]), (200, &json!("m")));
    let missing = send(&test, Method::GET, "/v1/models/x", "").await;
    assert_eq!(
        (missing.status, missing.code().as_str()),
        (404, "model_not_found")
    );
}

#[tokio::test]
async fn tokens_of_a_model_without_local_files_come_from_its_worker() {
    let (test, worker) = TestGateway::with_worker().await;
    let reply = r#"{"tokens":[1,2],"count":2}"#;
    test.upstream.script(worker, FakeReply::json(200, reply));
    let body = r#"{"model":"m","prompt":"a b"}"#;
    let answer = send(&test, Method::POST, "/tokenize", body).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, reply));
    let sent = test.upstream.take_requests().pop().expect("one request");
    assert_eq!(
        (sent.uri().path(), &**sent.body()),
        ("/tokenize", body.as_bytes())
    );
    for (path, body) in [("/tokenize", "[]"), ("/detokenize", r#"{"model":"m"}"#)] {
        let refused = send(&test, Method::POST, path, body).await;
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
    }
}

#[tokio::test]
async fn a_route_shows_the_decision_and_counts_no_load_without_an_id() {
    let (test, _) = TestGateway::with_worker().await;
    let body = CHAT.replacen('{', r#"{"request_id":"r1","#, 1);
    let dry = send(&test, Method::POST, "/v1/route", CHAT).await;
    assert_eq!(dry.status, 200, "{}", dry.body);
    assert!(dry.body.contains("w1"), "{}", dry.body);
    assert_eq!(test.router.open_reservations(), 0);
    let loads = send(&test, Method::POST, "/v1/route/potential_loads", CHAT).await;
    assert_eq!(loads.json()["loads"][0]["worker_id"], "w1");
    let reserved = send(&test, Method::POST, "/v1/route", &body).await;
    assert_eq!(reserved.status, 200, "{}", reserved.body);
    assert_eq!(test.router.open_reservations(), 1);
    let again = send(&test, Method::POST, "/v1/route", &body).await;
    assert_eq!(again.code(), "reservation_exists");
    let done = send(&test, Method::POST, "/v1/route/r1/prefill_complete", "").await;
    assert_eq!(
        (done.status, &done.json()["state"]),
        (200, &json!("decoding"))
    );
    let freed = send(&test, Method::DELETE, "/v1/route/r1", "").await;
    assert_eq!(freed.status / 100, 2, "{}", freed.body);
    assert_eq!(test.router.open_reservations(), 0);
    let gone = send(&test, Method::DELETE, "/v1/route/r1", "").await;
    assert_eq!(
        (gone.status, gone.code().as_str()),
        (404, "reservation_not_found")
    );
    assert!(
        test.upstream.take_requests().is_empty(),
        "no worker is asked"
    );
}

#[tokio::test]
async fn a_message_of_a_worker_with_chats_is_counted_by_its_tokens_or_not_at_all() {
    let (test, _) = TestGateway::with_worker().await;
    let body = r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"}]}"#;
    let path = "/v1/messages/count_tokens";
    let uncounted = send(&test, Method::POST, path, body).await;
    assert_eq!(
        (uncounted.status, &uncounted.json()["type"]),
        (404, &json!("error"))
    );
    let unknown = body.replace(r#""m""#, r#""x""#);
    let missing = send(&test, Method::POST, path, &unknown).await;
    assert_eq!(missing.status, 404);
}

#[tokio::test]
async fn a_failure_of_its_worker_is_reported_to_the_fleet() {
    let (test, worker) = TestGateway::with_worker().await;
    let lost = || FakeReply::failure(proxy::SendFailure::NoHead);
    for reply in [lost(), lost(), lost()] {
        test.upstream.script(worker, reply);
    }
    let reply = send(&test, Method::POST, "/v1/chat/completions", CHAT).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (502, "upstream_reset")
    );
    assert!(test.gateway.fleet().failed_lately(worker));
    test.upstream.script(worker, FakeReply::json(200, "{}"));
    send(&test, Method::POST, "/v1/chat/completions", CHAT).await;
    assert!(
        !test.gateway.fleet().failed_lately(worker),
        "it has answered since"
    );
}
