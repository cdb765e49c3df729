use std::time::Duration;

use config::HookRejection;
use contract_id::contract;
use http::Method;
use prometheus_client::encoding::text::encode;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};

use super::*;
use crate::{
    request::test_support,
    routes::{self, RouteMatch},
};

const BODY: &str = r#"{"model":"m","prompt":"a"}"#;

/// A hook that answers every call with this reply, and passes the requests on.
struct HookServer {
    url: String,
    requests: mpsc::UnboundedReceiver<String>,
}

impl HookServer {
    async fn start(status: u16, reply: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (sender, requests) = mpsc::unbounded_channel();
        let reply = format!(
            "HTTP/1.1 {status} Reply\r\ncontent-length: {}\r\n\r\n{reply}",
            reply.len()
        );
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (mut received, mut buffer) = (String::new(), [0; 4096]);
                while !received.ends_with("}") {
                    match stream.read(&mut buffer).await {
                        Ok(0) | Err(_) => break,
                        Ok(read) => received.push_str(&String::from_utf8_lossy(&buffer[..read])),
                    }
                }
                let _ = sender.send(received);
                let _ = stream.write_all(reply.as_bytes()).await;
            }
        });
        let url = format!("http://127.0.0.1:{port}/check");
        Self { url, requests }
    }

    fn settings(&self, name: &str) -> HookEntry {
        HookEntry {
            name: name.into(),
            url: self.url.clone(),
            timeout: Duration::from_secs(20),
            on_error: HookErrorAction::Reject,
            on_reject: HookRejection::default(),
            models: Vec::new(),
        }
    }
}

/// The result of one request that passes these hooks.
struct HookResult {
    result: Result<(), ApiError>,
    body: String,
    notes: RoutingNotes,
    page: String,
}

async fn pass(settings: Vec<HookEntry>, body: &'static str) -> HookResult {
    let limits = HookLimits {
        max_body_bytes: 100,
        abort: Arc::default(),
    };
    pass_within(limits, settings, body).await
}

async fn pass_within(
    limits: HookLimits,
    settings: Vec<HookEntry>,
    body: &'static str,
) -> HookResult {
    let mut registry = Registry::default();
    let hooks = Hooks::new(&settings, limits, &mut registry);
    let RouteMatch::Route(route) = routes::find(&Method::POST, "/v1/completions") else {
        panic!("a route");
    };
    let (mut call, mut notes) = (test_support::call(body), RoutingNotes::default());
    let hooked = HookedRoute {
        route,
        only_model: None,
    };
    let result = hooks.call(&hooked, &mut call, &mut notes).await;
    let mut page = String::new();
    encode(&mut page, &registry).expect("a page");
    HookResult {
        result,
        body: String::from_utf8_lossy(call.body.bytes()).into_owned(),
        notes,
        page,
    }
}

#[tokio::test]
async fn a_hook_is_asked_with_the_whole_request_and_may_let_it_pass() {
    let mut hook = HookServer::start(200, r#"{"action":"allow"}"#).await;
    let passed = pass(vec![hook.settings("a")], BODY).await;
    assert!(passed.result.is_ok());
    assert_eq!(
        (passed.body.as_str(), passed.notes.hooks().as_deref()),
        (BODY, Some("a=allow"))
    );
    assert!(passed.notes.rewrites().is_empty());
    assert!(
        passed
            .page
            .contains("warmroute_hooks_total{hook=\"a\",result=\"allow\"} 1\n")
    );
    let request = hook.requests.recv().await.expect("one call");
    assert!(request.starts_with("POST /check HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("x-request-id: r1\r\n"), "{request}");
    assert!(
        request.contains(r#""route":"/v1/completions","model":"m""#),
        "{request}"
    );
    assert!(request.contains(BODY), "{request}");
}

#[tokio::test]
async fn the_next_hook_gets_the_request_as_the_one_before_left_it() {
    let first = r#"{"action":"transform","body":{"model":"n","prompt":"b"}}"#;
    let first = HookServer::start(200, first).await;
    let mut second = HookServer::start(200, r#"{"action":"allow"}"#).await;
    let mut for_n = second.settings("b");
    for_n.models = vec!["n*".to_owned()];
    let passed = pass(vec![first.settings("a"), for_n], BODY).await;
    assert!(passed.result.is_ok());
    assert_eq!(passed.body, r#"{"model":"n","prompt":"b"}"#);
    assert_eq!(passed.notes.hooks().as_deref(), Some("a=transform,b=allow"));
    assert_eq!(passed.notes.rewrites(), [REWRITE]);
    let request = second.requests.recv().await.expect("one call");
    assert!(request.contains(r#""prompt":"b""#), "{request}");
}

#[tokio::test]
async fn a_hook_is_called_only_for_its_models_and_for_none_without_a_model() {
    let mut hook = HookServer::start(200, r#"{"action":"reject"}"#).await;
    let mut settings = hook.settings("a");
    settings.models = vec!["gpt-*".to_owned(), "x".to_owned()];
    for body in [BODY, r#"{"prompt":"a"}"#, "[1]"] {
        let passed = pass(vec![settings.clone()], body).await;
        assert!(passed.result.is_ok(), "{body}");
        assert_eq!(passed.notes.hooks(), None);
    }
    assert!(hook.requests.try_recv().is_err());
}

#[tokio::test]
async fn a_rejection_has_the_hooks_status_and_the_operators_message_before_its_own() {
    let own = r#"{"action":"reject","status":451,"message":"not\nhere"}"#;
    let bare = r#"{"action":"reject"}"#;
    for (reply, operators, status, message) in [
        (own, None, 451, "nothere"),
        (own, Some("ask us"), 451, "ask us"),
        (bare, Some("ask us"), 403, "ask us"),
        (bare, None, 403, "the request was rejected by the hook a"),
    ] {
        let hook = HookServer::start(200, reply).await;
        let mut settings = hook.settings("a");
        settings.on_reject.message = operators.map(str::to_owned);
        let later = HookServer::start(200, r#"{"action":"allow"}"#).await;
        let passed = pass(vec![settings, later.settings("b")], BODY).await;
        let error = passed.result.expect_err("it is rejected");
        assert_eq!(
            (error.code, error.status),
            (ErrorCode::HookRejected, status)
        );
        assert_eq!(error.message, message);
        assert_eq!(
            passed.notes.hooks().as_deref(),
            Some("a=reject"),
            "no later hook is asked"
        );
    }
}

#[tokio::test]
async fn without_a_usable_answer_the_configuration_decides() {
    let long = format!(
        r#"{{"action":"transform","body":{{"model":"{}"}}}}"#,
        "m".repeat(100)
    );
    for (status, reply) in [
        (500, r#"{"action":"allow"}"#),
        (204, ""),
        (200, "no JSON"),
        (200, r#"{"action":"maybe"}"#),
        (200, r#"{"action":"transform","body":[]}"#),
        // Longer than a client's may be.
        (200, &long),
    ] {
        for on_error in [HookErrorAction::Reject, HookErrorAction::Allow] {
            let hook = HookServer::start(status, reply).await;
            let mut settings = hook.settings("a");
            settings.on_error = on_error;
            let passed = pass(vec![settings], BODY).await;
            let code = passed.result.map_err(|error| error.code);
            let expected = if on_error == HookErrorAction::Allow {
                Ok(())
            } else {
                Err(ErrorCode::HookFailed)
            };
            assert_eq!(code, expected, "{status} {reply}");
            assert_eq!(passed.body, BODY);
            assert_eq!(passed.notes.hooks().as_deref(), Some("a=error"));
        }
    }
}

#[tokio::test]
async fn a_hook_that_is_late_or_still_asked_at_the_end_of_a_drain_gives_no_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let silent = HookServer {
        url: format!("http://127.0.0.1:{port}"),
        requests: mpsc::unbounded_channel().1,
    };
    let mut settings = silent.settings("a");
    settings.timeout = Duration::from_millis(50);
    let late = pass(vec![settings], BODY).await;
    assert_eq!(
        late.result.map_err(|error| error.code),
        Err(ErrorCode::HookFailed)
    );
    let limits = HookLimits {
        max_body_bytes: 100,
        abort: Arc::default(),
    };
    limits.abort.abort();
    let drained = pass_within(limits, vec![silent.settings("a")], BODY).await;
    assert_eq!(
        drained.result.map_err(|error| error.code),
        Err(ErrorCode::HookFailed)
    );
}

#[test]
#[contract("V44")]
fn a_hook_is_called_for_the_model_that_serves_a_body_which_need_not_name_one() {
    let RouteMatch::Route(route) = routes::find(&Method::POST, "/generate") else {
        panic!("it is a route");
    };
    let hooked = |only: Option<&str>| HookedRoute {
        route,
        only_model: only.map(Arc::from),
    };
    let models = |only, body: &str| hooked(only).models(body.as_bytes()).unwrap_or_default();
    assert_eq!(models(Some("m"), r#"{"text":"a"}"#), ["m"]);
    assert_eq!(models(None, r#"{"text":"a","lora_path":"ad"}"#), ["ad"]);
    assert_eq!(
        models(None, r#"{"text":"a","model":"free","lora_path":"ad"}"#),
        ["ad", "free"]
    );
    assert_eq!(models(None, r#"{"text":"a"}"#), [""; 0]);
}
