use dialect::RequestView;
use http_body_util::BodyExt as _;

use super::*;
use crate::{
    errors,
    request::{
        record::RequestGuard,
        test_gateway::{ClientReply, TestGateway},
    },
};

async fn text(response: Response<ReplyBody>) -> String {
    let bytes = response
        .into_body()
        .collect()
        .await
        .expect("whole")
        .to_bytes();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn an_error_has_the_form_of_the_routes_api() {
    let unknown = ApiError::new(ErrorCode::ModelNotFound, "no worker serves it");
    for (shape, body) in [
        (ErrorShape::Openai, unknown.openai_body("r1")),
        (ErrorShape::Anthropic, unknown.anthropic_body("r1")),
    ] {
        let response = error(&unknown, shape, "r1");
        assert_eq!(response.status(), 404);
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()[REQUEST_ID], "r1");
        assert_eq!(text(response).await.as_bytes(), body);
    }
}

#[test]
fn an_error_says_whether_and_when_a_retry_can_help() {
    let permanent = ApiError::new(ErrorCode::InvalidRequest, "no");
    let later = errors::all_busy();
    let unknown = ApiError::new(ErrorCode::UpstreamReset, "lost");
    for (api_error, after, should_retry) in [
        (permanent, None, Some("false")),
        (later, Some("5"), None),
        (unknown, None, None),
    ] {
        let response = error(&api_error, ErrorShape::Openai, "r1");
        let field = |name| {
            response
                .headers()
                .get(name)
                .map(|it| it.to_str().expect("ASCII"))
        };
        assert_eq!(field("retry-after"), after, "{api_error:?}");
        assert_eq!(field("x-should-retry"), should_retry, "{api_error:?}");
    }
}

#[test]
fn each_error_of_a_request_without_a_worker_has_its_own_code_and_tells_when_to_try_again() {
    for (error, code, status, seconds) in [
        (errors::no_worker(), ErrorCode::NoWorker, 503, 1),
        (errors::no_connection(), ErrorCode::Overloaded, 503, 1),
        (errors::all_busy(), ErrorCode::Overloaded, 503, 5),
        (errors::queue_full(), ErrorCode::QueueFull, 503, 1),
        (errors::queue_timeout(), ErrorCode::QueueTimeout, 503, 5),
        (errors::going_down(), ErrorCode::Draining, 503, 1),
    ] {
        assert_eq!(error.code, code);
        assert_eq!(
            (error.status, error.retry_after()),
            (status, Some(seconds)),
            "{code:?}"
        );
        assert!(error.is_retryable(), "{code:?}");
    }
}

#[tokio::test]
async fn a_refused_request_is_counted_by_what_refused_it() {
    let test = TestGateway::new();
    let refuse = |error: ApiError| refused(test.guard(), &error).status().as_u16();
    assert_eq!(refuse(errors::queue_full()), 503);
    assert_eq!(refuse(ApiError::new(ErrorCode::InvalidRequest, "no")), 400);
    assert_eq!(refuse(ApiError::new(ErrorCode::Internal, "no")), 500);
    assert!(test.has_metric("warmroute_shed_total{reason=\"queue_full\"} 1"));
    for outcome in ["shed", "client_error", "router_error"] {
        let line = format!(
            "warmroute_requests_total{{route=\"/v1/chat/completions\",outcome=\"{outcome}\"}} 1"
        );
        assert!(test.has_metric(&line), "{line}");
    }
}

#[tokio::test]
async fn every_way_a_guard_ends_counts_one_outcome_and_one_request_less() {
    type End = fn(&mut RequestGuard);
    let test = TestGateway::new();
    let ends: [(End, &str); 5] = [
        (|guard| guard.record_passthrough(200), "ok"),
        (|guard| guard.record_passthrough(429), "shed"),
        (|guard| guard.record_passthrough(404), "client_error"),
        (|guard| guard.record_passthrough(502), "upstream_error"),
        (|_| {}, "client_gone"),
    ];
    for (end, outcome) in ends {
        let mut guard = test.guard();
        assert_eq!(test.gateway.running_requests(), 1);
        end(&mut guard);
        drop(guard);
        assert_eq!(test.gateway.running_requests(), 0);
        let line = format!(
            "warmroute_requests_total{{route=\"/v1/chat/completions\",outcome=\"{outcome}\"}} 1"
        );
        assert!(test.has_metric(&line), "{line}");
    }
}

#[tokio::test]
async fn a_guard_that_a_panic_drops_is_an_error_of_the_router() {
    let test = TestGateway::new();
    let guard = test.guard();
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = guard;
        panic!("a fault of a stage");
    }));
    assert!(unwound.is_err());
    assert!(test.has_metric(
        "warmroute_requests_total{route=\"/v1/chat/completions\",outcome=\"router_error\"} 1"
    ));
    let metrics = &test.gateway.recorder.metrics;
    let response = panicked(metrics, ErrorShape::Openai, "r1");
    assert_eq!(
        (response.status().as_u16(), metrics.requests.panics.get()),
        (500, 1)
    );
}

#[test]
fn a_connection_stays_open_only_behind_a_body_that_was_read() {
    let reply = |drained| close_unless(drained, Response::new(ReplyBody::default()));
    assert!(!reply(true).headers().contains_key("connection"));
    assert_eq!(reply(false).headers()["connection"], "close");
}

#[test]
fn clients_of_messages_also_get_the_request_id_under_their_name() {
    for (shape, named) in [(ErrorShape::Openai, false), (ErrorShape::Anthropic, true)] {
        let response = with_request_id(shape, "r1", Response::new(ReplyBody::default()));
        assert_eq!(response.headers().contains_key("request-id"), named);
    }
    let allowed = with_allow(Some("GET, HEAD"), Response::new(ReplyBody::default()));
    assert_eq!(allowed.headers()["allow"], "GET, HEAD");
}

#[tokio::test]
async fn a_whole_reply_tells_its_usage_and_an_empty_one_is_complete_at_once() {
    let test = TestGateway::new();
    let usage = r#"{"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":5}}"#;
    test.script(1, proxy::FakeReply::json(200, usage));
    let (_, receipt) = test.deliver(test.chat(&[1])).await;
    let outcome = crate::request::test_gateway::outcome(&receipt);
    assert_eq!(
        (outcome.prompt_tokens, outcome.completion_tokens),
        (Some(3), Some(5))
    );
    assert_eq!(outcome.finish_reason.as_deref(), Some("length"));
    assert!(
        outcome.ttft_ms.is_none(),
        "only a stream shows its first token"
    );
    let guard = test.guard();
    let empty = with_head(
        (StatusCode::OK, HeaderMap::new()),
        ReplyBody::whole("".into(), guard),
    );
    assert!(ClientReply::read(empty).await.pieces.is_empty());
    assert_eq!(test.gateway.running_requests(), 0);
}

#[tokio::test]
async fn the_receipt_of_a_refused_request_says_what_it_asked_for() {
    let body = br#"{"model":"m","stream":true,"messages":[]}"#;
    let view: RequestView<'_> = dialect::view(dialect::Dialect::Chat, body).expect("a good body");
    let test = TestGateway::new();
    let model = crate::request::test_support::model(Vec::new());
    let prompt = tokenization::TokenizedPrompt::without_blocks(9);
    let facts = crate::request::receipt::RequestFacts::of(&view, &model, 3, &prompt);
    assert_eq!(
        (&*facts.model, facts.stream, facts.priority),
        ("m", true, 3)
    );
    assert_eq!((facts.prompt.tokens, facts.served_model), (9, None));
    let (reply, receipt) = test.deliver(test.chat(&[])).await;
    assert_eq!((reply.status, receipt.worker()), (503, None));
    assert_eq!(receipt.outcome.as_ref().and_then(|it| it.status), Some(503));
}
