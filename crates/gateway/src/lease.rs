//! The lease: a request's load, from the decision to the last byte; and the decision that it comes
//! with.

use std::sync::Arc;

use kv_blocks::Target;
use routing::{AttemptEnd, Decision, PrefillLeg, PrefixRoutedRequest, ReportedWork, ReservationId};

use crate::queue_waiters::QueueWaiters;

/// The reservation of one attempt. Dropping it frees the load on every path: the end of a reply, an
/// error, a client that hung up, a panic. Only the drop frees it, so it cannot be forgotten.
#[derive(Debug)]
#[must_use = "dropping the lease frees the load"]
pub(crate) struct Lease {
    waiters: Arc<QueueWaiters>,
    id: ReservationId,
    target: Target,
    first_token_seen: bool,
    sent: bool,
    /// The attempt's result, if it was sent.
    end: AttemptEnd,
    /// The load of the prefill worker until the prompt is computed, if there is one.
    prefill: Option<Box<Lease>>,
    /// Its place in the figures of routing by prefix, which its drop ends.
    _prefix_routed: Option<PrefixRoutedRequest>,
}

/// A decision with its load already counted, and the guard that frees it.
#[derive(Debug)]
pub(crate) struct PlacedAttempt {
    pub(crate) decision: Box<Decision>,
    pub(crate) lease: Lease,
    /// The prefill leg, if another worker computes the prompt; its load is in the lease.
    pub(crate) prefill: Option<PrefillLeg>,
    /// The request's place in the engine's own queue.
    pub(crate) engine_priority: i64,
}

impl Lease {
    pub(crate) fn new(waiters: Arc<QueueWaiters>, id: ReservationId, target: Target) -> Self {
        Self {
            waiters,
            id,
            target,
            first_token_seen: false,
            sent: true,
            // Of a request that is dropped without an end.
            end: AttemptEnd::Cancelled,
            prefill: None,
            _prefix_routed: None,
        }
    }

    /// Adds the request's place in the figures of routing by prefix, for as long as the load.
    pub(crate) fn with_prefix_routed(mut self, request: Option<PrefixRoutedRequest>) -> Self {
        self._prefix_routed = request;
        self
    }

    /// Adds the load of the prefill worker.
    pub(crate) fn with_prefill(mut self, prefill: Option<Self>) -> Self {
        self.prefill = prefill.map(Box::new);
        self
    }

    /// Returns the target that has the load.
    pub(crate) fn target(&self) -> Target {
        self.target
    }

    /// Frees the prefill load: the prompt is computed, or never will be. Later calls do nothing.
    pub(crate) fn finish_prefill(&mut self, computed: bool) {
        if let Some(mut prefill) = self.prefill.take().filter(|_| computed) {
            prefill.first_token();
            prefill.end = AttemptEnd::Complete;
        }
    }

    /// Frees the prefill load of a failed prefill; its cache is not expected to hold the prompt.
    pub(crate) fn fail_prefill(&mut self, end: AttemptEnd) {
        if let Some(prefill) = self.prefill.take() {
            prefill.end_with(end);
        }
    }

    /// Marks the decode leg as unsent: the request still waits for its prompt.
    pub(crate) fn mark_unsent(&mut self) {
        self.sent = false;
    }

    /// Marks the request as sent.
    pub(crate) fn mark_sent(&mut self) {
        self.sent = true;
    }

    /// Returns whether the request was sent to the target that has the load.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent
    }

    /// Records the end of the prefill; later calls do nothing.
    pub(crate) fn first_token(&mut self) {
        self.finish_prefill(true);
        if !self.first_token_seen {
            self.first_token_seen = true;
            self.waiters.first_token(self.id);
        }
    }

    /// Records the tokens that the worker reported; its tenant is charged with them.
    pub(crate) fn record_work(&self, reported: ReportedWork) {
        self.waiters.record_work(self.id, reported);
    }

    /// Ends a request that was sent to no worker: frees every load, and drops what the caches were
    /// expected to hold.
    pub(crate) fn withdraw(mut self) {
        self.mark_unsent();
        if let Some(prefill) = self.prefill.take() {
            prefill.withdraw();
        }
    }

    /// Records the result with which the attempt will end.
    pub(crate) fn set_end(&mut self, end: AttemptEnd) {
        self.end = end;
    }

    /// Ends the attempt with this result and frees the load.
    pub(crate) fn end_with(mut self, end: AttemptEnd) {
        self.set_end(end);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.sent {
            self.waiters.end_attempt(self.id, self.end);
        } else {
            self.waiters.withdraw(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use kv_blocks::{DpRank, WorkerId};

    use super::*;
    use crate::request::test_gateway::TestGateway;

    /// The load of a decision for one of these workers.
    fn lease(test: &TestGateway, worker: u32) -> Lease {
        test.place(&[worker])
    }

    fn in_flight(test: &TestGateway, worker: u32) -> u32 {
        let target = Target {
            worker: WorkerId(worker),
            rank: DpRank(0),
        };
        test.router.load(target).in_flight
    }

    #[tokio::test]
    async fn every_end_of_a_lease_frees_its_load_once() {
        let test = TestGateway::new();
        let ends: [fn(Lease); 4] = [
            drop,
            |lease| lease.end_with(AttemptEnd::Failed),
            Lease::withdraw,
            |mut lease| {
                lease.first_token();
                lease.first_token();
            },
        ];
        for end in ends {
            let (first, other) = (lease(&test, 1), lease(&test, 1));
            assert_eq!(
                (in_flight(&test, 1), test.router.open_reservations()),
                (2, 2)
            );
            end(first);
            assert_eq!(
                (in_flight(&test, 1), test.router.open_reservations()),
                (1, 1)
            );
            drop(other);
            assert_eq!(
                (in_flight(&test, 1), test.router.open_reservations()),
                (0, 0)
            );
        }
    }

    #[tokio::test]
    async fn the_load_of_a_prefill_is_freed_with_its_prompt_or_with_the_request() {
        let test = TestGateway::new();
        type End = fn(&mut Lease);
        let ends: [(End, u32); 5] = [
            (|_| {}, 1),
            (|lease| lease.finish_prefill(true), 0),
            (|lease| lease.finish_prefill(false), 0),
            (|lease| lease.fail_prefill(AttemptEnd::Failed), 0),
            (Lease::first_token, 0),
        ];
        for (end, left) in ends {
            let prefill = lease(&test, 2);
            let mut lease = lease(&test, 1).with_prefill(Some(prefill));
            end(&mut lease);
            assert_eq!((in_flight(&test, 1), in_flight(&test, 2)), (1, left));
            lease.finish_prefill(true);
            drop(lease);
            assert_eq!(test.router.open_reservations(), 0);
        }
        let prefill = lease(&test, 2);
        lease(&test, 1).with_prefill(Some(prefill)).withdraw();
        assert_eq!(test.router.open_reservations(), 0);
    }
}
