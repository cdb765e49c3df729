//! A request's load, from the decision to the last byte.

use std::sync::Arc;

use kv_blocks::Target;
use net::Clock;
use routing::{ReservationId, Router};

/// The reservation of one attempt. Dropping it frees the load, whatever path led there: the end of a reply, an error,
/// a client that hung up, a panic. There is no other way to free it and no way to forget it.
#[derive(Debug)]
#[must_use = "dropping the lease frees the load"]
pub(crate) struct Lease {
    router: Arc<Router>,
    clock: Clock,
    id: ReservationId,
    target: Target,
    first_token_seen: bool,
    failed: bool,
}

impl Lease {
    pub(crate) fn new(router: Arc<Router>, clock: Clock, id: ReservationId, target: Target) -> Self {
        Self { router, clock, id, target, first_token_seen: false, failed: false }
    }

    /// Where the load is.
    pub(crate) fn target(&self) -> Target {
        self.target
    }

    /// The prefill is over; said once, later calls do nothing.
    pub(crate) fn first_token(&mut self) {
        if !self.first_token_seen {
            self.first_token_seen = true;
            self.router.first_token(self.clock.now(), self.id);
        }
    }

    /// The attempt came to nothing: frees the load, and with it what was expected of the worker's cache.
    pub(crate) fn fail(mut self) {
        self.failed = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let now = self.clock.now();
        if self.failed { self.router.failed(now, self.id) } else { self.router.done(now, self.id) }
    }
}
