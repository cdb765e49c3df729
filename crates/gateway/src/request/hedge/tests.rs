use std::{num::NonZeroU32, sync::Arc};

use fleet::EngineKind;
use proxy::{FakeReply, SendFailure};
use routing::receipt::{OutcomeKind, Receipt};

use super::*;
use crate::request::{
    send::RoutedRequest,
    test_gateway::{ClientReply, TestGateway, attempts, outcome_kind},
    test_support,
};

const AFTER: Duration = Duration::from_secs(1);

/// A gateway that hedges after a second.
fn hedging() -> TestGateway {
    let mut test = TestGateway::new();
    test.delivery_mut().send.dispatcher.limits.hedge_after = Some(AFTER);
    test
}

fn answer(text: &'static str) -> FakeReply {
    FakeReply::json(200, text)
}

fn after(seconds: u64, reply: FakeReply) -> FakeReply {
    reply.after(Duration::from_secs(seconds))
}

fn lost() -> FakeReply {
    FakeReply::failure(SendFailure::NoHead)
}

/// Sends a chat to workers 1 and 2, which has these replies.
async fn race(one: FakeReply, two: FakeReply) -> (TestGateway, ClientReply, Arc<Receipt>) {
    let test = hedging();
    test.script(1, one);
    test.script(2, two);
    let (reply, receipt) = test.deliver(test.chat(&[1, 2])).await;
    assert_eq!(test.router.open_reservations(), 0);
    (test, reply, receipt)
}

#[track_caller]
fn assert_counted(test: &TestGateway, winner: &str) {
    for result in ["first", "second", "nobody"] {
        let count = u32::from(result == winner);
        let line = format!("warmroute_hedged_requests_total{{result=\"{result}\"}} {count}");
        assert!(test.has_metric(&line), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_answers_in_time_is_not_hedged() {
    let (test, reply, _) = race(answer("1").after(AFTER / 2), answer("2")).await;
    assert_eq!((reply.text().as_str(), test.contacted()), ("1", vec![1]));
    assert_counted(&test, "none");
}

#[tokio::test(start_paused = true)]
async fn the_second_worker_answers_for_a_slow_first_one_which_is_not_blamed() {
    let (test, reply, receipt) = race(after(9, answer("1")), answer("2")).await;
    assert_eq!((reply.text().as_str(), test.contacted()), ("2", vec![1, 2]));
    assert_eq!(
        attempts(&receipt),
        [("w1", "", "cancelled"), ("w2", "", "ok")]
    );
    assert_eq!(receipt.worker().map(|name| &**name), Some("w2"));
    assert_eq!(reply.headers["x-warmroute-worker"], "w2");
    assert_eq!(outcome_kind(&receipt), OutcomeKind::Ok);
    assert_counted(&test, "second");
}

#[tokio::test(start_paused = true)]
async fn the_first_worker_wins_where_it_answers_before_the_hedge() {
    let (test, reply, receipt) = race(after(3, answer("1")), after(9, answer("2"))).await;
    assert_eq!((reply.text().as_str(), test.contacted()), ("1", vec![1, 2]));
    assert_eq!(
        attempts(&receipt),
        [("w2", "", "cancelled"), ("w1", "", "ok")]
    );
    assert_eq!(receipt.worker().map(|name| &**name), Some("w1"));
    assert_counted(&test, "first");
}

#[tokio::test(start_paused = true)]
async fn where_the_first_worker_fails_the_hedge_is_waited_for() {
    let (test, reply, receipt) = race(after(2, lost()), after(5, answer("2"))).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "2"));
    assert_eq!(
        attempts(&receipt),
        [("w1", "C1", "reset_before_head"), ("w2", "", "ok")]
    );
    assert_eq!(test.contacted(), [1, 2]);
    assert_counted(&test, "second");
}

#[tokio::test(start_paused = true)]
async fn where_the_hedge_fails_the_first_worker_is_waited_for() {
    let (test, reply, receipt) = race(after(5, answer("1")), lost()).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "1"));
    assert_eq!(
        attempts(&receipt),
        [("w2", "C1", "reset_before_head"), ("w1", "", "ok")]
    );
    assert_counted(&test, "first");
}

#[tokio::test(start_paused = true)]
async fn where_both_fail_a_third_worker_gets_the_request_and_neither_of_them_again() {
    let test = hedging();
    for (worker, reply) in [
        (1, after(2, lost())),
        (2, after(2, lost())),
        (3, answer("3")),
    ] {
        test.script(worker, reply);
        test.script(worker, answer("again"));
    }
    let (reply, receipt) = test.deliver(test.chat(&[1, 2, 3])).await;
    assert_eq!(
        (reply.text().as_str(), test.contacted()),
        ("3", vec![1, 2, 3])
    );
    assert_eq!(receipt.attempts.len(), 3);
    assert_counted(&test, "nobody");
}

#[tokio::test(start_paused = true)]
async fn a_failed_hedge_counts_among_the_sends_of_its_request() {
    let mut test = hedging();
    test.delivery_mut().retries.rules.max_attempts = NonZeroU32::new(2).expect("two");
    for worker in [1, 2] {
        test.script(worker, after(2, lost()));
    }
    test.script(3, answer("3"));
    let (reply, _) = test.deliver(test.chat(&[1, 2, 3])).await;
    assert_eq!((reply.status, test.contacted()), (502, vec![1, 2]));
}

#[tokio::test(start_paused = true)]
async fn without_another_worker_the_first_one_is_waited_for() {
    let test = hedging();
    test.script(1, after(5, answer("1")));
    let (reply, receipt) = test.deliver(test.chat(&[1])).await;
    assert_eq!(reply.text(), "1");
    assert_eq!(attempts(&receipt), [("w1", "", "ok")]);
    assert_counted(&test, "none");
}

/// Sends a request whose first worker is slow, and returns the workers that got it.
async fn contacted_by(test: &TestGateway, request: RoutedRequest) -> Vec<u32> {
    test.script(1, after(5, answer("1")));
    test.script(2, answer("2"));
    let (reply, _) = test.deliver(request).await;
    assert_eq!(reply.status, 200);
    test.contacted()
}

#[tokio::test(start_paused = true)]
async fn a_hedge_needs_a_permit_of_the_retry_budget_and_returns_it() {
    let test = hedging();
    let permits = test.use_up_retry_budget();
    assert_eq!(contacted_by(&test, test.chat(&[1, 2])).await, [1]);
    let all = permits.len();
    drop(permits);
    assert_eq!(contacted_by(&test, test.chat(&[2, 1])).await, [2]);
    assert_eq!(test.use_up_retry_budget().len(), all);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_names_its_worker_is_not_hedged() {
    let test = hedging();
    let mut request = test.chat(&[1, 2]);
    request.facts.pin = Some(Pin {
        worker: test_support::worker(1).id,
        rank: None,
    });
    assert_eq!(contacted_by(&test, request).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_result_the_engine_stores_is_not_hedged() {
    let test = hedging();
    let mut request = test.chat(&[1, 2]);
    request.translator.keeps_state = true;
    assert_eq!(contacted_by(&test, request).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_goes_only_to_a_worker_that_takes_the_same_body() {
    let test = hedging();
    let mut other = test_support::worker(2);
    other.engine.kind = EngineKind::Sglang;
    let request = test.chat_for(vec![test_support::worker(1), other]);
    assert_eq!(contacted_by(&test, request).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_gets_the_clients_body_without_the_engine_priority_of_the_first() {
    let mut test = hedging();
    test.delivery_mut().send.queue.engine_priority = true;
    test.script(1, after(5, answer("1")));
    test.script(2, answer("2"));
    let (_, receipt) = test.deliver(test.chat(&[1, 2])).await;
    let requests = test.upstream.take_requests();
    let [first, second] = &requests[..] else {
        panic!("two requests: {requests:?}");
    };
    assert!(first.body().windows(10).any(|it| it == b"\"priority\""));
    assert_eq!(*second.body(), r#"{"model":"m","messages":[]}"#);
    assert_eq!(
        receipt.rewrites, [""; 0],
        "the body that was answered is the client's"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_during_a_hedge_frees_the_load_of_both_workers() {
    let test = hedging();
    test.script(1, after(9, answer("1")));
    test.script(2, after(9, answer("2")));
    let guard = test.guard();
    let id = guard.id();
    let sent = test.delivery().run(test.chat(&[1, 2]), guard);
    let gave_up = tokio::time::timeout(Duration::from_secs(3), sent).await;
    assert!(gave_up.is_err());
    assert_eq!(test.contacted(), [1, 2]);
    assert_eq!(test.router.open_reservations(), 0);
    assert_eq!(test.use_up_retry_budget().len(), 3);
    let receipt = test.receipt(id);
    assert_eq!(outcome_kind(&receipt), OutcomeKind::ClientGone);
    let left = ["w2", "w1"].map(|name| (name, "", "client_gone"));
    assert_eq!(attempts(&receipt), left);
}
