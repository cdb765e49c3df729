//! The wait of a request that no target can take now, in the router's queue.
//!
//! A request waits for one of three things: a target that can start it, a target below the busy
//! threshold, or any target. It leaves the queue when its wait budget is used up, when its client
//! disconnects (its task is dropped, and with it its ticket) and when the router shuts down. When
//! its candidates change, it passes them to the router and keeps its place.

use std::{sync::Arc, time::Duration};

use dialect::{ApiError, ErrorCode};
use fleet::{ModelCandidate, ModelView};
use kv_blocks::Moment;
use routing::{
    Affinity, ExcludeReason, Job, MOVE_TIME, NoStopwatch, Overrides, Refusal, ReleasedRequest,
    ReplyMode, WaitBudget, WaitReason, receipt::QueueWait,
};

use super::{
    decide::{self, PlacedAttempt, PlacementOutcome, PlacementRequest},
    dispatch,
    prefill::RequestPolicies,
};
use crate::{Gateway, queue_waiters::Waiter, retry::RetryPermit};

/// `Retry-After` if the queue is full, in seconds.
const FULL_RETRY_S: u32 = 1;
/// At the end of a wait the router binds the request if it can; this much later it is certain that
/// it could not.
const GRACE: Duration = Duration::from_millis(50);

/// How often a request that all of its workers failed checks for a retry permit or for a recovered
/// worker: neither wakes it.
const RETRY_LOOK: Duration = Duration::from_millis(250);

/// Queue wait limits.
#[derive(Clone, Copy, Debug)]
pub struct WaitLimits {
    /// Longest wait while all eligible workers are busy; `None`: no wait.
    pub busy: Option<Duration>,
    /// Longest wait while no worker is usable; zero: no wait.
    pub no_worker: Duration,
}

/// The waits of one request.
#[derive(Debug)]
pub(crate) struct WaitRecord {
    /// Bytes of the request, counted while it waits.
    bytes: u64,
    /// The end of the request's own time limit.
    deadline: Moment,
    started: Option<Moment>,
    reported: QueueWait,
}

/// A request that no target takes.
#[derive(Debug)]
pub(crate) struct Rejection {
    pub(crate) refusal: Refusal,
    pub(crate) error: ApiError,
}

impl WaitRecord {
    pub(crate) fn new(bytes: usize, deadline: Moment) -> Self {
        Self {
            bytes: bytes as u64,
            deadline,
            started: None,
            reported: QueueWait::default(),
        }
    }

    /// Returns the end of the request's time limit.
    pub(crate) fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Returns the receipt's entry: how long the request waited, and for what last.
    pub(crate) fn receipt_wait(&self) -> QueueWait {
        self.reported
    }

    /// Records the reason of the wait, from the first one on; `None`: the wait is over, and the
    /// last reason stays.
    fn begin(&mut self, gateway: &Gateway, reason: Option<WaitReason>) {
        self.started.get_or_insert_with(|| gateway.clock.now());
        self.reported.reason = match reason {
            None => self.reported.reason.or(Some("backlog")),
            Some(WaitReason::Backlog) => Some("backlog"),
            Some(WaitReason::Busy) => Some("busy"),
            Some(WaitReason::NoWorker) => Some("no_worker"),
        };
    }

    /// Records the end of the wait, whatever ended it.
    fn over(&mut self, gateway: &Gateway) {
        if let Some(since) = self.started.take() {
            let waited = gateway.clock.now().since(since);
            self.reported.held_ms = waited.as_secs_f64() * 1e3;
            gateway.metrics.record_wait(waited);
        }
    }

    /// Returns when the waiting task gives up; `None`: never while it waits for a backlog to
    /// shrink, since the router binds it in time.
    fn ends(&self, gateway: &Gateway, reason: WaitReason) -> Option<Moment> {
        let limits = gateway.rules.waiting;
        let limit = match reason {
            WaitReason::Backlog => return None,
            WaitReason::Busy => limits.busy.unwrap_or_default() + GRACE,
            WaitReason::NoWorker => limits.no_worker,
        };
        Some((self.started.unwrap_or_else(|| gateway.clock.now()) + limit).min(self.deadline))
    }

    /// Returns the wait budget for a busy worker; `None`: no wait, or none left.
    fn patience(&self, gateway: &Gateway) -> Option<WaitBudget> {
        self.patience_of(gateway, gateway.rules.waiting.busy?)
    }

    /// Returns the rest of `limit`.
    fn patience_of(&self, gateway: &Gateway, limit: Duration) -> Option<WaitBudget> {
        let now = gateway.clock.now();
        let waited = self
            .started
            .map_or(Duration::ZERO, |since| now.since(since));
        let limit = limit.saturating_sub(waited).min(self.deadline.since(now));
        (limit > Duration::ZERO).then_some(WaitBudget {
            limit,
            waited,
            bytes: self.bytes,
        })
    }

    /// Queues the request while no worker is usable; `None`: no such wait is allowed, or none is
    /// left.
    fn hold(
        &self,
        gateway: &Gateway,
        hold: impl FnOnce(WaitBudget) -> Option<Waiter>,
    ) -> Option<Result<Waiter, ApiError>> {
        let patience = self.patience_of(gateway, gateway.rules.waiting.no_worker)?;
        Some(hold(patience).ok_or_else(queue_full))
    }
}

/// Returns the view of the model that a request names. Waits for workers that have not answered yet
/// and may serve it.
pub(crate) async fn model(
    gateway: &Gateway,
    id: &str,
    wait: &mut WaitRecord,
) -> Result<Arc<ModelView>, ApiError> {
    let found = match gateway.model(&gateway.fleet.snapshot(), id) {
        Err(error) if error.code == ErrorCode::NoWorker => {
            listed_model(gateway, id, wait, error).await
        }
        known => known,
    };
    if found.is_err() {
        wait.over(gateway);
    }
    found
}

/// Waits until a worker lists the model, or until it is certain that none will.
async fn listed_model(
    gateway: &Gateway,
    id: &str,
    wait: &mut WaitRecord,
    error: ApiError,
) -> Result<Arc<ModelView>, ApiError> {
    let hold = |patience| {
        gateway
            .waiters
            .enqueue(gateway.clock.now(), &without_candidates(patience))
    };
    let Some(waiter) = wait.hold(gateway, hold) else {
        return Err(error);
    };
    let _place = waiter?;
    wait.begin(gateway, Some(WaitReason::NoWorker));
    let mut changes = gateway.waiters.models.subscribe(&Arc::from(id), None);
    loop {
        let ends = wait.ends(gateway, WaitReason::NoWorker);
        tokio::select! {
            () = changes.wait_for_change() => match gateway.model(&gateway.fleet.snapshot(), id) {
                Err(error) if error.code == ErrorCode::NoWorker => {}
                known => return known,
            },
            () = at(gateway, ends) => return Err(error),
            () = gateway.cut.aborted() => return Err(going_down()),
        }
    }
}

/// Returns a job without candidates: it only holds a place in the queue.
fn without_candidates(patience: WaitBudget) -> Job<'static> {
    Job {
        policy: None,
        pin: None,
        blocks: None,
        affinity: Affinity::default(),
        session: None,
        prefix_holders: None,
        prompt_tokens: 0,
        expected_output_tokens: None,
        answer: ReplyMode::Streamed,
        wait_budget: Some(patience),
        busy_threshold: None,
        candidates: &[],
        excluded: &[],
        prefill: None,
        random: 0,
        overrides: Overrides::default(),
        stopwatch: &NoStopwatch,
    }
}

/// Chooses a target and counts the load there, now or as soon as a target can take the request.
/// `model` is the model's view before the wait, and after it the view of the decision. Unless it
/// `may_wait`, the request gets its answer at once.
pub(crate) async fn place(
    gateway: &Gateway,
    model: &mut Arc<ModelView>,
    placement: &PlacementRequest<'_>,
    may_wait: bool,
    wait: &mut WaitRecord,
) -> Result<PlacedAttempt, Rejection> {
    let placed = placed(gateway, model, placement, may_wait, wait).await;
    wait.over(gateway);
    placed
}

/// Waits until a request that all of its workers failed may be sent again: within the retry budget
/// (then with its permit), when a worker has recovered, or when no worker is left and the request
/// waits for one ([`place`]).
pub(crate) async fn wait_until_retriable(
    gateway: &Gateway,
    model: &str,
    wait: &mut WaitRecord,
) -> Result<Option<RetryPermit>, ApiError> {
    let mut place = None;
    loop {
        if let Some(permit) = gateway.retry_permit() {
            return Ok(Some(permit));
        }
        let snapshot = gateway.fleet.snapshot();
        let candidates = snapshot
            .model(model)
            .map_or(&[][..], |model| &model.candidates);
        let answers =
            |candidate: &ModelCandidate| !gateway.fleet.failed_lately(candidate.target.worker);
        if candidates.is_empty() || candidates.iter().any(answers) {
            return Ok(None);
        }
        if place.is_none() {
            let hold = |patience| {
                gateway
                    .waiters
                    .enqueue(gateway.clock.now(), &without_candidates(patience))
            };
            // Counted among the waiting requests until it continues.
            place = Some(
                wait.hold(gateway, hold)
                    .unwrap_or_else(|| Err(dispatch::no_worker()))?,
            );
            wait.begin(gateway, Some(WaitReason::NoWorker));
        }
        let ends = wait.ends(gateway, WaitReason::NoWorker);
        tokio::select! {
            () = tokio::time::sleep(RETRY_LOOK) => {}
            () = at(gateway, ends) => return Err(dispatch::no_worker()),
            () = gateway.cut.aborted() => return Err(going_down()),
        }
    }
}

async fn placed(
    gateway: &Gateway,
    model: &mut Arc<ModelView>,
    placement: &PlacementRequest<'_>,
    may_wait: bool,
    wait: &mut WaitRecord,
) -> Result<PlacedAttempt, Rejection> {
    let patience = wait.patience(gateway).filter(|_| may_wait);
    let (waiter, refusal) = match decide::place(gateway, model, placement, patience) {
        PlacementOutcome::Placed(placed) => return Ok(*placed),
        PlacementOutcome::Queued(waiter) => (waiter, None),
        PlacementOutcome::Refused(refusal) if refusal.queue_full => {
            return Err(Rejection {
                refusal,
                error: queue_full(),
            });
        }
        PlacementOutcome::Refused(refusal) => {
            let hold = |patience| decide::enqueue(gateway, model, placement, patience);
            let held = if may_wait && !is_busy(&refusal) {
                wait.hold(gateway, hold)
            } else {
                None
            };
            match held {
                Some(Ok(waiter)) => (waiter, Some(refusal)),
                Some(Err(error)) => return Err(Rejection { refusal, error }),
                None => {
                    return Err(Rejection {
                        error: decide::refusal_error(&refusal),
                        refusal,
                    });
                }
            }
        }
    };
    match released(gateway, model, placement, waiter, wait).await {
        Ok(released) => Ok(decide::into_attempt(
            gateway,
            model,
            placement,
            *released.plan,
        )),
        Err(error) => {
            let refusal = refusal.unwrap_or_else(|| nobody(gateway, model, placement));
            Err(Rejection { refusal, error })
        }
    }
}

/// Waits for the router to release the request. `model` follows the fleet meanwhile.
async fn released(
    gateway: &Gateway,
    model: &mut Arc<ModelView>,
    placement: &PlacementRequest<'_>,
    mut waiter: Waiter,
    wait: &mut WaitRecord,
) -> Result<ReleasedRequest, ApiError> {
    let mut changes = gateway.waiters.models.subscribe(&model.id, Some(model));
    loop {
        // `None`: the plan is on its way.
        let reason = waiter.reason();
        wait.begin(gateway, reason);
        let ends = reason.and_then(|reason| wait.ends(gateway, reason));
        tokio::select! {
            biased;
            released = waiter.wait_for_release() => return Ok(released),
            () = gateway.cut.aborted() => return Err(going_down()),
            () = changes.wait_for_change() => {
                if let Some(now) = gateway.fleet.snapshot().model(&model.id) {
                    *model = Arc::clone(now);
                }
                decide::replace_candidates(gateway, model, placement, &waiter, wait.patience(gateway));
                // Until it gets new candidates it still waits for the old ones.
                if let Ok(released) = tokio::time::timeout(2 * MOVE_TIME, waiter.wait_for_release()).await {
                    return Ok(released);
                }
            }
            () = at(gateway, ends) => match waiter.reason() {
                Some(WaitReason::Busy) if reason == Some(WaitReason::Busy) => return Err(timed_out()),
                Some(WaitReason::NoWorker) if reason == Some(WaitReason::NoWorker) => {
                    return Err(dispatch::no_worker());
                }
                _ => {}
            }
        }
    }
}

/// Sleeps until `then`; without one forever.
async fn at(gateway: &Gateway, then: Option<Moment>) {
    match then {
        Some(then) => tokio::time::sleep(then.since(gateway.clock.now())).await,
        None => std::future::pending().await,
    }
}

fn is_busy(refusal: &Refusal) -> bool {
    refusal
        .excluded
        .iter()
        .any(|excluded| excluded.reason == ExcludeReason::Busy)
}

/// Returns the refusal of a request that stopped waiting: the router excluded no target.
fn nobody(gateway: &Gateway, model: &ModelView, placement: &PlacementRequest<'_>) -> Refusal {
    let policy = RequestPolicies::of(gateway, placement.overrides, model).decode;
    Refusal {
        policy,
        excluded: Vec::new(),
        queue_full: false,
    }
}

fn queue_full() -> ApiError {
    let message =
        "too many requests wait for a worker (queue.max_entries, queue.max_bytes): try again";
    ApiError::new(ErrorCode::QueueFull, message).with_retry_after(FULL_RETRY_S)
}

fn timed_out() -> ApiError {
    let message = "every worker that could take the request stayed above the busy threshold (queue.wait): try again";
    ApiError::new(ErrorCode::QueueTimeout, message).with_retry_after(decide::BUSY_RETRY_S)
}

fn going_down() -> ApiError {
    ApiError::new(
        ErrorCode::Draining,
        "the router is going down, and the request was still waiting: try again",
    )
    .with_retry_after(1)
}
