//! Stage 4, where nobody can begin yet: the request waits, and is decided again when that may have changed.
//!
//! It waits for one of three things: a target that can begin (the router holds it and says when), a worker below the busy
//! threshold, a worker at all. Whatever it waits for, it leaves when its time is over, when the client does (its task is
//! dropped, and with it seat and ticket) and when the router goes down.

use std::{sync::Arc, time::Duration};

use dialect::{ApiError, ErrorCode};
use fleet::{ModelView, Snapshot};
use kv_blocks::{Moment, Target};
use routing::{ExcludeReason, Patience, Refusal, receipt::Hold};

use super::{
    decide::{self, Place, Placed, Placement},
    dispatch,
    prefill::Policies,
};
use crate::{Gateway, desk::Waiter, lobby::Seat};

/// How often a request that waits looks whether the fleet is another one.
const LOOK: Duration = Duration::from_millis(250);
/// When to come back if too many wait.
const FULL_RETRY_S: u32 = 1;

/// What one request has waited.
#[derive(Debug)]
pub(crate) struct Wait {
    /// Bytes kept for it.
    bytes: u64,
    /// No answer is waited for longer than this.
    deadline: Moment,
    begun: Option<(Moment, Seat)>,
    told: Hold,
}

/// A request that nobody gets.
#[derive(Debug)]
pub(crate) struct TurnedAway {
    pub(crate) refusal: Refusal,
    pub(crate) error: ApiError,
}

impl Wait {
    pub(crate) fn new(bytes: usize, deadline: Moment) -> Self {
        Self { bytes: bytes as u64, deadline, begun: None, told: Hold::default() }
    }

    /// For the receipt: how long the request waited, and for what at last.
    pub(crate) fn told(&self) -> Hold {
        self.told
    }

    /// Until when it may wait for this; `Err`: it may not begin to, because too many do.
    fn until(&mut self, gateway: &Gateway, reason: &'static str, limit: Duration) -> Result<Moment, ApiError> {
        let since = match &self.begun {
            Some((since, _)) => *since,
            None => {
                let seat = gateway.lobby.enter(self.bytes).ok_or_else(queue_full)?;
                let now = gateway.clock.now();
                self.begun = Some((now, seat));
                now
            }
        };
        self.told.reason = Some(reason);
        Ok((since + limit).min(self.deadline))
    }

    /// The wait is over, whatever ended it.
    fn over(&mut self, gateway: &Gateway) {
        if let Some((since, _seat)) = self.begun.take() {
            let waited = gateway.clock.now().since(since);
            self.told.held_ms = waited.as_secs_f64() * 1e3;
            gateway.metrics.waited(waited);
        }
    }

    /// How long the router may hold the request.
    fn patience(&self, gateway: &Gateway) -> Option<Patience> {
        let limit = gateway.lobby.rules().busy?;
        let now = gateway.clock.now();
        let waited = self.begun.as_ref().map_or(Duration::ZERO, |(since, _)| now.since(*since));
        let limit = limit.saturating_sub(waited).min(self.deadline.since(now));
        (limit > Duration::ZERO).then_some(Patience { limit, waited, bytes: self.bytes })
    }
}

/// The view of a model that a request names. Where workers may serve it that have not answered yet, they are waited for.
pub(crate) async fn model(gateway: &Gateway, id: &str, wait: &mut Wait) -> Result<Arc<ModelView>, ApiError> {
    let found = loop {
        let error = match gateway.model(&gateway.fleet.snapshot(), id) {
            Err(error) if error.code == ErrorCode::NoWorker => error,
            known => break known,
        };
        match until_anybody(gateway, wait) {
            None => break Err(error),
            Some(Err(full)) => break Err(full),
            Some(Ok(until)) => {
                if let Err(error) = look_again(gateway, until, || error).await {
                    break Err(error);
                }
            }
        }
    };
    if found.is_err() {
        wait.over(gateway);
    }
    found
}

/// Chooses a target and counts the load there, now or as soon as somebody can take the request. `model` is what is known
/// of the workers when that was decided. A request that `may_wait` not gets its answer at once.
pub(crate) async fn place(
    gateway: &Gateway,
    model: &mut Arc<ModelView>,
    placement: &Placement<'_>,
    may_wait: bool,
    wait: &mut Wait,
) -> Result<Placed, TurnedAway> {
    let placed = loop {
        let patience = wait.patience(gateway).filter(|_| may_wait);
        let refusal = match decide::place(gateway, model, placement, patience) {
            Place::Found(placed) => break Ok(*placed),
            Place::Held(waiter) => match held(gateway, model, waiter, wait).await {
                Ok(Some(released)) => break Ok(decide::placed(gateway, model, placement, *released.plan)),
                Ok(None) => {
                    refresh(gateway, model);
                    continue;
                }
                Err(error) => break Err(TurnedAway { refusal: nobody(gateway, model, placement), error }),
            },
            Place::Refused(refusal) if refusal.queue_full => {
                break Err(TurnedAway { refusal, error: queue_full() });
            }
            Place::Refused(refusal) => refusal,
        };
        let until = if is_busy(&refusal) {
            let limit = gateway.lobby.rules().busy.filter(|_| may_wait);
            limit.map(|limit| wait.until(gateway, "busy", limit))
        } else if may_wait {
            until_anybody(gateway, wait)
        } else {
            None
        };
        let looked = match until {
            None => Err(decide::refusal_error(&refusal)),
            Some(Err(full)) => Err(full),
            Some(Ok(until)) => {
                let over = || if is_busy(&refusal) { timed_out() } else { dispatch::no_worker() };
                look_again(gateway, until, over).await
            }
        };
        if let Err(error) = looked {
            break Err(TurnedAway { refusal, error });
        }
        refresh(gateway, model);
    };
    wait.over(gateway);
    placed
}

/// Waits for the router's word; `None`: other workers can take the request by now.
async fn held(
    gateway: &Gateway,
    model: &ModelView,
    mut waiter: Waiter,
    wait: &mut Wait,
) -> Result<Option<routing::Released>, ApiError> {
    wait.until(gateway, "backlog", Duration::ZERO)?;
    let mut looks = tokio::time::interval(LOOK);
    looks.reset();
    loop {
        tokio::select! {
            biased;
            released = waiter.released() => return Ok(Some(released)),
            () = gateway.cut.thrown() => return Err(going_down()),
            _ = looks.tick() => {
                if gateway.fleet.snapshot().model(&model.id).is_some_and(|now| !targets(now).eq(targets(model))) {
                    return Ok(None);
                }
            }
        }
    }
}

fn targets(model: &ModelView) -> impl Iterator<Item = Target> {
    model.candidates.iter().map(|candidate| candidate.target)
}

/// Sleeps for a moment, or says why there is no use in it.
async fn look_again(gateway: &Gateway, until: Moment, over: impl FnOnce() -> ApiError) -> Result<(), ApiError> {
    let left = until.since(gateway.clock.now());
    if left.is_zero() {
        return Err(over());
    }
    tokio::select! {
        () = tokio::time::sleep(LOOK.min(left)) => Ok(()),
        () = gateway.cut.thrown() => Err(going_down()),
    }
}

/// Until when any worker at all is waited for; `None`: not at all.
fn until_anybody(gateway: &Gateway, wait: &mut Wait) -> Option<Result<Moment, ApiError>> {
    let limit = gateway.lobby.rules().nobody;
    (!limit.is_zero()).then(|| wait.until(gateway, "no_worker", limit))
}

/// Workers may have gone or come back since.
fn refresh(gateway: &Gateway, model: &mut Arc<ModelView>) {
    let snapshot: Arc<Snapshot> = gateway.fleet.snapshot();
    if let Some(now) = snapshot.model(&model.id) {
        *model = Arc::clone(now);
    }
}

fn is_busy(refusal: &Refusal) -> bool {
    refusal.excluded.iter().any(|excluded| excluded.reason == ExcludeReason::Busy)
}

/// The refusal of a request that gave up: the router had refused nobody.
fn nobody(gateway: &Gateway, model: &ModelView, placement: &Placement<'_>) -> Refusal {
    let policy = Policies::of(gateway, placement.overrides, model).decode;
    Refusal { policy, excluded: Vec::new(), queue_full: false }
}

fn queue_full() -> ApiError {
    let message = "too many requests wait for a worker (queue.max_entries, queue.max_bytes): try again";
    ApiError::new(ErrorCode::QueueFull, message).with_retry_after(FULL_RETRY_S)
}

fn timed_out() -> ApiError {
    let message = "every worker that could take the request stayed above the busy threshold (queue.wait): try again";
    ApiError::new(ErrorCode::QueueTimeout, message).with_retry_after(decide::BUSY_RETRY_S)
}

fn going_down() -> ApiError {
    ApiError::new(ErrorCode::Draining, "the router is going down, and the request was still waiting: try again")
        .with_retry_after(1)
}
