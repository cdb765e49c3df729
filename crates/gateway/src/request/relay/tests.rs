use std::sync::Arc;

use contract_id::contract;
use dialect::Dialect;
use kv_blocks::WorkerId;
use proxy::FakeReply;
use routing::receipt::{OutcomeKind, Receipt};

use super::{
    sse_tracker::{MAX_PARTIAL_EVENT_BYTES, PARTIAL_EVENT_WAIT},
    *,
};
use crate::request::{
    send::RoutedRequest,
    test_gateway::{ClientReply, ReplyEnding, TestGateway, attempts, outcome, outcome_kind},
    test_support,
    translate::RequestTranslator,
};

const FIRST: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
const SECOND: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn events(pieces: &[Result<&str, &'static str>]) -> FakeReply {
    let piece = |piece: &Result<&str, &'static str>| piece.map(|it| Bytes::from(it.to_owned()));
    FakeReply::events(pieces.iter().map(piece))
}

/// Relays the reply of the only worker to a chat.
async fn relay(test: &TestGateway, reply: FakeReply) -> (ClientReply, Arc<Receipt>) {
    test.script(1, reply);
    test.deliver(test.chat(&[1])).await
}

fn with_limits(limits: RequestSection) -> TestGateway {
    let mut test = TestGateway::new();
    test.delivery_mut().send.dispatcher.limits = limits;
    test
}

/// Checks that a reply is `begun`, one error event with this code, and an unclean end.
fn assert_cut(reply: &ClientReply, sent: &str, code: &str) {
    let text = reply.text();
    let error = text.strip_prefix(sent).expect("what came before the cut");
    assert!(
        error.starts_with("data: ") && error.ends_with("\n\n"),
        "{error:?}"
    );
    assert_eq!(error.matches("\n\n").count(), 1, "{error:?}");
    assert!(error.contains(&format!("\"code\":\"{code}\"")), "{error:?}");
    assert_eq!((reply.status, reply.ending), (200, ReplyEnding::Broken));
}

#[tokio::test]
async fn a_complete_stream_arrives_unchanged_and_its_connection_is_kept() {
    let test = TestGateway::new();
    let pieces = [FIRST, SECOND, STOP, DONE];
    let (reply, receipt) = relay(&test, events(&pieces.map(Ok))).await;
    assert_eq!(
        (reply.text(), reply.ending),
        (pieces.concat(), ReplyEnding::Clean)
    );
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    assert_eq!(outcome_kind(&receipt), OutcomeKind::Ok);
    assert_eq!(attempts(&receipt), [("w1", "", "ok")]);
    assert_eq!((test.upstream.released(), test.upstream.closed()), (1, 0));
    assert_eq!(test.router.open_reservations(), 0);
}

#[tokio::test]
async fn a_client_gets_the_same_bytes_wherever_the_worker_cuts_them() {
    let text = [FIRST, SECOND, STOP, DONE].concat();
    for at in (1..text.len()).step_by(5) {
        let (one, two) = text.split_at(at);
        let (reply, receipt) = relay(&TestGateway::new(), events(&[Ok(one), Ok(two)])).await;
        assert_eq!(
            (reply.text(), reply.ending),
            (text.clone(), ReplyEnding::Clean)
        );
        assert_eq!(
            outcome(&receipt).finish_reason.as_deref(),
            Some("stop"),
            "cut at {at}"
        );
    }
}

#[tokio::test]
async fn a_cut_inside_an_event_drops_the_part_and_ends_with_one_error_event() {
    let test = TestGateway::new();
    let pieces = [Ok(FIRST), Ok("data: {\"choi"), Err("reset")];
    let (reply, receipt) = relay(&test, events(&pieces)).await;
    assert_cut(&reply, FIRST, "stream_interrupted");
    assert_eq!(outcome_kind(&receipt), OutcomeKind::UpstreamError);
    assert_eq!(attempts(&receipt), [("w1", "C3", "mid_stream")]);
    assert_eq!((test.upstream.released(), test.upstream.closed()), (0, 1));
    assert_eq!(test.router.open_reservations(), 0);
}

#[tokio::test]
async fn a_cut_between_events_counts_as_a_failure_of_the_worker() {
    let test = TestGateway::new();
    let pieces = [Ok(FIRST), Ok(SECOND), Err("reset")];
    let (reply, _) = relay(&test, events(&pieces)).await;
    assert_cut(&reply, &[FIRST, SECOND].concat(), "stream_interrupted");
    let failures = "warmroute_upstream_failures_total{worker=\"w1\",reason=\"mid_stream\"} 1";
    assert!(test.has_metric(failures));
}

#[tokio::test]
async fn a_part_of_an_event_that_was_sent_is_closed_before_the_error_event() {
    let test = TestGateway::new();
    let pieces = [Ok(FIRST), Ok("data: {\"a\""), Err("reset")];
    let (reply, _) = relay(&test, events(&pieces).paced(4 * PARTIAL_EVENT_WAIT)).await;
    let sent = [FIRST, "data: {\"a\"", "\n\n"].concat();
    assert_cut(&reply, &sent, "stream_interrupted");
}

#[tokio::test]
async fn an_event_longer_than_a_mebibyte_is_not_waited_for() {
    let test = TestGateway::new();
    let long = format!("data: {}", "a".repeat(MAX_PARTIAL_EVENT_BYTES));
    let pieces = [Ok(FIRST), Ok(&*long), Ok("\n\n"), Ok(DONE)];
    let (reply, _) = relay(&test, events(&pieces)).await;
    assert_eq!(reply.text(), [FIRST, &long, "\n\n", DONE].concat());
    assert_eq!(
        reply.pieces[1].len(),
        long.len(),
        "it is sent before its end"
    );
}

#[tokio::test]
async fn an_event_without_its_empty_line_is_sent_at_the_end_of_the_stream() {
    let test = TestGateway::new();
    let (reply, receipt) = relay(&test, events(&[Ok(FIRST), Ok("data: [DONE]")])).await;
    assert_eq!(reply.text(), [FIRST, "data: [DONE]"].concat());
    assert_eq!(reply.ending, ReplyEnding::Clean);
    assert_eq!(outcome_kind(&receipt), OutcomeKind::Ok);
}

#[tokio::test]
async fn an_error_event_of_the_engine_is_relayed_and_decides_the_outcome() {
    let test = TestGateway::new();
    let error = "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n";
    let (reply, receipt) = relay(&test, events(&[Ok(FIRST), Ok(error), Ok(DONE)])).await;
    assert_eq!(reply.text(), [FIRST, error, DONE].concat());
    assert_eq!(reply.ending, ReplyEnding::Clean);
    assert_eq!(outcome_kind(&receipt), OutcomeKind::UpstreamError);
}

#[tokio::test]
#[contract("S71")]
async fn an_error_event_with_a_text_that_is_not_for_clients_is_replaced() {
    let error = "data: {\"error\":{\"message\":\"at 0x7f3a5c001240\",\"code\":500}}\n\n";
    let (begun, ended) = error.split_at(30);
    for (pieces, sent) in [
        (&[FIRST, error, DONE][..], FIRST),
        (&[FIRST, error][..], FIRST),
        (&[error][..], ""),
        (&[FIRST, begun, ended][..], FIRST),
        (&[FIRST, error.trim_ascii_end()][..], FIRST),
    ] {
        let test = TestGateway::new();
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(*piece)).collect();
        let (reply, receipt) = relay(&test, events(&pieces)).await;
        assert_cut(&reply, sent, "stream_interrupted");
        assert!(!reply.text().contains("0x"), "{pieces:?}");
        assert_eq!(outcome_kind(&receipt), OutcomeKind::UpstreamError);
        let (released, closed) = (test.upstream.released(), test.upstream.closed());
        assert_eq!((released, closed), (0, 1), "{pieces:?}");
    }
}

#[tokio::test]
#[contract("S71")]
async fn an_error_event_with_such_a_text_is_replaced_in_a_translated_stream_too() {
    let error = "data: {\"error\":{\"message\":\"at 0x7f3a5c001240\",\"code\":500}}\n\n";
    for pieces in [&[FIRST, error, DONE][..], &[FIRST, error.trim_ascii_end()]] {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(*piece)).collect();
        let (reply, receipt, _) = relay_message(events(&pieces)).await;
        let text = reply.text();
        assert_eq!(names(&text).last(), Some(&"error"), "{text}");
        assert!(
            !text.contains("0x") && !text.contains("message_stop"),
            "{text}"
        );
        assert_eq!(reply.ending, ReplyEnding::Broken);
        assert_eq!(outcome_kind(&receipt), OutcomeKind::UpstreamError);
    }
}

#[tokio::test]
#[contract("S72")]
async fn the_usage_of_a_stream_of_several_prompts_is_that_of_all() {
    let event = |index: u32, tokens: u32| {
        format!(
            "data: {{\"text\":\"a\",\"meta_info\":{{\"prompt_tokens\":7,\"completion_tokens\":{tokens},\"finish_reason\":{{\"type\":\"stop\"}}}},\"index\":{index}}}\n\n"
        )
    };
    let events = [event(0, 1), event(1, 1), event(1, 5), event(0, 3)];
    let pieces = events.into_iter().map(|event| Ok(Bytes::from(event)));
    let test = TestGateway::new();
    let (_, receipt) = relay(&test, FakeReply::events(pieces)).await;
    let outcome = outcome(&receipt);
    assert_eq!(
        (outcome.prompt_tokens, outcome.completion_tokens),
        (Some(14), Some(8))
    );
}

#[tokio::test]
#[contract("S72")]
async fn the_usage_at_the_end_of_a_long_body_is_read() {
    let long = format!("{{\"data\":[\"{}\"]", "a".repeat(1024 * 1024));
    let usage = ",\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}";
    for (last, counts) in [
        (vec![Ok(usage)], Some(7)),
        (vec![Ok(&usage[..20]), Ok(&usage[20..])], Some(7)),
        // It is not whole.
        (vec![Ok(&usage[..20])], None),
        (vec![Ok(usage), Err("reset")], None),
    ] {
        let test = TestGateway::new();
        let last = last.into_iter().map(|piece| piece.map(Bytes::from));
        let pieces = std::iter::once(Ok(Bytes::from(long.clone()))).chain(last);
        let reply = FakeReply::pieces(http::Response::new(()), pieces);
        let (_, receipt) = relay(&test, reply).await;
        assert_eq!(outcome(&receipt).prompt_tokens, counts);
    }
}

#[tokio::test]
async fn the_usage_and_the_finish_reason_of_a_stream_are_in_the_receipt() {
    let test = TestGateway::new();
    let usage =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n";
    let (_, receipt) = relay(&test, events(&[FIRST, STOP, usage, DONE].map(Ok))).await;
    let outcome = outcome(&receipt);
    assert_eq!(
        (outcome.prompt_tokens, outcome.completion_tokens),
        (Some(7), Some(2))
    );
    assert_eq!(outcome.finish_reason.as_deref(), Some("stop"));
    assert!(outcome.ttft_ms.is_some());
}

#[tokio::test]
async fn the_first_token_of_a_response_comes_after_the_events_that_announce_it() {
    let event = |kind: &str| format!("data: {{\"response\":{{}},\"type\":\"{kind}\"}}\n\n");
    let [created, waits, text] = [
        "response.created",
        "response.in_progress",
        "response.output_text.delta",
    ]
    .map(event);
    let (announced, with_text) = (
        format!("{created}{waits}"),
        format!("{created}{waits}{text}"),
    );
    let (responses, chats) = ("/v1/responses", "/v1/chat/completions");
    for (path, pieces, has_token) in [
        (responses, vec![&created, &waits], false),
        (responses, vec![&announced], false),
        (responses, vec![&created, &waits, &text], true),
        (responses, vec![&with_text], true),
        (responses, vec![&text], true),
        (chats, vec![&created], true),
    ] {
        let test = TestGateway::new();
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(piece.as_str())).collect();
        test.script(1, events(&pieces));
        let guard = test.guard_of(path);
        let id = guard.id();
        let reply = test.deliver_chat(guard).await;
        assert_eq!(reply.ending, ReplyEnding::Clean, "{path} {pieces:?}");
        let is_known = outcome(&test.receipt(id)).ttft_ms.is_some();
        assert_eq!(is_known, has_token, "{path} {pieces:?}");
    }
}

#[tokio::test]
async fn a_stream_without_its_end_marker_is_relayed_and_counted() {
    let test = TestGateway::new();
    let (reply, receipt) = relay(&test, events(&[Ok(FIRST), Ok(SECOND)])).await;
    assert_eq!(
        (reply.text(), reply.ending),
        ([FIRST, SECOND].concat(), ReplyEnding::Clean)
    );
    assert_eq!(outcome_kind(&receipt), OutcomeKind::Ok);
    assert!(test.has_metric("warmroute_streams_incomplete_total{worker=\"w1\"} 1"));
}

#[tokio::test]
async fn where_streams_are_strict_one_without_its_end_marker_is_cut() {
    let strict = RequestSection {
        strict_stream_completion: true,
        ..test_support::limits()
    };
    let test = with_limits(strict);
    let (reply, receipt) = relay(&test, events(&[Ok(FIRST), Ok(SECOND)])).await;
    assert_cut(&reply, &[FIRST, SECOND].concat(), "stream_interrupted");
    assert_eq!(outcome_kind(&receipt), OutcomeKind::UpstreamError);
    let (reply, _) = relay(&test, events(&[Ok(FIRST), Ok(DONE)])).await;
    assert_eq!(reply.ending, ReplyEnding::Clean);
}

#[tokio::test]
async fn a_worker_that_stalls_is_cut_off_and_blamed() {
    let test = with_limits(RequestSection {
        stream_idle_timeout: Duration::from_millis(30),
        ..test_support::limits()
    });
    let (reply, receipt) = relay(&test, events(&[Ok(FIRST)]).unended()).await;
    assert_cut(&reply, FIRST, "stream_idle_timeout");
    assert_eq!(outcome_kind(&receipt), OutcomeKind::UpstreamError);
    assert_eq!(test.upstream.closed(), 1);
    let blamed = "warmroute_upstream_failures_total{worker=\"w1\",reason=\"mid_stream\"} 1";
    assert!(test.has_metric(blamed));
}

#[tokio::test]
async fn a_pause_shorter_than_the_limit_is_no_stall() {
    let test = with_limits(RequestSection {
        stream_idle_timeout: Duration::from_secs(20),
        ..test_support::limits()
    });
    let reply = events(&[Ok(FIRST), Ok(SECOND), Ok(DONE)]).paced(Duration::from_millis(20));
    assert_eq!(relay(&test, reply).await.0.ending, ReplyEnding::Clean);
}

#[tokio::test]
async fn a_reply_that_runs_too_long_is_cut_without_blame() {
    let test = with_limits(RequestSection {
        stream_max_duration: Duration::from_millis(60),
        ..test_support::limits()
    });
    let busy: Vec<_> = std::iter::repeat_n(Ok(FIRST), 1000).collect();
    let reply = events(&busy).paced(Duration::from_millis(5));
    let (reply, receipt) = relay(&test, reply).await;
    let sent = FIRST.repeat(reply.text().matches(FIRST).count());
    assert_cut(&reply, &sent, "stream_too_long");
    assert_eq!(outcome_kind(&receipt), OutcomeKind::UpstreamError);
    assert!(
        !test
            .has_metric("warmroute_upstream_failures_total{worker=\"w1\",reason=\"mid_stream\"} 1")
    );
}

#[tokio::test]
async fn at_the_end_of_a_drain_the_client_gets_an_error_event() {
    let test = TestGateway::new();
    test.script(1, events(&[Ok(FIRST)]).unended());
    let guard = test.guard();
    let response = test.delivery().run(test.chat(&[1]), guard).await;
    let client = tokio::spawn(ClientReply::read(response));
    tokio::task::yield_now().await;
    test.delivery().send.dispatcher.abort.abort();
    let reply = client.await.expect("it ends");
    assert_cut(&reply, FIRST, "stream_interrupted");
    assert_eq!(test.upstream.closed(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_closes_the_workers_connection_and_frees_its_load() {
    let test = TestGateway::new();
    test.script(1, events(&[Ok(FIRST)]).unended());
    let guard = test.guard();
    let id = guard.id();
    let response = test.delivery().run(test.chat(&[1]), guard).await;
    assert_eq!(test.router.open_reservations(), 1);
    assert!(test.has_metric("warmroute_open_streams 1"));
    drop(response);
    assert_eq!(
        (test.router.open_reservations(), test.upstream.closed()),
        (0, 1)
    );
    assert!(test.has_metric("warmroute_open_streams 0"));
    let receipt = test.receipt(id);
    assert_eq!(outcome_kind(&receipt), OutcomeKind::ClientGone);
    assert_eq!(attempts(&receipt), [("w1", "", "client_gone")]);
}

#[tokio::test]
async fn plain_bytes_are_relayed_as_they_come_and_a_cut_adds_nothing_to_them() {
    let test = TestGateway::new();
    let long = "a".repeat(1024 * 1024 + 1);
    let pieces = |last: Result<&'static str, &'static str>| {
        let pieces = [Ok(Bytes::from(long.clone())), last.map(Bytes::from)];
        FakeReply::pieces(http::Response::new(()), pieces)
    };
    let (whole, receipt) = relay(&test, pieces(Ok("end"))).await;
    assert_eq!(whole.text(), format!("{long}end"));
    assert_eq!(outcome_kind(&receipt), OutcomeKind::Ok);
    assert!(
        outcome(&receipt).ttft_ms.is_none(),
        "it is no stream of events"
    );
    let (cut, receipt) = relay(&test, pieces(Err("reset"))).await;
    assert_eq!(
        (cut.text() == long, cut.ending),
        (true, ReplyEnding::Broken)
    );
    assert_eq!(outcome_kind(&receipt), OutcomeKind::UpstreamError);
}

/// A message that its worker gets as a chat.
async fn message(test: &TestGateway) -> RoutedRequest {
    let mut request = test.chat(&[1]);
    let body =
        r#"{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"a"}]}"#;
    request
        .call
        .body
        .replace(Bytes::from_static(body.as_bytes()));
    request.call.target = http::uri::PathAndQuery::from_static("/v1/messages");
    let stage = &test.delivery().send.translation;
    let translator = RequestTranslator::of(stage, Dialect::Messages, &mut request.call).await;
    request.translator = translator.expect("a good message");
    request
}

/// Relays a worker's chat stream to a client of messages.
async fn relay_message(reply: FakeReply) -> (ClientReply, Arc<Receipt>, TestGateway) {
    let test = TestGateway::new();
    test.upstream.script(WorkerId(1), reply);
    let guard = test.guard_of("/v1/messages");
    let id = guard.id();
    let response = test.delivery().run(message(&test).await, guard).await;
    let reply = ClientReply::read(response).await;
    let receipt = test.receipt(id);
    (reply, receipt, test)
}

/// The events of a message stream, in order.
fn names(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("event: "))
        .collect()
}

#[tokio::test]
async fn a_chat_stream_reaches_a_client_of_messages_as_a_whole_message() {
    let (reply, receipt, test) = relay_message(events(&[FIRST, SECOND, STOP, DONE].map(Ok))).await;
    assert_eq!(
        names(&reply.text()),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(reply.ending, ReplyEnding::Clean);
    assert_eq!(outcome_kind(&receipt), OutcomeKind::Ok);
    assert_eq!(receipt.rewrites, ["messages"]);
    assert_eq!(test.upstream.released(), 1);
    let requests = test.upstream.take_requests();
    assert_eq!(requests[0].uri(), "/v1/chat/completions");
}

#[tokio::test]
async fn a_translated_stream_that_breaks_off_ends_with_an_error_in_the_clients_dialect() {
    for pieces in [
        &[Ok(FIRST), Err("reset")][..],
        &[Ok(FIRST), Ok("data: {\"cho"), Err("reset")],
        // It ends, but not where a message can.
        &[Ok(FIRST)],
    ] {
        let (reply, receipt, test) = relay_message(events(pieces)).await;
        let (text, ending) = (reply.text(), reply.ending);
        assert_eq!(names(&text).last(), Some(&"error"), "{pieces:?} {text}");
        assert!(!text.contains("message_stop"), "{text}");
        assert_eq!(ending, ReplyEnding::Broken);
        assert_eq!(outcome_kind(&receipt), OutcomeKind::UpstreamError);
        assert_eq!(test.upstream.closed(), 1);
    }
}

#[tokio::test]
async fn what_follows_a_whole_translated_message_does_not_matter() {
    let pieces = [Ok(FIRST), Ok(STOP), Ok(DONE), Err("reset")];
    let (reply, receipt, _) = relay_message(events(&pieces)).await;
    assert_eq!(names(&reply.text()).last(), Some(&"message_stop"));
    assert_eq!(reply.ending, ReplyEnding::Clean);
    assert_eq!(outcome_kind(&receipt), OutcomeKind::Ok);
}

#[tokio::test]
async fn an_error_event_ends_a_translated_stream() {
    let error = "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n";
    let (reply, receipt, _) = relay_message(events(&[Ok(FIRST), Ok(error), Ok(DONE)])).await;
    assert_eq!(names(&reply.text()).last(), Some(&"error"));
    assert_eq!(reply.ending, ReplyEnding::Broken);
    assert_eq!(outcome_kind(&receipt), OutcomeKind::UpstreamError);
}

/// Thousands of streams wait at the same time, each with one of these.
#[test]
fn a_reply_that_waits_for_its_next_event_takes_little_memory() {
    assert!(size_of::<ReplyRelay>() <= 784);
    assert!(size_of::<RequestGuard>() <= 960);
    assert!(size_of::<UpstreamBody>() <= 192);
}

#[tokio::test]
async fn events_without_facts_are_read_without_an_allocation() {
    let test = TestGateway::new();
    let mut guard = test.guard();
    let mut events = SseTracker::new(EndingTracker::of(Dialect::Chat));
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
    let stream = event.repeat(100);
    let mut read = || {
        let SseTracker {
            splitter, ending, ..
        } = &mut events;
        let pushed = splitter.push(stream.as_bytes(), |event| {
            assert!(!read_event(&mut guard, ending, event));
        });
        assert_eq!((pushed.events, pushed.complete), (100, stream.len()));
    };
    // What is searched for is prepared once.
    read();
    assert_eq!(allocation_counter::measure(read).count_total, 0);
}
