use std::{num::NonZeroU32, sync::Arc, time::Duration};

use net::LocalFault;
use proxy::{FakeReply, NotSent, SendFailure};
use routing::receipt::{OutcomeKind, Receipt};

use super::*;
use crate::request::{
    test_gateway::{ClientReply, TestGateway, attempts, outcome_kind},
    test_support,
};

fn refused() -> FakeReply {
    FakeReply::failure(SendFailure::NotSent(NotSent::Refused))
}

fn lost() -> FakeReply {
    FakeReply::failure(SendFailure::NoHead)
}

fn local() -> FakeReply {
    FakeReply::failure(SendFailure::NotSent(NotSent::Local(LocalFault::Ports)))
}

fn status(status: u16) -> FakeReply {
    FakeReply::json(status, r#"{"error":{"message":"theirs"}}"#)
}

fn retry_after(status: u16, seconds: &str) -> FakeReply {
    let head = http::Response::builder()
        .status(status)
        .header("retry-after", seconds);
    FakeReply::pieces(head.body(()).expect("a head"), [Ok("{}".into())])
}

fn ok() -> FakeReply {
    FakeReply::json(200, "{}")
}

fn pin(number: u32) -> Pin {
    Pin {
        worker: WorkerId(number),
        rank: None,
    }
}

/// The workers that got a chat for `workers` after these first replies of theirs; each later reply
/// is a success. Also the status that the client got.
async fn send_chat(
    test: &TestGateway,
    workers: &[u32],
    replies: Vec<(u32, FakeReply)>,
) -> (Vec<u32>, u16) {
    send_request(test, test.chat(workers), workers, replies).await
}

async fn send_request(
    test: &TestGateway,
    request: crate::request::send::RoutedRequest,
    workers: &[u32],
    replies: Vec<(u32, FakeReply)>,
) -> (Vec<u32>, u16) {
    for (worker, reply) in replies {
        test.script(worker, reply);
    }
    for worker in workers {
        test.script(*worker, ok());
    }
    let (reply, _) = test.deliver(request).await;
    assert_eq!(test.router.open_reservations(), 0);
    (test.contacted(), reply.status)
}

/// Delivers a chat for workers whose next replies are these.
async fn deliver(test: &TestGateway, replies: Vec<FakeReply>) -> (ClientReply, Arc<Receipt>) {
    let workers: Vec<u32> = (1..).take(replies.len()).collect();
    for (worker, reply) in workers.iter().zip(replies) {
        test.script(*worker, reply);
    }
    test.deliver(test.chat(&workers)).await
}

#[tokio::test]
async fn a_retry_skips_the_worker_that_failed_and_needs_no_permit_where_nothing_came_back() {
    for failure in [refused, lost] {
        let test = TestGateway::new();
        let _permits = test.use_up_retry_budget();
        let found = send_chat(&test, &[1, 2], vec![(1, failure())]).await;
        assert_eq!(found, (vec![1, 2], 200));
    }
}

#[tokio::test]
async fn a_retry_of_a_refused_request_needs_a_permit() {
    for refusal in [429, 502, 503, 504] {
        let test = TestGateway::new();
        let found = send_chat(&test, &[1, 2], vec![(1, status(refusal))]).await;
        assert_eq!(found, (vec![1, 2], 200), "{refusal}");
        let test = TestGateway::new();
        let _permits = test.use_up_retry_budget();
        let found = send_chat(&test, &[1, 2], vec![(1, status(refusal))]).await;
        assert_eq!(found, (vec![1], refusal), "{refusal}");
    }
}

#[tokio::test]
async fn a_permit_is_returned_when_its_retry_has_ended() {
    let test = TestGateway::new();
    let all = test.use_up_retry_budget().len();
    deliver(&test, vec![status(503), status(503), ok()]).await;
    assert_eq!(test.use_up_retry_budget().len(), all);
}

#[tokio::test]
async fn a_request_is_sent_at_most_as_often_as_configured() {
    for sends in [1, 2, 3] {
        let mut test = TestGateway::new();
        test.delivery_mut().retries.rules.max_attempts = NonZeroU32::new(sends).expect("not zero");
        let replies = (1..=4).map(|worker| (worker, lost())).collect();
        let (contacted, status) = send_chat(&test, &[1, 2, 3, 4], replies).await;
        assert_eq!((contacted.len(), status), (sends as usize, 502));
    }
}

#[tokio::test]
async fn attempts_that_sent_nothing_do_not_count_as_sends() {
    let test = TestGateway::new();
    let replies = (1..=4).map(|worker| (worker, refused())).collect();
    let found = send_chat(&test, &[1, 2, 3, 4, 5], replies).await;
    assert_eq!(found, (vec![1, 2, 3, 4, 5], 200));
}

#[tokio::test]
async fn where_all_workers_refused_the_connection_the_request_ends() {
    let test = TestGateway::new();
    let (reply, receipt) = deliver(&test, vec![refused(), refused()]).await;
    assert_eq!(reply.status, 503);
    assert!(reply.text().contains("no_worker"), "{}", reply.text());
    let failed = ["w1", "w2"].map(|name| (name, "C0", "connect_failed"));
    assert_eq!(attempts(&receipt), failed);
    assert_eq!(outcome_kind(&receipt), OutcomeKind::Shed);
}

#[tokio::test]
async fn a_lone_worker_gets_the_request_again_after_a_lost_connection_or_a_503() {
    for failure in [lost(), status(503)] {
        let test = TestGateway::new();
        let found = send_chat(&test, &[1], vec![(1, failure)]).await;
        assert_eq!(found, (vec![1, 1], 200));
    }
    for (failure, at_the_client) in [(status(429), 429), (status(502), 502), (refused(), 503)] {
        let test = TestGateway::new();
        let found = send_chat(&test, &[1], vec![(1, failure)]).await;
        assert_eq!(found, (vec![1], at_the_client));
    }
}

#[tokio::test]
async fn a_repetition_at_a_lone_worker_needs_a_permit() {
    let test = TestGateway::new();
    let _permits = test.use_up_retry_budget();
    assert_eq!(
        send_chat(&test, &[1], vec![(1, lost())]).await,
        (vec![1], 502)
    );
}

#[tokio::test(start_paused = true)]
async fn each_repetition_at_a_worker_waits_longer() {
    let mut test = TestGateway::new();
    let rules = &mut test.delivery_mut().retries.rules;
    (rules.base_delay, rules.max_delay) = (Duration::from_secs(1), Duration::from_secs(9));
    rules.exponential_backoff = true;
    let began = tokio::time::Instant::now();
    let found = send_chat(&test, &[1], vec![(1, lost()), (1, lost())]).await;
    assert_eq!(found, (vec![1, 1, 1], 200));
    assert_eq!(began.elapsed().as_secs(), 1 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_pause_beyond_the_requests_time_limit_ends_it_at_once() {
    let mut test = TestGateway::new();
    let rules = &mut test.delivery_mut().retries.rules;
    (rules.base_delay, rules.max_delay) = (Duration::from_secs(11), Duration::from_secs(11));
    let began = tokio::time::Instant::now();
    assert_eq!(
        send_chat(&test, &[1], vec![(1, lost())]).await,
        (vec![1], 502)
    );
    assert_eq!(began.elapsed().as_secs(), 0);
}

#[tokio::test]
async fn a_request_that_names_its_worker_is_sent_to_no_other() {
    for (failure, expected) in [
        (lost(), (vec![2, 2], 200)),
        (status(503), (vec![2, 2], 200)),
        (status(429), (vec![2], 429)),
        (refused(), (vec![2], 503)),
    ] {
        let test = TestGateway::new();
        let mut request = test.chat(&[1, 2, 3]);
        request.facts.pin = Some(pin(2));
        let found = send_request(&test, request, &[1, 2, 3], vec![(2, failure)]).await;
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn a_failure_that_a_worker_may_have_computed_is_not_repeated() {
    let half = || FakeReply::pieces(http::Response::new(()), [Ok("{".into()), Err("reset")]);
    let garbled = || FakeReply::failure(SendFailure::Protocol);
    for (failure, at_the_client) in [
        (status(500), 500),
        (status(501), 501),
        (status(301), 502),
        (half(), 502),
        (garbled(), 502),
    ] {
        let test = TestGateway::new();
        let found = send_chat(&test, &[1, 2], vec![(1, failure)]).await;
        assert_eq!(found, (vec![1], at_the_client));
    }
}

#[tokio::test]
async fn a_clients_own_error_is_its_reply_as_the_worker_wrote_it() {
    for code in [400, 404, 413, 422] {
        let test = TestGateway::new();
        let (reply, receipt) = deliver(&test, vec![status(code), ok()]).await;
        assert_eq!((reply.status, test.contacted()), (code, vec![1]));
        assert_eq!(reply.text(), r#"{"error":{"message":"theirs"}}"#);
        assert_eq!(outcome_kind(&receipt), OutcomeKind::ClientError);
    }
}

#[tokio::test]
async fn a_429_that_no_retry_follows_reaches_the_client_as_the_worker_wrote_it() {
    let test = TestGateway::new();
    let (reply, receipt) = deliver(&test, vec![status(429)]).await;
    assert_eq!(reply.status, 429);
    assert!(reply.text().contains("theirs"), "{}", reply.text());
    assert_eq!(reply.headers["x-warmroute-worker"], "w1");
    assert_eq!(outcome_kind(&receipt), OutcomeKind::Shed);
    assert!(test.has_metric("warmroute_upstream_throttled_total{worker=\"w1\"} 1"));
}

#[tokio::test]
async fn of_several_503s_the_client_gets_the_longest_retry_after() {
    for [one, two] in [["7", "2"], ["2", "7"]] {
        let test = TestGateway::new();
        let replies = vec![retry_after(503, one), retry_after(503, two)];
        let (reply, _) = deliver(&test, replies).await;
        assert_eq!((reply.status, test.contacted()), (503, vec![1, 2]));
        assert_eq!(reply.headers["retry-after"], "7", "{one} then {two}");
    }
}

#[tokio::test]
async fn a_worker_that_throttles_is_avoided_for_its_retry_after() {
    let test = TestGateway::new();
    let found = send_chat(&test, &[1, 2], vec![(1, retry_after(429, "30"))]).await;
    assert_eq!(found, (vec![1, 2], 200));
    // Worker 1 would be next in the order.
    assert_eq!(send_chat(&test, &[1, 2], vec![]).await, (vec![2], 200));
    assert_eq!(
        send_chat(&test, &[1], vec![]).await,
        (vec![1], 200),
        "it is the only one"
    );
}

#[tokio::test]
async fn a_fault_of_this_machine_is_tried_three_times_on_any_worker() {
    let test = TestGateway::new();
    let found = send_chat(&test, &[1], vec![(1, local()), (1, local())]).await;
    assert_eq!(found, (vec![1, 1, 1], 200));
    let test = TestGateway::new();
    let replies = (0..3).map(|_| (1, local())).collect();
    let (reply, status) = send_chat(&test, &[1], replies).await;
    assert_eq!((reply, status), (vec![1; 3], 503));
    assert!(
        !test.has_metric("warmroute_upstream_failures_total{worker=\"w1\",reason=\"local\"} 3")
    );
}

#[tokio::test]
async fn a_request_whose_result_the_engine_stores_is_repeated_only_if_nothing_was_sent() {
    for (failure, expected) in [
        (lost(), (vec![1], 502)),
        (refused(), (vec![1, 2], 200)),
        (status(503), (vec![1, 2], 200)),
    ] {
        let test = TestGateway::new();
        let mut request = test.chat(&[1, 2]);
        request.translator.keeps_state = true;
        assert_eq!(
            send_request(&test, request, &[1, 2], vec![(1, failure)]).await,
            expected
        );
    }
}

/// A gateway where requests wait for a worker.
fn waiting() -> TestGateway {
    let mut test = TestGateway::new();
    test.delivery_mut().queue.limits.engine_wait_timeout = Duration::from_secs(20);
    test
}

#[tokio::test]
async fn where_requests_wait_for_a_worker_one_that_none_took_is_new() {
    let found = send_chat(&waiting(), &[1, 2], vec![(1, refused()), (2, refused())]).await;
    assert_eq!(found, (vec![1, 2, 1], 200));
}

#[tokio::test]
async fn where_requests_wait_for_a_worker_all_of_them_may_lose_one_once() {
    let found = send_chat(&waiting(), &[1, 2], vec![(1, lost()), (2, lost())]).await;
    assert_eq!(found, (vec![1, 2, 1], 200));
    let found = send_chat(&TestGateway::new(), &[1, 2], vec![(1, lost()), (2, lost())]).await;
    assert_eq!(found, (vec![1, 2], 502), "they do not wait here");
}

#[tokio::test]
async fn a_refused_request_does_not_wait_for_a_worker() {
    let test = waiting();
    let found = send_chat(&test, &[1, 2], vec![(1, status(503)), (2, status(503))]).await;
    assert_eq!(found, (vec![1, 2], 503));
}

#[tokio::test]
async fn without_a_permit_a_lost_request_waits_for_one() {
    let test = waiting();
    let mut permits = test.use_up_retry_budget();
    let release = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        permits.clear();
    };
    // Its worker counts as one that failed lately.
    let worker = test_support::worker(1);
    assert!(
        !test.gateway.fleet().failed_lately(worker.id),
        "the fleet does not know it"
    );
    let (found, ()) = tokio::join!(send_chat(&test, &[1], vec![(1, lost())]), release);
    assert_eq!(found, (vec![1, 1], 200));
}

#[tokio::test]
async fn a_failed_attempt_frees_its_load_before_the_next_one() {
    let test = TestGateway::new();
    test.script(1, lost());
    test.script(2, ok().after(Duration::from_secs(3600)));
    let guard = test.guard();
    let sent = test.delivery().run(test.chat(&[1, 2]), guard);
    let running = tokio::time::timeout(Duration::from_millis(200), sent).await;
    assert!(running.is_err(), "the second worker has not answered");
    assert_eq!(test.contacted(), [1, 2]);
    assert_eq!(test.router.open_reservations(), 0);
}

#[tokio::test]
async fn the_retry_budget_grows_with_the_requests_in_flight() {
    let test = TestGateway::new();
    assert_eq!(test.use_up_retry_budget().len(), 3);
    let _load: Vec<_> = (0..50).map(|_| test.place(&[1])).collect();
    assert_eq!(test.use_up_retry_budget().len(), 10, "a fifth of them");
}
