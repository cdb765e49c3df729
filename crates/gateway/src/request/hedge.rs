//! Hedging: a second worker gets the request because the first is slow (`request.hedge_after`).
//!
//! The first to answer wins; the other's connection is closed, which ends its work. A hedge uses
//! the retry budget: where many workers are slow, sending everything twice would slow all of them
//! down.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fleet::ModelView;
use futures_util::future::{Either, select};
use kv_blocks::Moment;
use prometheus_client::registry::Registry;
use resilience::OutcomeCounters;
use routing::Pin;

use super::{
    accept::AcceptedRequest,
    attempt_failure::AttemptFailure,
    decide::{Decider, PlacementOutcome, PlacementRequest},
    dispatch::{AttemptTarget, CommittedReply},
    record::RequestGuard,
    send::{SendResult, SendStage},
};
use crate::{lease::PlacedAttempt, retry::Retries};

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

/// The parts and the request of an attempt that may be hedged.
#[derive(Debug)]
pub(super) struct HedgedAttempt<'a> {
    pub(super) stage: &'a SendStage,
    pub(super) decider: &'a Decider,
    pub(super) retries: &'a Retries,
    pub(super) call: &'a AcceptedRequest,
    pub(super) model: &'a ModelView,
    pub(super) placement: PlacementRequest<'a>,
    pub(super) deadline: Moment,
    /// Time without a first byte after which the hedge starts.
    pub(super) after: Duration,
}

impl HedgedAttempt<'_> {
    /// Makes one attempt at `first` with `body`, and at another worker if that is slow.
    pub(super) async fn run(
        &self,
        first: AttemptTarget,
        body: Bytes,
        guard: &mut RequestGuard,
    ) -> SendResult {
        let one = Box::pin(self.attempt(&first, body));
        let raced = select(one, Box::pin(tokio::time::sleep(self.after))).await;
        let one = match raced {
            Either::Left((result, _)) => return SendResult::of(result, first.clone()),
            Either::Right(((), one)) => one,
        };
        let permit = self.retries.permit();
        let second = permit.as_ref().and_then(|_| self.place_hedge(&first));
        let Some((placed, mut second)) = second else {
            let result = one.await;
            return SendResult::of(result, first.clone());
        };
        second.span = guard.begin_hedge(placed);
        let two = Box::pin(self.attempt(&second, self.call.body.bytes().clone()));
        let results = &self.stage.hedges;
        match select(one, two).await {
            Either::Left((Ok(committed), _)) => {
                results.count("first");
                guard.record_hedge_lost(None);
                SendResult::of(Ok(committed), first.clone())
            }
            Either::Right((Ok(committed), _)) => {
                results.count("second");
                guard.record_hedge_won(None);
                SendResult::of(Ok(committed), second.clone())
            }
            // One failed: the result of the other counts.
            Either::Left((Err(failure), two)) => {
                guard.record_hedge_won(Some(&failure));
                let result = two.await;
                results.count(if result.is_ok() { "second" } else { "nobody" });
                SendResult::beside_failure(result, second.clone(), first.clone())
            }
            Either::Right((Err(failure), one)) => {
                guard.record_hedge_lost(Some(&failure));
                let result = one.await;
                results.count(if result.is_ok() { "first" } else { "nobody" });
                SendResult::beside_failure(result, first.clone(), second.clone())
            }
        }
    }

    async fn attempt(
        &self,
        to: &AttemptTarget,
        body: Bytes,
    ) -> Result<CommittedReply, AttemptFailure> {
        self.stage
            .dispatcher
            .attempt(self.call, body, to, self.deadline)
            .await
    }

    /// Places the request on another worker that can start it at once; a wait would defeat the
    /// purpose.
    fn place_hedge(&self, first: &AttemptTarget) -> Option<(PlacedAttempt, AttemptTarget)> {
        let mut failed = self.placement.failed.to_vec();
        failed.push(worker_pin(first));
        let other = PlacementRequest {
            failed: &failed,
            same_body_as: Some(&*first.worker),
            ..self.placement
        };
        let PlacementOutcome::Placed(placed) = self.decider.place(self.model, &other, None) else {
            return None;
        };
        let target = placed.lease.target();
        let found = self
            .model
            .candidates
            .iter()
            .find(|candidate| candidate.target == target);
        // With prefill and decode workers twice, a hedge would occupy four workers at once.
        let Some(found) = found.filter(|_| placed.prefill.is_none()) else {
            placed.lease.withdraw();
            return None;
        };
        let worker = Arc::clone(&found.worker);
        let second = AttemptTarget {
            worker,
            target,
            span: None,
            kv_source: None,
        };
        Some((placed, second))
    }
}

/// Returns a pin to all ranks of a worker: a failure is the process's, not the rank's.
pub(super) fn worker_pin(at: &AttemptTarget) -> Pin {
    Pin {
        worker: at.target.worker,
        rank: None,
    }
}

#[cfg(test)]
mod tests;
