//! The lease: a request's load, from the decision to the last byte.

use std::sync::Arc;

use kv_blocks::Target;
use routing::ReservationId;

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
    end: LeaseEnd,
    /// The load of the prefill worker until the prompt is computed, if there is one.
    prefill: Option<Box<Lease>>,
}

/// The part of the request that reached the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseEnd {
    /// Its prompt.
    Done,
    /// The attempt failed at the worker.
    Failed,
    /// Nothing was sent.
    Unsent,
}

impl Lease {
    pub(crate) fn new(waiters: Arc<QueueWaiters>, id: ReservationId, target: Target) -> Self {
        Self {
            waiters,
            id,
            target,
            first_token_seen: false,
            end: LeaseEnd::Done,
            prefill: None,
        }
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
        }
    }

    /// Frees the prefill load of a failed prefill; its cache is not expected to hold the prompt.
    pub(crate) fn fail_prefill(&mut self) {
        if let Some(prefill) = self.prefill.take() {
            prefill.fail();
        }
    }

    /// Marks the decode leg as unsent: the request still waits for its prompt.
    pub(crate) fn mark_unsent(&mut self) {
        self.end = LeaseEnd::Unsent;
    }

    /// Marks the request as sent.
    pub(crate) fn mark_sent(&mut self) {
        self.end = LeaseEnd::Done;
    }

    /// Records the end of the prefill; later calls do nothing.
    pub(crate) fn first_token(&mut self) {
        self.finish_prefill(true);
        if !self.first_token_seen {
            self.first_token_seen = true;
            self.waiters.first_token(self.id);
        }
    }

    /// Ends a request that was sent to no worker: frees every load, and drops what the caches were
    /// expected to hold.
    pub(crate) fn withdraw(mut self) {
        self.mark_unsent();
        if let Some(prefill) = self.prefill.take() {
            prefill.withdraw();
        }
    }

    /// Ends a failed attempt: frees the load, and drops what the worker's cache was expected to
    /// hold.
    pub(crate) fn fail(mut self) {
        self.end = LeaseEnd::Failed;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match self.end {
            LeaseEnd::Done => self.waiters.done(self.id),
            LeaseEnd::Failed => self.waiters.failed(self.id),
            LeaseEnd::Unsent => self.waiters.withdraw(self.id),
        }
    }
}
