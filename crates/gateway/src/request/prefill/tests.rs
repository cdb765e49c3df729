use std::{num::NonZeroU16, sync::Arc, time::Duration};

use dialect::{Dialect, RequestView};
use fleet::WorkerView;
use kv_blocks::{Role, WorkerId};
use proxy::{FakeReply, SendFailure};
use routing::{
    PrefillNote,
    receipt::{OutcomeKind, Receipt},
};
use tokenization::TokenizedPrompt;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;
use crate::request::{
    send::RoutedRequest,
    test_gateway::{ClientReply, TestGateway, attempts, outcome_kind},
    test_support,
};

const PREFILL: u32 = 1;
const DECODE: u32 = 2;
const CLIENT: &str = r#"{"model":"m","messages":[]}"#;

pub(in crate::request) fn gateway(connector: Connector) -> TestGateway {
    let mut test = TestGateway::new();
    let context = Arc::new(PrefillContext::new(DisaggregationSection {
        connector,
        ..DisaggregationSection::default()
    }));
    let delivery = test.delivery_mut();
    delivery.send.prefill = Arc::clone(&context);
    delivery.queue.decider.prefill = context;
    test
}

/// A chat for a prefill worker, whose bootstrap server has this port, and a decode worker.
pub(in crate::request) fn chat(test: &TestGateway, bootstrap_port: u16) -> RoutedRequest {
    let prefill = WorkerView {
        role: Role::Prefill,
        bootstrap_port: NonZeroU16::new(bootstrap_port),
        ..test_support::worker(PREFILL)
    };
    let decode = WorkerView {
        role: Role::Decode,
        ..test_support::worker(DECODE)
    };
    let mut request = test.chat_for(vec![prefill, decode]);
    request.facts.prompt = TokenizedPrompt::without_blocks(1000);
    Arc::make_mut(&mut request.model).split = true;
    request
}

/// The bodies that were sent, with the worker of each.
pub(super) fn bodies(test: &TestGateway) -> Vec<(u32, serde_json::Value)> {
    let requests = test.upstream.take_requests();
    let one = |request: http::Request<bytes::Bytes>| {
        let host = request.headers()["host"]
            .to_str()
            .expect("ASCII")
            .to_owned();
        let number = host.rsplit_once(":900").expect("a port").1;
        let body = serde_json::from_slice(request.body()).expect("JSON");
        (number.parse().expect("a number"), body)
    };
    requests.into_iter().map(one).collect()
}

pub(super) fn note(receipt: &Receipt) -> &PrefillNote {
    let decision = receipt.decision().expect("it was decided");
    decision.prefill.as_ref().expect("the model is split")
}

pub(super) async fn deliver(
    connector: Connector,
    prefill: FakeReply,
    decode: FakeReply,
) -> (TestGateway, ClientReply, Arc<Receipt>) {
    let test = gateway(connector);
    test.script(PREFILL, prefill);
    test.script(DECODE, decode);
    let (reply, receipt) = test.deliver(chat(&test, 8999)).await;
    assert_eq!(test.router.open_reservations(), 0);
    (test, reply, receipt)
}

pub(super) fn ok(text: &'static str) -> FakeReply {
    FakeReply::json(200, text)
}

const PREFILLED: &str = r#"{"kv_transfer_params":{"remote_host":"p"},"prompt_token_ids":[1,2],"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":1}}"#;

#[tokio::test]
async fn with_nixl_the_decode_worker_gets_the_prefills_own_transfer_parameters() {
    let (test, reply, receipt) = deliver(Connector::Nixl, ok(PREFILLED), ok("{}")).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "{}"));
    let [(first, prefill), (second, decode)] = &bodies(&test)[..] else {
        panic!("two legs");
    };
    assert_eq!((*first, *second), (PREFILL, DECODE));
    assert_eq!(
        (&prefill["max_tokens"], &prefill["stream"]),
        (&1.into(), &false.into())
    );
    assert_eq!(prefill["kv_transfer_params"]["do_remote_decode"], true);
    assert_eq!(decode["kv_transfer_params"]["remote_host"], "p");
    assert_eq!(decode["prompt_token_ids"], serde_json::json!([1, 2]));
    assert!(decode.get("max_tokens").is_none(), "the client sets none");
    assert_eq!(receipt.rewrites, ["token_ids", "kv_transfer"]);
    assert_eq!(note(&receipt).skipped, None);
    assert!(note(&receipt).ms.is_some());
    assert_eq!(attempts(&receipt), [("w2", "", "ok")]);
    assert!(test.has_metric("warmroute_prefill_total{result=\"ok\"} 1"));
}

#[tokio::test]
async fn a_failed_prefill_costs_the_request_nothing_but_time() {
    let lost = || FakeReply::failure(SendFailure::NoHead);
    for prefill in [
        lost(),
        FakeReply::json(503, "{}"),
        FakeReply::json(500, "{}"),
        FakeReply::json(400, "{}"),
        ok("no JSON"),
        ok(r#"{"error":{"message":"no"}}"#),
        // Its connector is off.
        ok(r#"{"choices":[]}"#),
        FakeReply::pieces(http::Response::new(()), [Ok("{".into()), Err("reset")]),
    ] {
        let what = format!("{prefill:?}");
        let (test, reply, receipt) = deliver(Connector::Nixl, prefill, ok("{}")).await;
        assert_eq!(reply.status, 200, "{what}");
        let sent = bodies(&test);
        let (worker, body) = sent.last().expect("two requests");
        assert_eq!((sent.len(), *worker), (2, DECODE), "{what}");
        assert_eq!(
            *body,
            serde_json::from_str::<serde_json::Value>(CLIENT).expect("JSON")
        );
        assert_eq!(
            note(&receipt).skipped,
            Some(PrefillSkip::PrefillFailed),
            "{what}"
        );
        assert_eq!(receipt.rewrites, [""; 0], "{what}");
        assert_eq!(attempts(&receipt), [("w2", "", "ok")], "{what}");
        assert!(test.has_metric("warmroute_prefill_total{result=\"prefill_failed\"} 1"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_prefill_gets_half_of_the_requests_time() {
    let slow = ok(PREFILLED).after(Duration::from_secs(3600));
    let began = tokio::time::Instant::now();
    let (_, reply, receipt) = deliver(Connector::Nixl, slow, ok("{}")).await;
    let half = test_support::limits().timeout / 2;
    assert!(began.elapsed().abs_diff(half) < Duration::from_millis(500));
    assert_eq!(reply.status, 200);
    assert_eq!(note(&receipt).skipped, Some(PrefillSkip::PrefillFailed));
}

#[tokio::test]
async fn a_decode_worker_that_fails_after_the_prefill_is_retried_like_any_other() {
    let (test, reply, receipt) =
        deliver(Connector::Nixl, ok(PREFILLED), FakeReply::json(429, "{}")).await;
    assert_eq!(reply.status, 429);
    assert_eq!(bodies(&test).len(), 2);
    assert_eq!(attempts(&receipt), [("w2", "C2", "status")]);
}

#[tokio::test]
async fn a_client_that_leaves_during_the_prefill_frees_both_loads() {
    let test = gateway(Connector::Nixl);
    test.script(PREFILL, ok(PREFILLED).after(Duration::from_secs(3600)));
    let guard = test.guard();
    let id = guard.id();
    let sent = test.delivery().run(chat(&test, 8999), guard);
    let left = tokio::time::timeout(Duration::from_millis(50), sent).await;
    assert!(left.is_err());
    assert_eq!(test.router.open_reservations(), 0);
    assert_eq!(outcome_kind(&test.receipt(id)), OutcomeKind::ClientGone);
    assert!(test.has_metric("warmroute_prefill_total{result=\"unfinished\"} 1"));
}

#[tokio::test]
async fn with_sglang_both_workers_meet_in_one_room_of_the_prefills_server() {
    let (test, reply, receipt) = deliver(Connector::Sglang, ok("{}"), ok("{}")).await;
    assert_eq!(reply.status, 200);
    let mut sent = bodies(&test);
    sent.sort_by_key(|(worker, _)| *worker);
    let [(_, prefill), (_, decode)] = &sent[..] else {
        panic!("two legs");
    };
    for body in [prefill, decode] {
        assert_eq!(body["bootstrap_host"], "127.0.0.1");
        assert_eq!(body["bootstrap_port"], 8999);
        assert!(
            body["bootstrap_room"].is_i64(),
            "the engine reads a signed number"
        );
    }
    assert_eq!(prefill["bootstrap_room"], decode["bootstrap_room"]);
    assert_eq!(
        (&prefill["stream"], decode.get("stream")),
        (&false.into(), None)
    );
    assert_eq!(receipt.rewrites, ["kv_transfer"]);
}

#[tokio::test(start_paused = true)]
async fn where_both_legs_run_at_once_a_failed_prefill_stops_the_decode_leg() {
    let never = ok("never").after(Duration::from_secs(3600));
    let test = gateway(Connector::Sglang);
    test.script(
        PREFILL,
        FakeReply::json(503, "{}").after(Duration::from_secs(1)),
    );
    test.script(DECODE, never);
    test.script(DECODE, ok("again"));
    let (reply, receipt) = test.deliver(chat(&test, 8999)).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "again"));
    assert_eq!(note(&receipt).skipped, Some(PrefillSkip::PrefillFailed));
    assert_eq!(test.contacted().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn where_both_legs_run_at_once_the_decode_workers_answer_ends_the_wait() {
    let late = ok("{}").after(Duration::from_secs(3600));
    let (_, reply, receipt) = deliver(Connector::Sglang, late, ok("{}")).await;
    assert_eq!(reply.status, 200);
    assert!(
        note(&receipt).ms.is_some(),
        "an answer shows that the prompt is there"
    );
    let late = ok("{}").after(Duration::from_secs(3600));
    let error = FakeReply::json(400, "{}");
    let (_, reply, receipt) = deliver(Connector::Sglang, late, error).await;
    assert_eq!(reply.status, 400);
    assert!(
        note(&receipt).ms.is_none(),
        "an error shows nothing about it"
    );
}

/// A bootstrap server that answers each query with this body; also counts the queries.
async fn bootstrap_server(body: &'static str) -> (u16, tokio::sync::mpsc::UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = sender.send(());
            let reply = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(reply.as_bytes()).await;
        }
    });
    (port, requests)
}

#[tokio::test]
async fn with_mooncake_the_engines_name_is_queried_once_and_again_after_a_failure() {
    let (port, mut requests) = bootstrap_server(r#"{"0":{"engine_id":"engine-a"}}"#).await;
    let test = gateway(Connector::Mooncake);
    for (prefill_status, skipped) in [
        (200, None),
        (200, None),
        (503, Some(PrefillSkip::PrefillFailed)),
        (200, None),
    ] {
        test.script(PREFILL, FakeReply::json(prefill_status, "{}"));
        if skipped.is_some() {
            test.script(DECODE, ok("{}").after(Duration::from_secs(3600)));
        }
        test.script(DECODE, ok("{}"));
        let (reply, receipt) = test.deliver(chat(&test, port)).await;
        assert_eq!((reply.status, note(&receipt).skipped), (200, skipped));
        let sent = bodies(&test);
        let (_, decode) = sent
            .iter()
            .find(|(worker, _)| *worker == DECODE)
            .expect("sent");
        assert_eq!(decode["kv_transfer_params"]["remote_engine_id"], "engine-a");
        let address = format!("http://127.0.0.1:{port}");
        assert_eq!(
            decode["kv_transfer_params"]["remote_bootstrap_addr"],
            *address
        );
    }
    let mut queries = 0;
    while requests.try_recv().is_ok() {
        queries += 1;
    }
    assert_eq!(queries, 2, "at first, and after the failure");
}

#[tokio::test]
async fn a_bootstrap_server_without_a_usable_name_is_a_failed_prefill() {
    for body in ["{}", "no JSON", r#"{"1":{"engine_id":"other rank"}}"#] {
        let (port, _requests) = bootstrap_server(body).await;
        let test = gateway(Connector::Mooncake);
        test.script(DECODE, ok("{}"));
        let (reply, receipt) = test.deliver(chat(&test, port)).await;
        assert_eq!(
            (reply.status, test.contacted()),
            (200, vec![DECODE]),
            "{body}"
        );
        assert_eq!(note(&receipt).skipped, Some(PrefillSkip::PrefillFailed));
    }
}

#[test]
fn only_one_prompt_with_one_reply_can_be_handed_over() {
    let handover = |dialect, body: &str| {
        let view: RequestView<'_> = dialect::view(dialect, body.as_bytes()).expect("a good body");
        matches!(Handover::of(&view), Handover::Possible)
    };
    for (dialect, fields, possible) in [
        (Dialect::Chat, r#""messages":[]"#, true),
        (Dialect::Chat, r#""messages":[],"n":1"#, true),
        (Dialect::Chat, r#""messages":[],"n":2"#, false),
        (Dialect::Completions, r#""prompt":"a""#, true),
        (Dialect::Completions, r#""prompt":[1,2]"#, true),
        (Dialect::Completions, r#""prompt":["a","b"]"#, false),
        (
            Dialect::Completions,
            r#""prompt":"a","echo":true,"logprobs":1"#,
            false,
        ),
    ] {
        let body = format!(r#"{{"model":"m",{fields}}}"#);
        assert_eq!(handover(dialect, &body), possible, "{body}");
    }
}

#[test]
fn a_client_must_not_name_the_hosts_of_a_transfer() {
    for field in ["kv_transfer_params", "bootstrap_host", "bootstrap_room"] {
        let body = format!(r#"{{"model":"m","messages":[],"{field}":{{}}}}"#);
        let view = dialect::view(Dialect::Chat, body.as_bytes()).expect("a good body");
        let error = check_transfer_fields(&view, None).expect_err(field);
        assert_eq!(error.code, ErrorCode::FieldNotAllowed);
        assert!(error.message.starts_with(field), "{}", error.message);
    }
    let view = dialect::view(Dialect::Chat, CLIENT.as_bytes()).expect("a good body");
    assert!(check_transfer_fields(&view, None).is_ok());
}

#[tokio::test]
async fn without_a_connector_or_a_split_model_the_decode_worker_gets_the_clients_body() {
    let without = TestGateway::new();
    let mut whole = chat(&without, 1);
    Arc::make_mut(&mut whole.model).split = false;
    let nixl = gateway(Connector::Nixl);
    let mut unsplit = chat(&nixl, 1);
    Arc::make_mut(&mut unsplit.model).split = false;
    for (test, request) in [
        (&without, chat(&without, 1)),
        (&without, whole),
        (&nixl, unsplit),
    ] {
        test.script(DECODE, ok("{}"));
        let (reply, receipt) = test.deliver(request).await;
        assert_eq!((reply.status, test.contacted()), (200, vec![DECODE]));
        assert_eq!(receipt.worker().map(|name| &**name), Some("w2"));
    }
    assert_eq!(test_support::worker(DECODE).id, WorkerId(2));
}
