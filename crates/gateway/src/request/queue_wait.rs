//! The wait of a request that no target can take now, in the router's queue.
//!
//! A request waits for one of four things: a target that can start it, room in a cache, a target
//! below the busy threshold, or any target. It leaves the queue when its wait budget is used up, when
//! its client disconnects (its task is dropped, and with it its ticket) and when the router shuts
//! down. When its candidates change, it passes them to the router and keeps its position.

use std::{sync::Arc, time::Duration};

use dialect::{ApiError, ErrorCode};
use fleet::{Fleet, ModelCandidate, ModelView, Snapshot};
use kv_blocks::Moment;
use net::Clock;
use proxy::AbortSwitch;
use routing::{
    ExcludeReason, Job, QueueLimit, QueueSettings, Refusal, ReleasedRequest, RoomWait, WaitBudget,
    WaitReason, receipt::QueueWait,
};
use tenants::Tenant;

use super::decide::{self, Decider, PlacementOutcome, PlacementRequest, PlacementWait};
use crate::{
    errors,
    lease::PlacedAttempt,
    metrics::Metrics,
    queue_waiters::Waiter,
    retry::{Retries, RetryPermit},
};

/// At the end of a wait the router binds the request if it can; this much later it is certain that
/// it could not.
const GRACE: Duration = Duration::from_millis(50);

/// The same at the end of a request's own time limit, where no time is left for a reply in any case. Its
/// targets may all have become busy while it waited for something else.
const LATE_GRACE: Duration = Duration::from_secs(1);

/// Shortest time between two changes of a request's candidates.
const BETWEEN_CHANGES: Duration = Duration::from_millis(100);

/// How often a request that all of its workers failed checks for a retry permit or for a recovered
/// worker: neither wakes it.
const RETRY_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The queue as requests wait in it.
#[derive(Clone, Debug)]
pub(crate) struct QueueStage {
    pub(crate) decider: Decider,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) limits: QueueSettings,
    pub(crate) abort: Arc<AbortSwitch>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
}

/// The waits of one request.
#[derive(Debug)]
pub(crate) struct WaitRecord {
    /// Bytes of the request, counted while it waits.
    bytes: u64,
    /// The end of the request's own time limit.
    deadline: Moment,
    /// Among whose requests it waits.
    tenant: Option<Arc<Tenant>>,
    started: Option<Moment>,
    /// When it last stopped to wait for room, if it did.
    had_room: Option<Moment>,
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
            tenant: None,
            started: None,
            had_room: None,
            reported: QueueWait::default(),
        }
    }

    pub(crate) fn of_tenant(self, tenant: Option<&Arc<Tenant>>) -> Self {
        let tenant = tenant.map(Arc::clone);
        Self { tenant, ..self }
    }

    /// Returns the end of the request's time limit.
    pub(crate) fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Returns the receipt's entry: how long the request waited, and for what last.
    pub(crate) fn receipt_wait(&self) -> QueueWait {
        self.reported.clone()
    }

    /// Records the reason of the wait, from the first one on; `None`: the wait is over, and the
    /// last reason stays.
    fn begin(&mut self, now: Moment, reason: Option<WaitReason>) {
        self.started.get_or_insert(now);
        if self.waits_for_room() && reason.is_some_and(|reason| reason != WaitReason::Room) {
            self.had_room = Some(now);
        }
        let shown = reason.or(self.reported.reason);
        self.reported.reason = Some(shown.unwrap_or(WaitReason::Backlog));
    }

    /// Records why the request waited for room, if it did.
    fn record_room(&mut self, room: Option<RoomWait>) {
        if room.is_some() {
            (self.reported.reason, self.reported.room) =
                (Some(WaitReason::Room), room.map(Box::new));
        }
    }

    /// Records the end of the wait, whatever ended it, and returns how long it took.
    fn end(&mut self, now: Moment) -> Option<Duration> {
        let waited = now.since(self.started.take()?);
        self.had_room = None;
        self.reported.held_ms = waited.as_secs_f64() * 1e3;
        Some(waited)
    }

    fn waits_for_room(&self) -> bool {
        self.started.is_some() && self.reported.reason == Some(WaitReason::Room)
    }

    /// Returns since when the limits of the other waits count; `None`: they do not. A wait for room has a
    /// limit of its own, which may be far longer.
    fn limited_since(&self) -> Option<Moment> {
        self.had_room
            .or(self.started)
            .filter(|_| !self.waits_for_room())
    }

    /// Returns the rest of `limit`; `None`: nothing is left.
    fn budget(&self, now: Moment, limit: Duration) -> Option<WaitBudget> {
        let since = |then: Option<Moment>| then.map_or(Duration::ZERO, |then| now.since(then));
        let waited = since(self.started);
        let limited = since(self.limited_since());
        let limit = limit.saturating_sub(limited).min(self.deadline.since(now));
        (limit > Duration::ZERO).then_some(WaitBudget {
            limit,
            waited,
            bytes: self.bytes,
        })
    }
}

impl QueueStage {
    /// Returns the view of the model that a request names. Waits for workers that have not answered yet
    /// and may serve it.
    pub(crate) async fn model(
        &self,
        id: &str,
        wait: &mut WaitRecord,
    ) -> Result<Arc<ModelView>, ApiError> {
        let found = match find_model(&self.fleet.snapshot(), id) {
            Err(error) if error.code == ErrorCode::NoWorker => {
                self.listed_model(id, wait, error).await
            }
            known => known,
        };
        if found.is_err() {
            self.end_wait(wait);
        }
        found
    }

    /// Waits until a worker lists the model, or until it is certain that none will.
    async fn listed_model(
        &self,
        id: &str,
        wait: &mut WaitRecord,
        error: ApiError,
    ) -> Result<Arc<ModelView>, ApiError> {
        let enqueue = |budget| self.enqueue_without_candidates(budget, wait.tenant.as_deref());
        let queued = self.enqueue_within_limit(wait, enqueue);
        let Some(waiter) = queued else {
            return Err(error);
        };
        let _waiter = waiter?;
        wait.begin(self.clock.now(), Some(WaitReason::NoWorker));
        let mut changes = self.decider.waiters.models.subscribe(&Arc::from(id), None);
        loop {
            let ends = self.ends(wait, WaitReason::NoWorker);
            tokio::select! {
                () = changes.wait_for_change() => match find_model(&self.fleet.snapshot(), id) {
                    Err(error) if error.code == ErrorCode::NoWorker => {}
                    known => return known,
                },
                () = self.at(Some(ends)) => return Err(error),
                () = self.abort.aborted() => return Err(errors::going_down()),
            }
        }
    }

    /// Chooses a target and counts the load there, now or as soon as a target can take the request.
    /// `model` is the model's view before the wait, and after it the view of the decision. A
    /// request that may not wait gets its answer at once.
    pub(crate) async fn place(
        &self,
        model: &mut Arc<ModelView>,
        placement: &PlacementRequest<'_>,
        wait: &mut WaitRecord,
    ) -> Result<PlacedAttempt, Rejection> {
        let placed = self.place_or_wait(model, placement, wait).await;
        self.end_wait(wait);
        placed
    }

    /// Waits until a request that all of its workers failed may be sent again: within the retry budget
    /// (then with its permit), when a worker has recovered, or when no worker is left and the request
    /// waits for one ([`Self::place`]).
    pub(crate) async fn wait_until_retriable(
        &self,
        retries: &Retries,
        model: &str,
        wait: &mut WaitRecord,
    ) -> Result<Option<RetryPermit>, ApiError> {
        let mut waiter = None;
        loop {
            if let Some(permit) = retries.permit() {
                return Ok(Some(permit));
            }
            let snapshot = self.fleet.snapshot();
            let candidates = snapshot
                .model(model)
                .map_or(&[][..], |model| &model.candidates);
            let answers =
                |candidate: &ModelCandidate| !self.fleet.failed_lately(candidate.target.worker);
            if candidates.is_empty() || candidates.iter().any(answers) {
                return Ok(None);
            }
            if waiter.is_none() {
                // Counted among the waiting requests until it continues.
                let tenant = wait.tenant.as_deref();
                let enqueue = |budget| self.enqueue_without_candidates(budget, tenant);
                let queued = self.enqueue_within_limit(wait, enqueue);
                waiter = Some(queued.unwrap_or_else(|| Err(errors::no_worker()))?);
                wait.begin(self.clock.now(), Some(WaitReason::NoWorker));
            }
            let ends = self.ends(wait, WaitReason::NoWorker);
            tokio::select! {
                () = tokio::time::sleep(RETRY_CHECK_INTERVAL) => {}
                () = self.at(Some(ends)) => return Err(errors::no_worker()),
                () = self.abort.aborted() => return Err(errors::going_down()),
            }
        }
    }

    async fn place_or_wait(
        &self,
        model: &mut Arc<ModelView>,
        placement: &PlacementRequest<'_>,
        wait: &mut WaitRecord,
    ) -> Result<PlacedAttempt, Rejection> {
        let budget = self.busy_budget(wait).filter(|_| placement.may_wait);
        let limits = budget.map(|budget| PlacementWait {
            budget,
            time_left: wait.deadline.since(self.clock.now()),
        });
        let (waiter, refusal) = match self.decider.place(model, placement, limits) {
            PlacementOutcome::Placed(placed) => return Ok(placed),
            PlacementOutcome::Queued(waiter) => (waiter, None),
            PlacementOutcome::Refused(refusal) => {
                if let Some(limit) = refusal.queue_full {
                    let error = errors::not_queued(limit, placement.tenant);
                    return Err(Rejection { refusal, error });
                }
                let enqueue = |budget| self.decider.enqueue(model, placement, budget);
                let is_final = refusal.no_room.is_some() || refusal.slo_miss.is_some();
                let may_come = !is_busy(&refusal) && !is_final;
                let queued = if placement.may_wait && may_come {
                    self.enqueue_within_limit(wait, enqueue)
                } else {
                    None
                };
                match queued {
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
        match self.released(model, placement, waiter, wait).await {
            Ok(released) => {
                wait.record_room(released.room);
                Ok(self
                    .decider
                    .placed_attempt(model, placement, *released.plan))
            }
            Err(error) => {
                // Still for the reason for which it waited.
                let error = match &refusal {
                    Some(refusal) if error.code == ErrorCode::NoWorker => {
                        decide::refusal_error(refusal)
                    }
                    _ => error,
                };
                let refusal =
                    refusal.unwrap_or_else(|| no_exclusion(&self.decider, model, placement));
                Err(Rejection { refusal, error })
            }
        }
    }

    /// Waits for the router to release the request. `model` follows the fleet meanwhile.
    async fn released(
        &self,
        model: &mut Arc<ModelView>,
        placement: &PlacementRequest<'_>,
        mut waiter: Waiter,
        wait: &mut WaitRecord,
    ) -> Result<ReleasedRequest, ApiError> {
        let mut changes = self
            .decider
            .waiters
            .models
            .subscribe(&model.id, Some(model));
        loop {
            // `None`: the plan is on its way.
            let reason = waiter.reason();
            wait.begin(self.clock.now(), reason);
            let ends = reason.map(|reason| self.ends(wait, reason));
            tokio::select! {
                biased;
                released = waiter.wait_for_release() => return Ok(released),
                () = self.abort.aborted() => return Err(errors::going_down()),
                () = changes.wait_for_change() => {
                    if let Some(now) = self.fleet.snapshot().model(&model.id) {
                        *model = Arc::clone(now);
                    }
                    self.decider.replace_candidates(model, placement, &waiter, self.busy_budget(wait));
                    // Until it gets new candidates it still waits for the old ones.
                    if let Ok(released) = tokio::time::timeout(BETWEEN_CHANGES, waiter.wait_for_release()).await {
                        return Ok(released);
                    }
                }
                () = self.at(ends) => match waiter.reason() {
                    still if still != reason => {}
                    Some(WaitReason::NoWorker) => return Err(errors::no_worker()),
                    Some(_) => return Err(errors::queue_timeout()),
                    None => {}
                }
            }
        }
    }

    /// Sleeps until `then`; without one forever.
    async fn at(&self, then: Option<Moment>) {
        match then {
            Some(then) => tokio::time::sleep(then.since(self.clock.now())).await,
            None => std::future::pending().await,
        }
    }

    /// Returns when the waiting task gives up. While it waits for a backlog to shrink or for room, the
    /// router binds it in time, unless no target can take it then.
    fn ends(&self, wait: &WaitRecord, reason: WaitReason) -> Moment {
        let limit = match reason {
            WaitReason::Backlog | WaitReason::Room => return wait.deadline + LATE_GRACE,
            WaitReason::Busy => self.busy_limit().unwrap_or_default() + GRACE,
            WaitReason::NoWorker => self.limits.engine_wait_timeout,
        };
        let since = wait.limited_since().unwrap_or_else(|| self.clock.now());
        (since + limit).min(wait.deadline)
    }

    /// Returns the longest wait while all eligible workers are busy; `None`: no wait.
    fn busy_limit(&self) -> Option<Duration> {
        self.limits.enabled.then_some(self.limits.wait)
    }

    /// Returns the wait budget for a busy worker; `None`: no wait, or none left.
    fn busy_budget(&self, wait: &WaitRecord) -> Option<WaitBudget> {
        wait.budget(self.clock.now(), self.busy_limit()?)
    }

    /// Queues the request while no worker is usable; `None`: no such wait is allowed, or none is
    /// left.
    fn enqueue_within_limit(
        &self,
        wait: &WaitRecord,
        enqueue: impl FnOnce(WaitBudget) -> Result<Waiter, QueueLimit>,
    ) -> Option<Result<Waiter, ApiError>> {
        let budget = wait.budget(self.clock.now(), self.limits.engine_wait_timeout)?;
        let tenant = wait.tenant.as_deref();
        Some(enqueue(budget).map_err(|limit| errors::not_queued(limit, tenant)))
    }

    /// Queues a request that has no candidates.
    fn enqueue_without_candidates(
        &self,
        budget: WaitBudget,
        tenant: Option<&Tenant>,
    ) -> Result<Waiter, QueueLimit> {
        self.decider
            .waiters
            .enqueue(self.clock.now(), &without_candidates(budget, tenant))
    }

    fn end_wait(&self, wait: &mut WaitRecord) {
        if let Some(waited) = wait.end(self.clock.now()) {
            self.metrics.record_wait(waited);
        }
    }
}

/// Returns the view of the model that a request names.
pub(crate) fn find_model(snapshot: &Snapshot, id: &str) -> Result<Arc<ModelView>, ApiError> {
    if let Some(model) = snapshot.model(id) {
        return Ok(Arc::clone(model));
    }
    // Workers that have never answered, or are yet to appear, may serve any model: it is not known
    // to be missing.
    if snapshot.workers.is_empty()
        || snapshot
            .workers
            .iter()
            .any(|worker| worker.served.models.is_empty())
    {
        return Err(errors::no_worker());
    }
    Err(errors::model_not_found(id))
}

/// Returns a job without candidates: it only counts as an entry of the queue.
fn without_candidates(patience: WaitBudget, tenant: Option<&Tenant>) -> Job<'_> {
    Job {
        wait_budget: Some(patience),
        tenant: tenant.map(|tenant| decide::job_tenant(tenant, None)),
        ..Job::default()
    }
}

fn is_busy(refusal: &Refusal) -> bool {
    refusal
        .excluded
        .iter()
        .any(|excluded| excluded.reason == ExcludeReason::Busy)
}

/// Returns the refusal of a request that stopped waiting: the router excluded no target.
fn no_exclusion(decider: &Decider, model: &ModelView, placement: &PlacementRequest<'_>) -> Refusal {
    let policy = decider.policies(placement.overrides, model).decode;
    Refusal {
        policy,
        excluded: Vec::new(),
        queue_full: None,
        no_room: None,
        slo_miss: None,
    }
}

#[cfg(test)]
mod tests;
