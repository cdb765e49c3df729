use std::sync::Arc;

use config::Connector;
use contract_id::contract;
use http::HeaderValue;
use otlp::SpanQueue;
use proxy::{FakeReply, SendFailure, headers::TRACEPARENT};

use super::*;
use crate::{
    ids::IdGenerator,
    request::{
        prefill::tests as prefill,
        record::Recorder,
        send::RoutedRequest,
        test_gateway::{ClientReply, TestGateway},
    },
};

const CLIENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Records the traces of a gateway that its clients sample.
fn traced(test: &mut TestGateway) -> Arc<SpanQueue> {
    let queue = Arc::<SpanQueue>::default();
    let mut recorder = Recorder::clone(&test.gateway.recorder);
    recorder.tracer = Some(Tracer {
        queue: Arc::clone(&queue),
        sample_ratio: 0.0,
        ids: Arc::new(IdGenerator::new()),
    });
    test.gateway.recorder = Arc::new(recorder);
    queue
}

/// Delivers a request whose client sent this header.
async fn deliver(test: &TestGateway, request: RoutedRequest, parent: &'static str) -> ClientReply {
    let mut guard = test.guard();
    let mut headers = HeaderMap::from_iter([(TRACEPARENT, HeaderValue::from_static(parent))]);
    guard.begin_trace(&mut headers);
    let mut request = request;
    request.call.headers = headers;
    ClientReply::read(test.delivery().run(request, guard).await).await
}

/// The contexts that workers got, in this order.
fn sent(test: &TestGateway) -> Vec<String> {
    let requests = test.upstream.take_requests().into_iter();
    let parent = |request: http::Request<bytes::Bytes>| {
        let value = request.headers()[TRACEPARENT].to_str();
        value.expect("ASCII").to_owned()
    };
    requests.map(parent).collect()
}

/// The spans with this name: contexts, and whether they failed.
fn spans(all: &[Span], name: &str) -> Vec<(String, bool)> {
    let named = all.iter().filter(|span| span.name == name);
    named
        .map(|span| (span.context.to_string(), span.failed))
        .collect()
}

fn text<'a>(span: &'a Span, name: &str) -> Option<&'a str> {
    match span.attributes.get(name) {
        Some(AttributeValue::Text(text)) => Some(text),
        _ => None,
    }
}

#[tokio::test]
#[contract("V44")]
async fn each_attempt_has_a_span_of_its_own_which_its_worker_continues() {
    let mut test = TestGateway::new();
    let queue = traced(&mut test);
    test.script(1, FakeReply::failure(SendFailure::NoHead));
    test.script(2, FakeReply::json(200, "{}"));
    let reply = deliver(&test, test.chat(&[1, 2]), CLIENT).await;
    assert_eq!(reply.status, 200);
    let (all, sent) = (queue.take(), sent(&test));
    let attempts = spans(&all, "attempt");
    assert_eq!(
        attempts,
        [(sent[0].clone(), true), (sent[1].clone(), false)]
    );
    assert_ne!(sent[0], sent[1]);
    let root = all.last().expect("the request's own span comes last");
    assert_eq!(root.name, "POST /v1/chat/completions");
    let client = SpanContext::parse(CLIENT).expect("a valid header");
    assert_eq!(
        (root.context.trace, root.parent),
        (client.trace, Some(client.span))
    );
    for span in all.iter().filter(|span| span.parent != root.parent) {
        assert_eq!(span.parent, Some(root.context.span), "{}", span.name);
    }
    let of_attempts: Vec<_> = all.iter().filter(|span| span.name == "attempt").collect();
    let resends = of_attempts
        .iter()
        .map(|span| span.attributes.get("http.request.resend_count"));
    assert_eq!(
        resends.collect::<Vec<_>>(),
        [None, Some(&AttributeValue::Int(1))]
    );
    assert_eq!(
        text(of_attempts[0], "error.type"),
        Some("reset_before_head")
    );
    assert_eq!(text(of_attempts[1], "warmroute.worker"), Some("w2"));
    let decided = root
        .events
        .iter()
        .map(|event| event.attributes.get("warmroute.worker"));
    let workers = ["w1", "w2"].map(AttributeValue::from);
    assert_eq!(
        decided.collect::<Vec<_>>(),
        [Some(&workers[0]), Some(&workers[1])]
    );
    assert_eq!((spans(&all, "decide").len(), root.failed), (2, false));
}

#[tokio::test(start_paused = true)]
#[contract("V44")]
async fn a_hedge_has_a_span_and_the_attempt_that_was_given_up_is_no_failure() {
    let mut test = TestGateway::new();
    let second = Duration::from_secs(1);
    test.delivery_mut().send.dispatcher.limits.hedge_after = Some(second);
    let queue = traced(&mut test);
    test.script(1, FakeReply::json(200, "1").after(second * 9));
    test.script(2, FakeReply::json(200, "2"));
    deliver(&test, test.chat(&[1, 2]), CLIENT).await;
    let (all, sent) = (queue.take(), sent(&test));
    assert_eq!(
        spans(&all, "attempt"),
        [(sent[0].clone(), false), (sent[1].clone(), false)]
    );
    let cancelled = all.iter().find(|span| span.name == "attempt");
    assert_eq!(
        cancelled.and_then(|span| text(span, "warmroute.result")),
        Some("cancelled")
    );
    let decisions = all.last().map(|root| root.events.len());
    assert_eq!((decisions, spans(&all, "decide").len()), (Some(2), 2));
}

#[tokio::test]
#[contract("V44")]
async fn both_legs_of_a_split_request_have_spans() {
    let mut test = prefill::gateway(Connector::Nixl);
    let queue = traced(&mut test);
    let computed = r#"{"kv_transfer_params":{"remote_host":"p"},"choices":[]}"#;
    test.script(1, FakeReply::json(200, computed));
    test.script(2, FakeReply::json(200, "{}"));
    deliver(&test, prefill::chat(&test, 8999), CLIENT).await;
    let (all, sent) = (queue.take(), sent(&test));
    assert_eq!(spans(&all, "prefill"), [(sent[0].clone(), false)]);
    assert_eq!(spans(&all, "attempt"), [(sent[1].clone(), false)]);
    assert_ne!(sent[0], sent[1]);
}

#[tokio::test]
#[contract("V44")]
async fn a_request_that_is_not_sampled_has_no_spans_and_its_worker_gets_the_clients_header() {
    let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let mut test = TestGateway::new();
    // Without tracing, any header crosses.
    test.script(1, FakeReply::json(200, "{}"));
    deliver(&test, test.chat(&[1]), "00-1-2-01").await;
    assert_eq!(sent(&test), ["00-1-2-01"]);
    let queue = traced(&mut test);
    test.script(1, FakeReply::json(200, "{}"));
    deliver(&test, test.chat(&[1]), unsampled).await;
    assert_eq!(sent(&test), [unsampled]);
    assert!(queue.take().is_empty());
}

#[tokio::test]
#[contract("V44")]
async fn without_tracing_a_request_allocates_nothing_for_it_and_reads_no_clock() {
    let test = TestGateway::new();
    let mut guard = test.guard();
    let mut headers = HeaderMap::from_iter([(TRACEPARENT, HeaderValue::from_static(CLIENT))]);
    let received = guard.received;
    let allocated = allocation_counter::measure(|| {
        guard.begin_trace(&mut headers);
        assert_eq!((guard.stage_start(), guard.attempt_context()), (None, None));
        guard.trace_stage("accept", Some(received));
        guard.trace_wait(1.0);
        guard.trace_relay();
        assert_eq!(guard.draft.trace.next_attempt(), None);
    });
    assert_eq!((allocated.count_total, headers.len()), (0, 1));
}

#[tokio::test]
#[contract("V44")]
async fn the_span_of_a_refused_request_shows_the_failure() {
    let mut test = TestGateway::new();
    let queue = traced(&mut test);
    test.script(1, FakeReply::failure(SendFailure::Protocol));
    let reply = deliver(&test, test.chat(&[1]), CLIENT).await;
    let all = queue.take();
    let root = all.last().expect("the request's own span");
    let status = root.attributes.get("http.response.status_code");
    assert_eq!(status, Some(&AttributeValue::from(reply.status)));
    assert_eq!(
        (root.failed, text(root, "error.type")),
        (true, Some("upstream_error"))
    );
}
