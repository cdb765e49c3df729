//! A request's load, from the decision to the last byte.

use std::sync::Arc;

use kv_blocks::Target;
use routing::ReservationId;

use crate::queue_waiters::QueueWaiters;

/// The reservation of one attempt. Dropping it frees the load, whatever path led there: the end of a reply, an error,
/// a client that hung up, a panic. There is no other way to free it and no way to forget it.
#[derive(Debug)]
#[must_use = "dropping the lease frees the load"]
pub(crate) struct Lease {
    waiters: Arc<QueueWaiters>,
    id: ReservationId,
    target: Target,
    first_token_seen: bool,
    end: LeaseEnd,
    /// The load where the prompt is computed, until it is, if that is elsewhere.
    prefill: Option<Box<Lease>>,
}

/// What the worker had of the request when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseEnd {
    /// Its prompt.
    Done,
    /// Nothing it took.
    Failed,
    /// Nothing that was sent.
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

    /// The same, with the load of whoever computes the prompt.
    pub(crate) fn with_prefill(mut self, prefill: Option<Self>) -> Self {
        self.prefill = prefill.map(Box::new);
        self
    }

    /// Where the load is.
    pub(crate) fn target(&self) -> Target {
        self.target
    }

    /// The prompt is computed elsewhere, or never will be: that load is free. Later calls do nothing.
    pub(crate) fn finish_prefill(&mut self, computed: bool) {
        if let Some(mut prefill) = self.prefill.take().filter(|_| computed) {
            prefill.first_token();
        }
    }

    /// Whoever was to compute the prompt did not take it: that load is free, and nothing is expected of that cache.
    pub(crate) fn fail_prefill(&mut self) {
        if let Some(prefill) = self.prefill.take() {
            prefill.fail();
        }
    }

    /// The request waits for its prompt: nothing was sent here yet.
    pub(crate) fn mark_unsent(&mut self) {
        self.end = LeaseEnd::Unsent;
    }

    /// The request is on its way.
    pub(crate) fn mark_sent(&mut self) {
        self.end = LeaseEnd::Done;
    }

    /// The prefill is over; said once, later calls do nothing.
    pub(crate) fn first_token(&mut self) {
        self.finish_prefill(true);
        if !self.first_token_seen {
            self.first_token_seen = true;
            self.waiters.first_token(self.id);
        }
    }

    /// Nothing is sent after all, to nobody: frees every load, and with it what was expected of the caches.
    pub(crate) fn withdraw(mut self) {
        self.mark_unsent();
        if let Some(prefill) = self.prefill.take() {
            prefill.withdraw();
        }
    }

    /// The attempt came to nothing: frees the load, and with it what was expected of the worker's cache.
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
