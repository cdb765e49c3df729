use std::pin::pin;

use fleet::WorkerView;
use kv_blocks::WorkerId;
use routing::{Pin, Policy, QueueSettings, ReplyMode, RoutingSettings};

use super::*;
use crate::request::{
    retry_state::RetryState,
    send::{self, RoutedRequest},
    test_gateway::TestGateway,
    test_support,
};

const SHORT: Duration = Duration::from_millis(30);
/// Longest wait for something that is certain to come.
const SOON: Duration = Duration::from_secs(20);

/// A worker above the busy threshold of [`busy`].
fn full(number: u32) -> WorkerView {
    let mut worker = test_support::worker(number);
    worker.load.kv_usage_ratio = Some(0.95);
    worker
}

/// A gateway with a busy threshold, and this limit of the wait for a worker below it.
fn busy(limit: Option<Duration>) -> TestGateway {
    let mut test = TestGateway::new();
    let queue = &mut test.delivery_mut().queue;
    Arc::make_mut(&mut queue.decider.rules.general).busy_threshold = Some(0.9);
    queue.limits.enabled = limit.is_some();
    queue.limits.wait = limit.unwrap_or_default();
    test
}

/// A gateway where requests wait this long for any worker.
fn without_worker(limit: Duration) -> TestGateway {
    let mut test = TestGateway::new();
    test.delivery_mut().queue.limits.engine_wait_timeout = limit;
    test
}

#[tokio::test]
async fn the_time_of_a_wait_for_room_does_not_count_for_other_limits() {
    let at = |seconds| Moment::at(Duration::from_secs(seconds));
    let limit = Duration::from_secs(30);
    let mut test = without_worker(limit);
    let queue = &test.delivery_mut().queue;
    let mut wait = WaitRecord::new(10, at(1000));
    let left = |wait: &WaitRecord, seconds| {
        let budget = wait.budget(at(seconds), limit)?;
        Some((budget.limit.as_secs(), budget.waited.as_secs()))
    };
    wait.begin(at(0), Some(WaitReason::Backlog));
    assert_eq!(left(&wait, 10), Some((20, 10)));
    wait.begin(at(10), Some(WaitReason::Room));
    assert_eq!(left(&wait, 300), Some((30, 300)));
    wait.begin(at(300), Some(WaitReason::NoWorker));
    assert_eq!(left(&wait, 310), Some((20, 310)));
    assert_eq!(queue.ends(&wait, WaitReason::NoWorker), at(330));
    assert_eq!(left(&wait, 330), None);
    // A request that is sent again begins anew.
    wait.end(at(340));
    wait.begin(at(400), Some(WaitReason::NoWorker));
    assert_eq!(queue.ends(&wait, WaitReason::NoWorker), at(430));
}

#[tokio::test]
async fn no_wait_outlasts_the_time_limit_of_its_request() {
    let at = |seconds| Moment::at(Duration::from_secs(seconds));
    let test = without_worker(Duration::from_secs(30));
    let queue = &test.delivery().queue;
    let mut wait = WaitRecord::new(10, at(100));
    wait.begin(at(0), Some(WaitReason::Room));
    // The router binds it before, unless all its workers have become busy meanwhile.
    for reason in [WaitReason::Room, WaitReason::Backlog] {
        assert_eq!(queue.ends(&wait, reason), at(101), "{reason:?}");
    }
    // Then it is found to be busy, and that wait is over at once.
    wait.begin(at(101), Some(WaitReason::Busy));
    assert_eq!(queue.ends(&wait, WaitReason::Busy), at(100));
    assert!(wait.budget(at(101), Duration::from_secs(30)).is_none());
}

/// Places a new request.
async fn place(test: &TestGateway, request: &mut RoutedRequest) -> Result<WorkerId, Rejection> {
    place_after(test, request, &RetryState::default()).await
}

async fn place_after(
    test: &TestGateway,
    request: &mut RoutedRequest,
    retry_state: &RetryState,
) -> Result<WorkerId, Rejection> {
    let RoutedRequest {
        call,
        facts,
        model,
        wait,
        ..
    } = request;
    let placement = send::placement(call, facts, retry_state);
    let placed = test.delivery().queue.place(model, &placement, wait).await;
    placed.map(|placed| placed.lease.target().worker)
}

fn code(placed: Result<WorkerId, Rejection>) -> Result<WorkerId, ErrorCode> {
    placed.map_err(|rejection| rejection.error.code)
}

/// The receipt's entry: the reason, and whether the request waited at least this long.
fn waited(request: &RoutedRequest, least: Duration) -> (Option<WaitReason>, bool) {
    let wait = request.wait.receipt_wait();
    (wait.reason, wait.held_ms >= least.as_secs_f64() * 1e3)
}

#[tokio::test]
async fn a_free_worker_gets_the_request_without_a_wait() {
    let test = busy(Some(SHORT));
    let mut request = test.chat_for(vec![full(1), test_support::worker(2)]);
    assert_eq!(code(place(&test, &mut request).await), Ok(WorkerId(2)));
    assert_eq!(request.wait.receipt_wait(), QueueWait::default());
    assert!(test.has_metric("warmroute_queue_wait_seconds_count 0"));
}

#[tokio::test]
async fn where_no_wait_is_configured_a_request_for_busy_workers_is_refused_at_once() {
    let test = busy(None);
    let mut request = test.chat_for(vec![full(1), full(2)]);
    let refused = place(&test, &mut request).await.expect_err("both are full");
    assert_eq!(refused.error.code, ErrorCode::Overloaded);
    assert_eq!(refused.refusal.excluded.len(), 2);
    assert!(test.has_metric("warmroute_queue_wait_seconds_count 0"));
}

#[tokio::test]
async fn a_request_waits_for_a_busy_worker_as_long_as_configured() {
    let test = busy(Some(SHORT));
    let mut request = test.chat_for(vec![full(1)]);
    assert_eq!(
        code(place(&test, &mut request).await),
        Err(ErrorCode::QueueTimeout)
    );
    assert_eq!(waited(&request, SHORT), (Some(WaitReason::Busy), true));
    assert_eq!(test.router.queued_requests(), 0);
    assert!(test.has_metric("warmroute_queue_wait_seconds_count 1"));
}

#[tokio::test]
async fn a_waiting_request_gets_the_worker_whose_usage_falls() {
    let test = busy(Some(SOON));
    let mut request = test.chat_for(vec![full(1), full(2)]);
    let target = test_support::target(&full(2));
    let release = async {
        while test.router.queued_requests() == 0 {
            tokio::task::yield_now().await;
        }
        let now = test.gateway.clock().now();
        test.router.observe_usage(target, now, 0.1, None);
        test.delivery().queue.decider.waiters.tick();
    };
    let (placed, ()) = tokio::join!(place(&test, &mut request), release);
    assert_eq!(code(placed), Ok(WorkerId(2)));
    assert_eq!(request.wait.receipt_wait().reason, Some(WaitReason::Busy));
    assert!(test.has_metric("warmroute_queue_wait_seconds_count 1"));
}

#[tokio::test]
async fn a_request_without_any_worker_waits_only_where_that_is_configured() {
    for (limit, reason) in [(Duration::ZERO, None), (SHORT, Some(WaitReason::NoWorker))] {
        let test = without_worker(limit);
        let mut request = test.chat(&[]);
        assert_eq!(
            code(place(&test, &mut request).await),
            Err(ErrorCode::NoWorker)
        );
        let waited = request.wait.receipt_wait();
        assert_eq!(
            (waited.reason, waited.held_ms >= 30.0),
            (reason, !limit.is_zero())
        );
        assert_eq!(test.router.queued_requests(), 0);
    }
}

#[tokio::test]
async fn the_time_limit_of_the_request_ends_its_wait() {
    let test = without_worker(SOON);
    let mut request = test.chat(&[]);
    request.wait = WaitRecord::new(2, test.gateway.clock().now() + SHORT);
    assert_eq!(
        code(place(&test, &mut request).await),
        Err(ErrorCode::NoWorker)
    );
    assert_eq!(
        waited(&request, SHORT / 2),
        (Some(WaitReason::NoWorker), true)
    );
}

#[tokio::test]
async fn a_retry_does_not_wait_unless_it_waits_for_any_worker() {
    let test = without_worker(SHORT);
    let failure = || Some(super::super::attempt_failure::AttemptFailure::no_answer());
    for (waits_for_anybody, reason) in [(false, None), (true, Some(WaitReason::NoWorker))] {
        let mut retry_state = RetryState::default();
        (retry_state.last, retry_state.waits_for_anybody) = (failure(), waits_for_anybody);
        let mut request = test.chat(&[]);
        let placed = place_after(&test, &mut request, &retry_state).await;
        assert_eq!(code(placed), Err(ErrorCode::NoWorker));
        assert_eq!(request.wait.receipt_wait().reason, reason);
    }
}

#[tokio::test]
async fn a_request_that_would_miss_its_target_does_not_wait_and_a_retry_of_it_is_sent() {
    let test = without_worker(SOON);
    let mut settings = RoutingSettings::default();
    settings.section.slo.refuse = true;
    test.router.reconfigure(settings);
    // A worker of unknown speed without anything to do is not refused.
    let mut first = test.chat(&[1]);
    first.facts.answer = ReplyMode::Streamed;
    let no_retry = RetryState::default();
    let placement = send::placement(&first.call, &first.facts, &no_retry);
    let queue = &test.delivery().queue;
    let held = queue.place(&mut first.model, &placement, &mut first.wait);
    let held = held.await;
    assert!(held.is_ok());
    let mut request = test.chat(&[1]);
    request.call.overrides.policy = Some(Policy::Warm);
    request.call.slo.ttft = Some(Duration::from_millis(1));
    let rejected = place(&test, &mut request).await;
    let error = rejected.expect_err("it takes longer").error;
    assert_eq!(error.code, ErrorCode::Overloaded);
    assert_eq!(error.counted_as(), "slo");
    assert_eq!(test.router.queued_requests(), 0);

    let mut retry_state = RetryState::default();
    retry_state.excluded.push(Pin {
        worker: WorkerId(2),
        rank: None,
    });
    let placed = place_after(&test, &mut request, &retry_state).await;
    assert_eq!(code(placed), Ok(WorkerId(1)));
    drop(held);
}

#[tokio::test]
async fn beyond_the_queues_room_a_request_is_refused() {
    let test = without_worker(SOON);
    test.router.reconfigure(RoutingSettings {
        queue: QueueSettings {
            max_entries: 1,
            ..QueueSettings::default()
        },
        ..RoutingSettings::default()
    });
    let (mut one, mut two) = (test.chat(&[]), test.chat(&[]));
    let mut first = pin!(place(&test, &mut one));
    tokio::select! {
        biased;
        _ = &mut first => panic!("it waits"),
        placed = place(&test, &mut two) => assert_eq!(code(placed), Err(ErrorCode::QueueFull)),
    }
    assert_eq!(test.router.queued_requests(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_request_out_of_the_queue() {
    for (test, workers) in [
        (without_worker(SOON), vec![]),
        (busy(Some(SOON)), vec![full(1)]),
    ] {
        let mut request = test.chat_for(workers);
        let waiting = tokio::time::timeout(SHORT, place(&test, &mut request));
        assert!(waiting.await.is_err(), "it waits");
        assert_eq!(test.router.queued_requests(), 0);
        assert_eq!(test.router.open_reservations(), 0);
    }
}

#[tokio::test]
async fn at_the_end_of_a_drain_no_request_waits_any_more() {
    for (test, workers) in [
        (without_worker(SOON), vec![]),
        (busy(Some(SOON)), vec![full(1)]),
    ] {
        let mut request = test.chat_for(workers);
        let abort = async {
            while test.router.queued_requests() == 0 {
                tokio::task::yield_now().await;
            }
            test.delivery().queue.abort.abort();
        };
        let (placed, ()) = tokio::join!(place(&test, &mut request), abort);
        assert_eq!(code(placed), Err(ErrorCode::Draining));
        assert_eq!(test.router.queued_requests(), 0);
    }
}

#[tokio::test]
async fn a_request_that_waits_for_any_worker_gets_the_one_that_appears() {
    let test = without_worker(SOON);
    let request = test.chat(&[]);
    let retry_state = RetryState::default();
    let placement = request.placement(&retry_state);
    let decider = &test.delivery().queue.decider;
    let budget = WaitBudget {
        limit: SOON,
        waited: Duration::ZERO,
        bytes: 2,
    };
    let mut waiter = decider
        .enqueue(&request.model, &placement, budget)
        .expect("room");
    assert_eq!(waiter.reason(), Some(WaitReason::NoWorker));
    let model = test_support::model(vec![test_support::worker(3)]);
    decider.replace_candidates(&model, &placement, &waiter, None);
    let released = tokio::time::timeout(SOON, waiter.wait_for_release()).await;
    let released = released.expect("it is released");
    assert_eq!(released.plan.decode.target.worker, WorkerId(3));
    assert_eq!(test.router.open_reservations(), 1);
    let placed = decider.placed_attempt(&model, &placement, *released.plan);
    drop(placed);
    assert_eq!(test.router.open_reservations(), 0);
}

#[tokio::test]
async fn a_plan_whose_request_is_gone_by_then_is_withdrawn() {
    let test = without_worker(SOON);
    let request = test.chat(&[]);
    let retry_state = RetryState::default();
    let placement = request.placement(&retry_state);
    let decider = &test.delivery().queue.decider;
    let budget = WaitBudget {
        limit: SOON,
        waited: Duration::ZERO,
        bytes: 2,
    };
    let waiter = decider
        .enqueue(&request.model, &placement, budget)
        .expect("room");
    let model = test_support::model(vec![test_support::worker(3)]);
    decider.replace_candidates(&model, &placement, &waiter, None);
    assert_eq!(
        test.router.open_reservations(),
        1,
        "the plan is in the channel"
    );
    drop(waiter);
    assert_eq!(test.router.open_reservations(), 0);
}

#[tokio::test]
async fn a_model_that_no_worker_lists_is_waited_for_and_then_refused() {
    for (limit, reason) in [(Duration::ZERO, None), (SHORT, Some(WaitReason::NoWorker))] {
        let test = without_worker(limit);
        let mut wait = WaitRecord::new(2, test.gateway.clock().now() + SOON);
        let found = test.delivery().queue.model("m", &mut wait).await;
        assert_eq!(
            found.map(drop).map_err(|error| error.code),
            Err(ErrorCode::NoWorker)
        );
        assert_eq!(wait.receipt_wait().reason, reason);
        assert_eq!(test.router.queued_requests(), 0);
        assert!(
            test.delivery()
                .queue
                .decider
                .waiters
                .models
                .next_check()
                .is_none()
        );
    }
}

#[tokio::test]
async fn a_retry_waits_for_a_permit_only_while_all_workers_have_failed() {
    let test = without_worker(SHORT);
    let queue = &test.delivery().queue;
    let retries = &test.delivery().retries;
    let mut wait = WaitRecord::new(2, test.gateway.clock().now() + SOON);
    let permit = queue.wait_until_retriable(retries, "m", &mut wait).await;
    assert!(permit.expect("there are permits").is_some());
    let _permits = test.use_up_retry_budget();
    let permit = queue.wait_until_retriable(retries, "m", &mut wait).await;
    assert!(permit.expect("no worker is left to wait for").is_none());
    assert_eq!(wait.receipt_wait(), QueueWait::default());
}

#[test]
fn a_wait_counts_from_its_first_reason_and_keeps_its_last_one() {
    let at = |ms| Moment::START + Duration::from_millis(ms);
    let mut wait = WaitRecord::new(7, at(1000));
    assert_eq!(wait.end(at(5)), None, "it has not waited");
    wait.begin(at(10), Some(WaitReason::NoWorker));
    wait.begin(at(20), Some(WaitReason::Busy));
    wait.begin(at(30), None);
    assert_eq!(wait.end(at(110)), Some(Duration::from_millis(100)));
    let shown = wait.receipt_wait();
    assert_eq!(
        (shown.held_ms, shown.reason),
        (100.0, Some(WaitReason::Busy))
    );
    assert_eq!(wait.end(at(200)), None);
    let mut unseen = WaitRecord::new(7, at(1000));
    unseen.begin(at(0), None);
    assert_eq!(unseen.receipt_wait().reason, Some(WaitReason::Backlog));
}

#[test]
fn the_wait_budget_is_what_is_left_of_the_limit_and_of_the_requests_time() {
    let at = |ms| Moment::START + Duration::from_millis(ms);
    let ms = Duration::from_millis;
    let mut wait = WaitRecord::new(7, at(1000));
    let fresh = wait.budget(at(0), ms(300)).expect("time is left");
    assert_eq!(
        (fresh.limit, fresh.waited, fresh.bytes),
        (ms(300), ms(0), 7)
    );
    wait.begin(at(100), None);
    let later = wait.budget(at(200), ms(300)).expect("time is left");
    assert_eq!((later.limit, later.waited), (ms(200), ms(100)));
    assert_eq!(wait.budget(at(400), ms(300)), None, "the limit is used up");
    let long = wait.budget(at(900), ms(5000)).expect("time is left");
    assert_eq!(long.limit, ms(100), "the request ends before the limit");
    assert_eq!(wait.budget(at(1000), ms(5000)), None);
}

fn listing(number: u32) -> Arc<WorkerView> {
    let mut worker = test_support::worker(number);
    worker.served.models.push(fleet::ServedModel {
        id: "m".into(),
        root: None,
        max_model_len: None,
        created: 0,
        owned_by: "".into(),
    });
    Arc::new(worker)
}

fn snapshot(workers: Vec<Arc<WorkerView>>) -> Snapshot {
    let model = Arc::new(test_support::model(Vec::new()));
    Snapshot {
        workers,
        models: [(Arc::from("m"), model)].into(),
    }
}

#[test]
fn a_model_is_missing_only_if_every_worker_has_listed_its_models() {
    let silent = Arc::new(test_support::worker(2));
    let code = |snapshot: &Snapshot, id| find_model(snapshot, id).err().map(|error| error.code);
    for (workers, unknown) in [
        (vec![], ErrorCode::NoWorker),
        (vec![listing(1), silent], ErrorCode::NoWorker),
        (vec![listing(1), listing(2)], ErrorCode::ModelNotFound),
    ] {
        let snapshot = snapshot(workers);
        assert_eq!(code(&snapshot, "x"), Some(unknown));
        assert_eq!(code(&snapshot, "m"), None, "it is listed");
    }
}
