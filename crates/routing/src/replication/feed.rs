//! The queue of a router's own changes, from which the transport takes them.

use std::{fmt, mem, sync::Arc};

use super::change::{FeedState, LoadChange, LoadDigest};

/// Called when the feed is no longer empty.
pub(crate) type FeedWaker = Arc<dyn Fn() + Send + Sync>;

/// Changes that the transport has not taken yet.
pub(crate) struct LoadFeed {
    /// At most `limit` changes; further ones are dropped, and `lost` is set.
    changes: Vec<LoadChange>,
    limit: usize,
    lost: bool,
    waker: FeedWaker,
    /// The feed was empty and no longer is.
    must_wake: bool,
}

impl fmt::Debug for LoadFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadFeed")
            .field("changes", &self.changes.len())
            .field("limit", &self.limit)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

impl LoadFeed {
    pub(crate) fn new(limit: usize, waker: FeedWaker) -> Self {
        Self {
            changes: Vec::new(),
            limit,
            lost: false,
            waker,
            must_wake: false,
        }
    }

    pub(super) fn push(&mut self, change: LoadChange) {
        if self.changes.len() >= self.limit {
            self.lost = true;
            return;
        }
        self.must_wake |= self.changes.is_empty();
        self.changes.push(change);
    }

    /// Returns the waker if it must be called.
    pub(crate) fn take_waker(&mut self) -> Option<FeedWaker> {
        mem::take(&mut self.must_wake).then(|| Arc::clone(&self.waker))
    }

    /// Moves the changes to the end of `into`; an empty `into` keeps its capacity for later ones.
    pub(super) fn take(&mut self, into: &mut Vec<LoadChange>, digest: LoadDigest) -> FeedState {
        if into.is_empty() {
            mem::swap(&mut self.changes, into);
        } else {
            into.append(&mut self.changes);
        }
        FeedState {
            lost: mem::take(&mut self.lost),
            digest,
        }
    }
}
