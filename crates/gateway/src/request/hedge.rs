//! Hedging: a second worker gets the request because the first is slow (`request.hedge_after`).
//!
//! The first to answer wins; the other's connection is closed, which ends its work. A hedge uses
//! the retry budget: where many workers are slow, sending everything twice would slow all of them
//! down.

use std::sync::Arc;

use bytes::Bytes;
use fleet::{ModelView, WorkerView};
use futures_util::future::{Either, select};
use kv_blocks::{Moment, Target};
use prometheus_client::registry::Registry;
use resilience::OutcomeCounters;
use routing::Pin;

use super::{
    accept::AcceptedRequest,
    decide::{self, PlacedAttempt, PlacementOutcome, PlacementRequest},
    dispatch::{self, AttemptFailure, CommittedReply},
    record::RequestGuard,
};
use crate::Gateway;

/// Registers the counter of hedges by winner.
pub(crate) fn results(registry: &mut Registry) -> OutcomeCounters {
    let help = "Requests that a second worker was asked for because the first took its time, by who answered";
    OutcomeCounters::registered(
        registry,
        "warmroute_hedged_requests",
        help,
        &["first", "second", "nobody"],
    )
}

/// A worker that got the request.
#[derive(Clone, Debug)]
pub(super) struct HedgeTarget {
    pub(super) worker: Arc<WorkerView>,
    pub(super) target: Target,
}

/// The result of the attempt, its worker, and the other one if it failed too.
#[derive(Debug)]
pub(super) struct HedgeOutcome {
    pub(super) result: Result<CommittedReply, AttemptFailure>,
    pub(super) by: HedgeTarget,
    pub(super) failed: Option<Pin>,
}

/// Makes one attempt at `first`, and at another worker if that is slow and the request
/// `may_ask_two`.
#[expect(clippy::too_many_arguments, reason = "an attempt is all of this")]
pub(super) async fn attempt(
    gateway: &Gateway,
    (call, body): (&AcceptedRequest, Bytes),
    may_ask_two: bool,
    model: &ModelView,
    placement: &PlacementRequest<'_>,
    first: HedgeTarget,
    deadline: Moment,
    settle: &mut RequestGuard,
) -> HedgeOutcome {
    let one = Box::pin(dispatch::attempt(
        gateway,
        call,
        body,
        &first.worker,
        first.target,
        deadline,
    ));
    let after = gateway
        .rules
        .hedge_after
        .filter(|_| may_ask_two && placement.pin.is_none());
    let Some(after) = after else {
        return HedgeOutcome {
            result: one.await,
            by: first.clone(),
            failed: None,
        };
    };
    let hedging = &gateway.hedging;
    let one = match select(one, Box::pin(tokio::time::sleep(after))).await {
        Either::Left((result, _)) => {
            return HedgeOutcome {
                result,
                by: first.clone(),
                failed: None,
            };
        }
        Either::Right(((), one)) => one,
    };
    let permit = gateway.retry_permit();
    let second = permit
        .as_ref()
        .and_then(|_| elsewhere(gateway, model, placement, &first));
    let Some((placed, second)) = second else {
        return HedgeOutcome {
            result: one.await,
            by: first.clone(),
            failed: None,
        };
    };
    let since = gateway.clock.now();
    let other = Box::pin(dispatch::attempt(
        gateway,
        call,
        call.body.bytes().clone(),
        &second.worker,
        second.target,
        deadline,
    ));
    let pin = |asked: &HedgeTarget| {
        Some(Pin {
            worker: asked.target.worker,
            rank: None,
        })
    };
    match select(one, other).await {
        Either::Left((Ok(committed), _)) => {
            hedging.count("first");
            settle.record_hedge_lost(placed, since, None);
            HedgeOutcome {
                result: Ok(committed),
                by: first.clone(),
                failed: None,
            }
        }
        Either::Right((Ok(committed), _)) => {
            hedging.count("second");
            settle.record_hedge_won(placed, since, None);
            HedgeOutcome {
                result: Ok(committed),
                by: second.clone(),
                failed: None,
            }
        }
        // One failed: the result of the other counts.
        Either::Left((Err(failure), other)) => {
            settle.record_hedge_won(placed, since, Some(&failure));
            let result = other.await;
            hedging.count(if result.is_ok() { "second" } else { "nobody" });
            HedgeOutcome {
                result,
                by: second.clone(),
                failed: pin(&first),
            }
        }
        Either::Right((Err(failure), one)) => {
            settle.record_hedge_lost(placed, since, Some(&failure));
            let result = one.await;
            hedging.count(if result.is_ok() { "first" } else { "nobody" });
            let failed = pin(&second);
            HedgeOutcome {
                result,
                by: first.clone(),
                failed,
            }
        }
    }
}

/// Places the request on another worker that can start it at once; a wait would defeat the purpose.
fn elsewhere(
    gateway: &Gateway,
    model: &ModelView,
    placement: &PlacementRequest<'_>,
    first: &HedgeTarget,
) -> Option<(PlacedAttempt, HedgeTarget)> {
    let mut failed = placement.failed.to_vec();
    failed.push(Pin {
        worker: first.target.worker,
        rank: None,
    });
    let worded_for = Some(&*first.worker);
    let other = PlacementRequest {
        salt: placement.salt.clone(),
        pin: None,
        failed: &failed,
        worded_for,
        ..*placement
    };
    let PlacementOutcome::Placed(placed) = decide::place(gateway, model, &other, None) else {
        return None;
    };
    let target = placed.lease.target();
    let found = model
        .candidates
        .iter()
        .find(|candidate| candidate.target == target);
    // With prefill and decode workers twice, a hedge would occupy four workers at once.
    let Some(found) = found.filter(|_| placed.prefill.is_none()) else {
        placed.lease.withdraw();
        return None;
    };
    let worker = Arc::clone(&found.worker);
    Some((*placed, HedgeTarget { worker, target }))
}
