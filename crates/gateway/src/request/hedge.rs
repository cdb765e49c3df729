//! Stage 5, where another worker is asked too because the first one takes its time (`request.hedge_after`).
//!
//! The first that answers counts; the other's connection is closed, and with it its work. The second try comes out of the
//! budget of retries: where many are slow, asking everybody twice would make all of them slower.

use std::sync::Arc;

use bytes::Bytes;
use fleet::{ModelView, WorkerView};
use futures_util::future::{Either, select};
use kv_blocks::{Moment, Target};
use prometheus_client::registry::Registry;
use routing::Pin;

use super::{
    accept::AcceptedRequest,
    decide::{self, PlacedAttempt, PlacementOutcome, PlacementRequest},
    dispatch::{self, AttemptFailure, CommittedReply},
    record::RequestGuard,
};
use crate::{Gateway, metrics::ResultCounters};

/// Requests that a second worker was asked for, by who answered.
pub(crate) fn results(registry: &mut Registry) -> ResultCounters {
    let help = "Requests that a second worker was asked for because the first took its time, by who answered";
    ResultCounters::registered(
        registry,
        "warmroute_hedged_requests",
        help,
        &["first", "second", "nobody"],
    )
}

/// Who was asked.
#[derive(Clone, Debug)]
pub(super) struct HedgeTarget {
    pub(super) worker: Arc<WorkerView>,
    pub(super) target: Target,
}

/// What came of the attempt, from whom, and who else failed it.
#[derive(Debug)]
pub(super) struct HedgeOutcome {
    pub(super) result: Result<CommittedReply, AttemptFailure>,
    pub(super) by: HedgeTarget,
    pub(super) failed: Option<Pin>,
}

/// One attempt at `first`, and at another worker where that takes too long and the request `may_ask_two`.
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
        // One failed: the other is all there is.
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

/// A place on another worker that can begin at once; one that would have to be waited for is no help.
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
    // Two workers for the prompt and two for the reply would be four at once.
    let Some(found) = found.filter(|_| placed.prefill.is_none()) else {
        placed.lease.withdraw();
        return None;
    };
    let worker = Arc::clone(&found.worker);
    Some((*placed, HedgeTarget { worker, target }))
}
