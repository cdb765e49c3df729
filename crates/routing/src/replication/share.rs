//! This router's own changes, for its peers.

use std::sync::Arc;

use kv_blocks::Moment;

use super::{
    change::{FeedState, LoadChange, LoadDigest, LoadPage},
    feed::LoadFeed,
};
use crate::{ReservationId, Router, state::RouterState};

impl Router {
    /// Starts the feed, with at most `limit` queued changes: further ones are lost, and the peers
    /// then need every page. `waker` is called whenever the feed is no longer empty, outside the
    /// router's lock; it must not call the router.
    pub fn share_load(&self, limit: usize, waker: Arc<dyn Fn() + Send + Sync>) {
        self.state.lock().feed = Some(LoadFeed::new(limit.max(1), waker));
    }

    /// Moves the queued changes to the end of `into`, in their order. An empty `into` with capacity
    /// is reused for later changes.
    pub fn take_load_changes(&self, into: &mut Vec<LoadChange>) -> FeedState {
        self.state.lock().take_changes(into)
    }

    /// Does so, and returns this router's own open reservations with ids after `after`, at most
    /// `most`, as they are after these changes.
    pub fn take_load_page(
        &self,
        now: Moment,
        after: ReservationId,
        most: usize,
        into: &mut Vec<LoadChange>,
    ) -> (LoadPage, FeedState) {
        let state = &mut *self.state.lock();
        let feed = state.take_changes(into);
        let loads = state.ledger.open_loads(now, after, most.max(1));
        let is_full = loads.len() == most.max(1);
        let page = LoadPage {
            after,
            through: loads.last().filter(|_| is_full).map(|last| last.id),
            loads,
        };
        (page, feed)
    }

    /// Returns the digest of this router's own open reservations.
    pub fn own_load_digest(&self) -> LoadDigest {
        self.state.lock().ledger.own_digest()
    }
}

impl RouterState {
    /// Queues a change for the peers, if there is a feed.
    pub(crate) fn share(&mut self, change: impl FnOnce() -> LoadChange) {
        if let Some(feed) = &mut self.feed {
            feed.push(change());
        }
    }

    fn take_changes(&mut self, into: &mut Vec<LoadChange>) -> FeedState {
        let digest = self.ledger.own_digest();
        match &mut self.feed {
            Some(feed) => feed.take(into, digest),
            None => FeedState {
                lost: false,
                digest,
            },
        }
    }
}
