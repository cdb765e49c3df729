//! Traces of requests, as a collector gets them over OTLP/HTTP, and the headers that engines get.

use contract_id::contract;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use prost::Message as _;
use test_programs::ReservedPort;

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, chat,
    eventually, json_reply, stream_reply, streamed,
};

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";
const STREAM: &str = concat!(
    "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\
     \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
    "data: [DONE]\n\n",
);

/// A router between a scripted engine and a collector.
struct TracedRouter {
    engine: ScriptedEngine,
    collector: ScriptedEngine,
    router: Program,
}

impl TracedRouter {
    /// Exports this share of the traces that begin at the router.
    fn start(sample_ratio: f64) -> Self {
        let collector = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "")));
        let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply(
            "200 OK",
            "",
            r#"{"id":"1"}"#,
        )));
        let config = config(&collector.url(), sample_ratio);
        let router = Program::serve_with(&config, &[engine.url()], &[]).ready(1);
        Self {
            engine,
            collector,
            router,
        }
    }

    /// Sends a chat; returns its reply and the `traceparent` that the engine got.
    fn send(&self, headers: &[(&str, &str)]) -> (RawReply, Option<String>) {
        let body = chat("m", "a confidential question", 1);
        self.send_body(headers, &body.to_string())
    }

    fn send_body(&self, headers: &[(&str, &str)], body: &str) -> (RawReply, Option<String>) {
        let reply = RawClient::post_with(&self.router.data(), CHAT, headers, body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        (reply, self.engine.next_request().header("traceparent"))
    }

    /// The spans of the next export.
    fn exported(&self) -> Vec<Span> {
        let request = self.collector.next_request();
        assert_eq!(request.line(), "POST /v1/traces HTTP/1.1");
        let kind = request.header("content-type");
        assert_eq!(kind.as_deref(), Some("application/x-protobuf"));
        let text = String::from_utf8_lossy(&request.body).into_owned();
        assert!(
            !text.contains("confidential"),
            "a text of the prompt: {text}"
        );
        let request = ExportTraceServiceRequest::decode(&*request.body).expect("an export");
        let resources = request.resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| {
            let attributes = resource.resource.expect("a resource").attributes;
            assert_eq!(text_of(&attributes, "service.name"), "warmroute");
            resource.scope_spans
        });
        scopes.flat_map(|scope| scope.spans).collect()
    }
}

fn config(collector: &str, sample_ratio: f64) -> String {
    format!("tracing: {{otlp_endpoint: \"{collector}\", sample_ratio: {sample_ratio}}}\n")
}

fn value(attributes: &[KeyValue], name: &str) -> Option<Value> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    found.value.clone()?.value
}

fn text_of(attributes: &[KeyValue], name: &str) -> String {
    match value(attributes, name) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{name} is {other:?} in {attributes:?}"),
    }
}

fn int_of(attributes: &[KeyValue], name: &str) -> i64 {
    match value(attributes, name) {
        Some(Value::IntValue(number)) => number,
        other => panic!("{name} is {other:?} in {attributes:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found
        .next()
        .unwrap_or_else(|| panic!("no {name} in {spans:?}"));
    assert!(found.next().is_none(), "one {name} in {spans:?}");
    span
}

#[test]
#[contract("V44")]
fn the_spans_of_a_request_continue_the_clients_trace_and_its_engine_continues_the_attempts() {
    // The client's flag counts, not the ratio.
    let it = TracedRouter::start(0.0);
    it.engine
        .once(ScriptedReply::whole(stream_reply(&[STREAM.as_bytes()])));
    let parent = format!("00-{TRACE}-{CLIENT}-01");
    let headers = [
        ("traceparent", &*parent),
        ("tracestate", "vendor=1"),
        ("x-request-id", "mine"),
    ];
    let body = streamed(chat("m", "a confidential question", 1)).to_string();
    let (reply, engine) = it.send_body(&headers, &body);
    let spans = it.exported();

    let root = named(&spans, "POST /v1/chat/completions");
    assert_eq!(
        (root.kind(), hex(&root.parent_span_id)),
        (SpanKind::Server, CLIENT.to_owned())
    );
    let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
    let stages = [
        "accept",
        "preprocess",
        "tokenize",
        "decide",
        "attempt",
        "relay",
    ];
    assert_eq!(
        names,
        [&stages[..], &["POST /v1/chat/completions"]].concat()
    );
    for span in &spans {
        assert_eq!(
            (hex(&span.trace_id), span.flags),
            (TRACE.to_owned(), 1),
            "{}",
            span.name
        );
        assert!(
            span.start_time_unix_nano <= span.end_time_unix_nano,
            "{}",
            span.name
        );
        assert!(
            root.start_time_unix_nano <= span.start_time_unix_nano
                && span.end_time_unix_nano <= root.end_time_unix_nano,
            "{} within the request",
            span.name
        );
        if !std::ptr::eq(span, root) {
            assert_eq!(span.parent_span_id, root.span_id, "{}", span.name);
        }
    }
    let attempt = named(&spans, "attempt");
    let sent = format!("00-{TRACE}-{}-01", hex(&attempt.span_id));
    assert_eq!(engine, Some(sent));
    assert_eq!(attempt.kind(), SpanKind::Client);
    let (host, port) = it.engine.address().rsplit_once(':').expect("a port");
    let attributes = &attempt.attributes;
    assert_eq!(text_of(attributes, "server.address"), host);
    assert_eq!(int_of(attributes, "server.port").to_string(), port);
    assert_eq!(int_of(attributes, "http.response.status_code"), 200);
    assert_eq!(text_of(attributes, "warmroute.worker"), it.engine.address());

    let attributes = &root.attributes;
    for (name, text) in [
        ("http.request.method", "POST"),
        ("http.route", CHAT),
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "m"),
        ("warmroute.outcome", "ok"),
        ("warmroute.request_id", "mine"),
        ("warmroute.tenant", "default"),
    ] {
        assert_eq!(text_of(attributes, name), text, "{name}");
    }
    for (name, number) in [
        ("http.response.status_code", 200),
        ("gen_ai.usage.input_tokens", 5),
        ("gen_ai.usage.output_tokens", 2),
        ("gen_ai.usage.cache_read.input_tokens", 4),
    ] {
        assert_eq!(int_of(attributes, name), number, "{name}");
    }
    let decision = text_of(attributes, "warmroute.decision_id");
    assert_eq!(reply.header("x-warmroute-decision"), Some(&*decision));
    let [event] = &root.events[..] else {
        panic!("one decision: {:?}", root.events);
    };
    assert_eq!(event.name, "decision");
    assert_eq!(text_of(&event.attributes, "warmroute.policy"), "warm");
    assert_eq!(
        text_of(&event.attributes, "warmroute.worker"),
        it.engine.address()
    );
    assert_eq!(
        int_of(&event.attributes, "warmroute.predicted_cached_tokens"),
        0
    );
    assert!(root.status.is_none() && attempt.status.is_none());
}

#[test]
#[contract("V44")]
fn a_trace_that_its_client_does_not_sample_is_not_exported_and_its_header_is_unchanged() {
    let it = TracedRouter::start(1.0);
    let parent = format!("00-{TRACE}-{CLIENT}-00");
    let (_, engine) = it.send(&[("traceparent", &parent), ("x-request-id", "first")]);
    assert_eq!(engine, Some(parent));
    let (_, engine) = it.send(&[("traceparent", "00-1-2-01"), ("x-request-id", "second")]);
    let spans = it.exported();
    let root = named(&spans, "POST /v1/chat/completions");
    assert_eq!(text_of(&root.attributes, "warmroute.request_id"), "second");
    // An invalid header begins a new trace.
    assert!(root.parent_span_id.is_empty());
    let attempt = named(&spans, "attempt");
    let sent = format!("00-{}-{}-01", hex(&root.trace_id), hex(&attempt.span_id));
    assert_eq!(engine, Some(sent));
}

#[test]
#[contract("V44")]
fn the_ratio_decides_about_new_traces_and_engines_are_told() {
    let it = TracedRouter::start(0.0);
    let (_, engine) = it.send(&[]);
    let parent = engine.expect("the engine is told");
    assert!(parent.len() == 55 && parent.ends_with("-00"), "{parent}");
    let flags = format!("workers: [\"{}\"]\n", it.engine.url());
    it.router
        .configure(&(flags + &config(&it.collector.url(), 1.0)));
    eventually("a trace to be sampled", || {
        let (_, engine) = it.send(&[]);
        engine?.ends_with("-01").then_some(())
    });
    named(&it.exported(), "POST /v1/chat/completions");
    // Probes have no traces.
    assert_eq!(RawClient::get(&it.router.data(), "/health").status, 200);
    let (_, engine) = it.send(&[]);
    assert!(engine.is_some_and(|engine| engine.ends_with("-01")));
    let spans = it.exported();
    named(&spans, "POST /v1/chat/completions");
    assert!(spans.iter().all(|span| span.name != "GET /health"));
}

#[test]
#[contract("V44")]
fn an_error_of_the_engine_marks_the_attempt_and_the_request() {
    let it = TracedRouter::start(1.0);
    it.engine
        .script(ScriptedReply::whole(json_reply("500 Oops", "", "{}")));
    let body = chat("m", "hi", 1).to_string();
    let reply = RawClient::post(&it.router.data(), CHAT, body.as_bytes());
    assert_eq!(reply.status, 500, "{}", reply.text());
    let spans = it.exported();
    for span in [
        named(&spans, "attempt"),
        named(&spans, "POST /v1/chat/completions"),
    ] {
        let status = span.status.as_ref().map(|status| status.code());
        assert_eq!(status, Some(StatusCode::Error), "{}", span.name);
    }
    let attempt = &named(&spans, "attempt").attributes;
    assert_eq!(int_of(attempt, "http.response.status_code"), 500);
    assert_eq!(text_of(attempt, "error.type"), "status");
}

#[test]
#[contract("V44")]
fn an_unreachable_collector_fails_no_request_is_reported_once_and_lost_spans_are_counted() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"id":"1"}"#,
    )));
    let port = ReservedPort::new();
    let config = config(&format!("http://{}", port.address()), 1.0);
    let router = Program::serve_with(&config, &[engine.url()], &[]).ready(1);
    let lost = || router.metric("warmroute_spans_lost_total", "reason=\"export_failed\"");
    for exports in 1..=2 {
        let before = lost();
        let body = chat("m", "hi", 1).to_string();
        let reply = RawClient::post(&router.data(), CHAT, body.as_bytes());
        assert_eq!(reply.status, 200);
        eventually("its spans to be counted", || {
            (lost() > before).then_some(())
        });
        eventually(&format!("one warning after {exports} exports"), || {
            let log = router.stderr();
            (log.matches("traces cannot be exported").count() == 1).then_some(())
        });
    }
    assert_eq!(router.metric("warmroute_spans_exported_total", ""), 0.0);
}

#[test]
#[contract("V44")]
fn the_spans_of_the_last_requests_are_exported_at_the_end_of_the_process() {
    let it = TracedRouter::start(1.0);
    it.send(&[("x-request-id", "last")]);
    it.router.signal("TERM");
    let spans = it.exported();
    let root = named(&spans, "POST /v1/chat/completions");
    assert_eq!(text_of(&root.attributes, "warmroute.request_id"), "last");
    assert_eq!(it.router.wait().code, Some(0));
}

#[test]
#[contract("V44")]
fn a_collector_that_never_answers_holds_up_neither_requests_nor_the_end_of_the_process() {
    let it = TracedRouter::start(1.0);
    it.collector.script(ScriptedReply::Silence);
    it.send(&[]);
    let export = it.collector.next_request();
    assert_eq!(export.line(), "POST /v1/traces HTTP/1.1");
    for _ in 0..20 {
        it.send(&[]);
    }
    it.router.signal("TERM");
    assert_eq!(it.router.wait().code, Some(0));
}

#[test]
#[contract("S60")]
fn no_key_salt_or_prompt_is_exported_or_logged() {
    let collector = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "")));
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"id":"1"}"#,
    )));
    let config = format!(
        "{}workers: [{{url: \"{}\", api_key: canary-of-the-worker}}]\nlogging: {{level: debug, requests: true}}\n",
        config(&collector.url(), 1.0),
        engine.url()
    );
    let flags = ["--api-key", "canary-of-the-client"];
    let router = Program::serve_with(&config, &[], &flags).ready(1);
    let mut body = chat("m", "canary-of-the-prompt", 1);
    body["cache_salt"] = "canary-of-the-salt".into();
    let headers = [
        ("authorization", "Bearer canary-of-the-client"),
        ("cookie", "session=canary-of-the-cookie"),
        ("traceparent", &*format!("00-{TRACE}-{CLIENT}-01")),
    ];
    let reply = RawClient::post_with(&router.data(), CHAT, &headers, body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let wrong = [("authorization", "Bearer canary-of-a-stranger")];
    let refused = RawClient::post_with(&router.data(), CHAT, &wrong, b"{}");
    assert_eq!(refused.status, 401);
    let export = collector.next_request();
    assert!(ExportTraceServiceRequest::decode(&*export.body).is_ok());
    for text in [
        String::from_utf8_lossy(&export.body).into_owned(),
        String::from_utf8_lossy(&export.head).into_owned(),
        router.stderr(),
        refused.text(),
        RawClient::get(&router.admin(), "/admin/decisions").text(),
        RawClient::get(&router.admin(), "/admin/config").text(),
        RawClient::get(&router.admin(), "/metrics").text(),
    ] {
        assert!(!text.contains("canary"), "{text}");
    }
}
