use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, uri::PathAndQuery};
use routing::{Method, receipt::OutcomeKind};
use tokio::sync::Notify;

use super::*;
use crate::{
    memory::MemoryStage,
    request::{
        test_gateway::{ClientReply, ReplyEnding, TestGateway, outcome_kind},
        test_support,
    },
};

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":0}"#;
const COMPLETION: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;

/// A gateway whose cache is enabled with these further settings.
fn caching(more: &str) -> TestGateway {
    TestGateway::configured(&format!("response_cache: {{enabled: true{more}}}"))
}

/// A worker of tests: it sends this reply once for each request.
#[derive(Clone)]
struct Worker {
    sends: Arc<AtomicUsize>,
    status: u16,
    head: HeaderMap,
    body: &'static str,
    /// If set, no reply comes before it is notified.
    gate: Option<Arc<Notify>>,
    /// The request's `Accept-Encoding`, as the worker got it.
    encodings: Arc<AtomicUsize>,
}

impl Worker {
    fn new(body: &'static str) -> Self {
        let json = HeaderValue::from_static("application/json");
        Self {
            sends: Arc::default(),
            status: 200,
            head: HeaderMap::from_iter([(header::CONTENT_TYPE, json)]),
            body,
            gate: None,
            encodings: Arc::default(),
        }
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.head.insert(name, HeaderValue::from_static(value));
        self
    }

    fn sends(&self) -> usize {
        self.sends.load(Ordering::Relaxed)
    }
}

fn call(body: &'static str, fields: &[(&'static str, &'static str)]) -> AcceptedRequest {
    let mut call = test_support::call(body);
    for (name, value) in fields {
        call.headers.insert(*name, HeaderValue::from_static(value));
    }
    call
}

async fn send_call(test: &TestGateway, worker: &Worker, call: AcceptedRequest) -> ClientReply {
    send_in_dialect(test, worker, call, Dialect::Chat).await
}

async fn send_in_dialect(
    test: &TestGateway,
    worker: &Worker,
    call: AcceptedRequest,
    dialect: Dialect,
) -> ClientReply {
    ClientReply::read(answer(test, worker, call, dialect).await).await
}

async fn answer(
    test: &TestGateway,
    worker: &Worker,
    call: AcceptedRequest,
    dialect: Dialect,
) -> Response<ReplyBody> {
    let worker = worker.clone();
    let send = move |call: AcceptedRequest, mut guard: Box<RequestGuard>| async move {
        worker.sends.fetch_add(1, Ordering::Relaxed);
        let encoded = call.headers.contains_key(header::ACCEPT_ENCODING);
        worker
            .encodings
            .fetch_add(usize::from(encoded), Ordering::Relaxed);
        if let Some(gate) = &worker.gate {
            gate.notified().await;
        }
        guard.record_passthrough(worker.status);
        let status = StatusCode::from_u16(worker.status).expect("a status");
        let body = ReplyBody::whole(Bytes::from_static(worker.body.as_bytes()), guard);
        reply::with_head((status, worker.head), body)
    };
    let guard = test.guard();
    test.gateway
        .reply_cache
        .answer(call, dialect, guard, send)
        .await
}

/// `X-Cache` and its reason.
fn cache(reply: &ClientReply) -> (String, String) {
    let field = |name| {
        let value = reply
            .headers
            .get(name)
            .map(|it| it.to_str().expect("ASCII"));
        value.unwrap_or("-").to_owned()
    };
    (field("x-cache"), field("x-warmroute-cache-reason"))
}

fn status(word: &str, reason: &str) -> (String, String) {
    (word.to_owned(), reason.to_owned())
}

#[tokio::test]
async fn each_request_says_why_the_cache_may_not_answer_it() {
    let test = caching("");
    let no_store = ("cache-control", "max-age=5, No-Store");
    for (body, fields, reason) in [
        (
            r#"{"model":"m","messages":[],"temperature":0.7}"#,
            &[][..],
            "temperature",
        ),
        (
            r#"{"model":"m","messages":[],"temperature":"0"}"#,
            &[],
            "temperature",
        ),
        (CHAT, &[no_store], "no_store"),
        (CHAT, &[("cache-control", "no-cache")], "no_cache"),
        (CHAT, &[("cache-control", "max-age=0")], "no_cache"),
        ("[1]", &[], "unreadable"),
        (
            r#"{"model":"m","messages":[],"temperature":0,"stream":true,"stream_options":{"continuous_usage_stats":true}}"#,
            &[],
            "stream",
        ),
    ] {
        let reply = send_call(&test, &Worker::new(COMPLETION), call(body, fields)).await;
        assert_eq!(cache(&reply), status("BYPASS", reason), "{body} {fields:?}");
    }
    let mut pinned = call(CHAT, &[]);
    pinned.overrides.worker = Some("w1".into());
    let reply = send_call(&test, &Worker::new(COMPLETION), pinned).await;
    assert_eq!(cache(&reply), status("BYPASS", "pinned"));
    let stream = call(
        r#"{"model":"m","messages":[],"temperature":0,"stream":true}"#,
        &[],
    );
    let reply = send_in_dialect(&test, &Worker::new(COMPLETION), stream, Dialect::Messages).await;
    assert_eq!(cache(&reply), status("BYPASS", "stream"));
}

#[tokio::test]
async fn a_request_without_a_temperature_is_cached_unless_configured_otherwise() {
    for (more, expected) in [
        ("", status("MISS", "not_found")),
        (
            ", absent_temperature: bypass",
            status("BYPASS", "absent_temperature"),
        ),
    ] {
        let test = caching(more);
        let body = r#"{"model":"m","messages":[]}"#;
        let reply = send_call(&test, &Worker::new(COMPLETION), call(body, &[])).await;
        assert_eq!(cache(&reply), expected);
    }
}

#[tokio::test]
async fn a_route_that_is_never_cached_says_nothing_about_the_cache() {
    let off = TestGateway::new();
    let reply = send_call(&off, &Worker::new(COMPLETION), call(CHAT, &[])).await;
    assert_eq!(cache(&reply), status("BYPASS", "off"));
    let test = caching("");
    for dialect in [Dialect::Embeddings, Dialect::Responses, Dialect::Score] {
        let reply = send_in_dialect(&test, &Worker::new("{}"), call(CHAT, &[]), dialect).await;
        assert_eq!(cache(&reply), status("-", "-"), "{dialect:?}");
    }
}

#[tokio::test]
async fn an_equal_request_gets_the_stored_reply_and_no_worker_is_asked() {
    let (test, worker) = (caching(""), Worker::new(COMPLETION));
    let first = send_call(&test, &worker, call(CHAT, &[])).await;
    assert_eq!(cache(&first), status("MISS", "not_found"));
    let guard_count = test.ring.len();
    let second = send_call(&test, &worker, call(CHAT, &[])).await;
    assert_eq!(cache(&second), status("HIT", "stored"));
    assert_eq!((second.status, second.text()), (200, first.text()));
    assert_eq!(second.headers["content-type"], "application/json");
    assert!(second.headers.contains_key("age"));
    assert_eq!(worker.sends(), 1);
    assert_eq!(
        test.ring.len(),
        guard_count + 1,
        "a hit has a receipt of its own"
    );
    let receipt = test
        .ring
        .list(&routing::receipt::ReceiptFilter::default(), 1)
        .remove(0);
    assert_eq!(
        (receipt.method(), outcome_kind(&receipt)),
        (Method::CacheHit, OutcomeKind::Ok)
    );
}

#[tokio::test]
async fn requests_that_differ_in_anything_that_matters_share_no_reply() {
    let (test, worker) = (caching(""), Worker::new(COMPLETION));
    send_call(&test, &worker, call(CHAT, &[])).await;
    let key = [("authorization", "Bearer a")];
    let other_body = r#"{"model":"m","messages":[{"role":"user","content":"b"}],"temperature":0}"#;
    let mut other_route = call(CHAT, &[]);
    other_route.target = PathAndQuery::from_static("/v1/chat/completions?beta=true");
    let others = [
        call(other_body, &[]),
        call(CHAT, &key),
        call(CHAT, &[("authorization", "Bearer b")]),
        call(CHAT, &[("x-api-key", "Bearer a")]),
        call(CHAT, &[("openai-beta", "x")]),
        call(CHAT, &[("x-cache-salt", "x")]),
        other_route,
    ];
    let count = others.len();
    for other in others {
        assert_eq!(
            cache(&send_call(&test, &worker, other).await),
            status("MISS", "not_found")
        );
    }
    assert_eq!(worker.sends(), 1 + count);
    let alike = [("user-agent", "x"), ("accept", "x"), ("traceparent", "x")];
    let hit = send_call(&test, &worker, call(CHAT, &alike)).await;
    assert_eq!(
        cache(&hit),
        status("HIT", "stored"),
        "these headers change no reply"
    );
    let spaced =
        r#"{ "temperature": 0, "model": "m", "messages": [{"role":"user","content":"a"}] }"#;
    let hit = send_call(&test, &worker, call(spaced, &[])).await;
    assert_eq!(
        cache(&hit),
        status("HIT", "stored"),
        "the same members in another order"
    );
}

#[tokio::test]
async fn a_request_for_a_fresh_reply_replaces_the_stored_one() {
    let (test, old) = (caching(""), Worker::new(COMPLETION));
    send_call(&test, &old, call(CHAT, &[])).await;
    let renewed: &'static str = COMPLETION.replace("hi", "hello").leak();
    let fresh = [("cache-control", "no-cache")];
    send_call(&test, &Worker::new(renewed), call(CHAT, &fresh)).await;
    let hit = send_call(&test, &old, call(CHAT, &[])).await;
    assert_eq!(
        (cache(&hit), hit.text()),
        (status("HIT", "stored"), renewed.to_owned())
    );
}

#[tokio::test]
async fn a_reply_that_is_no_whole_success_is_not_stored() {
    let encoding = HeaderName::from_static("content-encoding");
    for worker in [
        Worker {
            status: 400,
            ..Worker::new(COMPLETION)
        },
        Worker {
            status: 503,
            ..Worker::new(COMPLETION)
        },
        Worker {
            status: 201,
            ..Worker::new(COMPLETION)
        },
        Worker::new(COMPLETION).with(encoding, "gzip"),
        Worker::new(COMPLETION).with(header::CONTENT_TYPE, "text/plain"),
        Worker::new("no JSON"),
        Worker::new(r#"{"error":{"message":"no"}}"#),
    ] {
        let test = caching("");
        for _ in 0..2 {
            send_call(&test, &worker, call(CHAT, &[])).await;
        }
        assert_eq!(
            worker.sends(),
            2,
            "{} {:?} {}",
            worker.status,
            worker.head,
            worker.body
        );
    }
}

#[tokio::test]
async fn a_reply_that_its_client_did_not_read_is_not_stored() {
    let (test, worker) = (caching(""), Worker::new(COMPLETION));
    drop(answer(&test, &worker, call(CHAT, &[]), Dialect::Chat).await);
    assert_eq!(
        cache(&send_call(&test, &worker, call(CHAT, &[])).await),
        status("MISS", "not_found")
    );
}

#[tokio::test]
async fn a_reply_longer_than_the_limit_or_under_memory_pressure_is_not_stored() {
    let (short, worker) = (caching(", max_response_size: 100"), Worker::new(COMPLETION));
    for _ in 0..2 {
        send_call(&short, &worker, call(CHAT, &[])).await;
    }
    assert_eq!(worker.sends(), 2);
    let (under_pressure, worker) = (caching(""), Worker::new(COMPLETION));
    let memory = &under_pressure.gateway.reply_cache.memory;
    memory.observe(Some(92), Some(100));
    assert_eq!(memory.stage(), MemoryStage::SmallBodies);
    for _ in 0..2 {
        send_call(&under_pressure, &worker, call(CHAT, &[])).await;
    }
    assert_eq!(worker.sends(), 2);
}

const STREAMED: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"hi\"},\"finish_reason\":null}]}\n\ndata: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
const STREAM_CHAT: &str =
    r#"{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":0,"stream":true}"#;

#[tokio::test]
async fn a_stored_reply_answers_streams_and_whole_requests_alike() {
    let (test, worker) = (caching(""), Worker::new(COMPLETION));
    send_call(&test, &worker, call(CHAT, &[])).await;
    let stream = send_call(&test, &worker, call(STREAM_CHAT, &[])).await;
    assert_eq!(cache(&stream), status("HIT", "stored"));
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    assert!(
        stream.text().ends_with("data: [DONE]\n\n"),
        "{}",
        stream.text()
    );
    assert!(stream.text().contains("\"hi\""), "{}", stream.text());
    assert_eq!(worker.sends(), 1);
}

#[tokio::test]
async fn a_stored_stream_without_its_usage_answers_only_streams() {
    let test = caching("");
    let worker = Worker::new(STREAMED).with(header::CONTENT_TYPE, "text/event-stream");
    for expected in [status("MISS", "not_found"), status("HIT", "stored")] {
        let reply = send_call(&test, &worker, call(STREAM_CHAT, &[])).await;
        assert_eq!(
            (cache(&reply), reply.ending),
            (expected, ReplyEnding::Clean)
        );
    }
    let whole = Worker::new(COMPLETION);
    let reply = send_call(&test, &whole, call(CHAT, &[])).await;
    assert_eq!(
        cache(&reply),
        status("MISS", "not_found"),
        "a whole reply has its usage"
    );
    let reply = send_call(&test, &whole, call(CHAT, &[])).await;
    assert_eq!(
        cache(&reply),
        status("HIT", "stored"),
        "it has replaced the stream"
    );
}

#[tokio::test]
async fn the_router_reads_a_reply_that_it_stores_or_shares_so_no_encoding_is_asked_for() {
    let (test, worker) = (caching(""), Worker::new(COMPLETION));
    let gzip = ("accept-encoding", "gzip");
    send_call(&test, &worker, call(CHAT, &[gzip])).await;
    assert_eq!(worker.encodings.load(Ordering::Relaxed), 0);
    let hot = r#"{"model":"m","messages":[],"temperature":1}"#;
    send_call(&test, &worker, call(hot, &[gzip])).await;
    assert_eq!(
        worker.encodings.load(Ordering::Relaxed),
        1,
        "this one is only forwarded"
    );
}

/// A gateway where equal repeatable requests share one reply.
fn coalescing() -> TestGateway {
    let mut test = TestGateway::new();
    test.gateway.reply_cache.settings.enable_deduplication = true;
    test
}

fn gated(body: &'static str) -> (Worker, Arc<Notify>) {
    let gate = Arc::<Notify>::default();
    let worker = Worker {
        gate: Some(Arc::clone(&gate)),
        ..Worker::new(body)
    };
    (worker, gate)
}

#[tokio::test]
async fn equal_requests_at_the_same_time_are_sent_once() {
    let (test, (worker, gate)) = (coalescing(), gated(COMPLETION));
    let open = async {
        while worker.sends() == 0 {
            tokio::task::yield_now().await;
        }
        gate.notify_one();
    };
    let send_call = || send_call(&test, &worker, call(CHAT, &[]));
    let (one, two, three, ()) = tokio::join!(send_call(), send_call(), send_call(), open);
    assert_eq!(worker.sends(), 1);
    for reply in [&one, &two, &three] {
        assert_eq!((reply.status, reply.text().as_str()), (200, COMPLETION));
        assert_eq!(reply.ending, ReplyEnding::Clean);
    }
    assert_eq!(cache(&one).0, "BYPASS");
    assert_eq!(cache(&two), status("HIT", "joined"));
    for (result, count) in [("first", 1), ("joined", 2)] {
        let line = format!("warmroute_deduplicated_requests_total{{result=\"{result}\"}} {count}");
        assert!(test.has_metric(&line), "{line}");
    }
}

#[tokio::test]
async fn requests_that_are_not_equal_or_not_repeatable_are_sent_each() {
    let hot = r#"{"model":"m","messages":[],"temperature":1}"#;
    let seeded = r#"{"model":"m","messages":[],"temperature":1,"seed":7}"#;
    let stream = STREAM_CHAT;
    for (one, two, dialect, sends) in [
        (CHAT, CHAT, Dialect::Chat, 1),
        (seeded, seeded, Dialect::Chat, 1),
        (hot, hot, Dialect::Chat, 2),
        (CHAT, stream, Dialect::Chat, 2),
        (CHAT, CHAT, Dialect::Responses, 2),
    ] {
        let (test, (worker, gate)) = (coalescing(), gated("{}"));
        let open = async {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            let sent = worker.sends();
            for _ in 0..sent {
                gate.notify_one();
                tokio::task::yield_now().await;
            }
            sent
        };
        let send_call = |body| send_in_dialect(&test, &worker, call(body, &[]), dialect);
        let (_, _, sent) = tokio::join!(send_call(one), send_call(two), open);
        assert_eq!(sent, sends, "{one} {two} {dialect:?}");
    }
}

#[tokio::test]
async fn an_error_stays_with_the_request_that_got_it() {
    let (test, (mut worker, gate)) = (coalescing(), gated("{}"));
    worker.status = 503;
    let open = async {
        while worker.sends() == 0 {
            tokio::task::yield_now().await;
        }
        gate.notify_one();
        while worker.sends() == 1 {
            tokio::task::yield_now().await;
        }
        gate.notify_one();
    };
    let send_call = || send_call(&test, &worker, call(CHAT, &[]));
    let (one, two, ()) = tokio::join!(send_call(), send_call(), open);
    assert_eq!((one.status, two.status, worker.sends()), (503, 503, 2));
    assert!(test.has_metric("warmroute_deduplicated_requests_total{result=\"not_shared\"} 1"));
}

#[tokio::test]
async fn a_follower_gets_the_reply_also_where_the_leader_has_left() {
    let (test, (worker, gate)) = (coalescing(), gated(COMPLETION));
    let leader = answer(&test, &worker, call(CHAT, &[]), Dialect::Chat);
    let mut leader = Box::pin(leader);
    tokio::select! {
        biased;
        _ = &mut leader => panic!("it waits for the worker"),
        () = tokio::task::yield_now() => {}
    }
    let change = async {
        tokio::task::yield_now().await;
        drop(leader);
        gate.notify_one();
    };
    let (reply, ()) = tokio::join!(send_call(&test, &worker, call(CHAT, &[])), change);
    assert_eq!((reply.text().as_str(), worker.sends()), (COMPLETION, 1));
    assert_eq!(cache(&reply), status("HIT", "joined"));
}

#[tokio::test]
async fn a_finished_reply_answers_for_its_lifetime_and_not_where_none_is_set() {
    for (lifetime, sends) in [(0, 2), (60, 1)] {
        let (test, worker) = (coalescing(), Worker::new(COMPLETION));
        let lifetime = std::time::Duration::from_secs(lifetime);
        test.gateway.reply_cache.coalescer.reconfigure(lifetime);
        for _ in 0..2 {
            assert_eq!(
                send_call(&test, &worker, call(CHAT, &[])).await.text(),
                COMPLETION
            );
        }
        assert_eq!(worker.sends(), sends);
    }
}
