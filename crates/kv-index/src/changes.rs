//! The change feed: a bounded queue of changes for subscribers.
//!
//! Without a subscriber no change is built or stored. A subscriber that reads too slowly loses the
//! oldest changes and gets an error; the writer never waits.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use kv_blocks::{Namespace, SequenceHash, Target, Tier};

use crate::atomic::Mutex;

/// Consecutive blocks of one chain that entered a tier of a target, or left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockChange {
    /// The holder.
    pub target: Target,
    /// The tier.
    pub tier: Tier,
    /// Kind of the change.
    pub kind: ChangeKind,
    /// Namespace of the blocks.
    pub namespace: Arc<Namespace>,
    /// Blocks of the chain before the first of them.
    pub depth: u32,
    /// The block before the first of them; `None` if they begin a chain.
    pub parent: Option<SequenceHash>,
    /// The blocks, in the order of their chain.
    pub hashes: Vec<SequenceHash>,
    /// Whether a clear of the whole tier, or of the whole stream, removed them.
    pub cleared: bool,
}

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The blocks entered the tier.
    Stored {
        /// Whether the target had them in another tier before.
        elsewhere: bool,
    },
    /// The blocks left the tier.
    Removed {
        /// Whether the target still has them in another tier.
        elsewhere: bool,
    },
}

/// The subscriber read too slowly, and changes were lost: it must start again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "changes were made faster than they were read: {lost} of them are lost, begin with the standing state again"
)]
pub struct LaggedError {
    /// Number of lost changes.
    pub lost: u64,
}

/// Subscription to the changes from its creation on.
///
/// For the whole state and all later changes: subscribe first, then dump
/// ([`crate::KvIndex::dump`]), then apply the changes. Some changes are then applied twice; because
/// they come in order, the last one for a block is right.
#[derive(Debug)]
pub struct ChangeFeed {
    feed: Arc<ChangeLog>,
    next: u64,
}

impl ChangeFeed {
    /// Returns the next changes, at most `most`; empty if there are none yet.
    ///
    /// # Errors
    ///
    /// Some changes were lost. The next call continues after them.
    pub fn take(&mut self, most: usize) -> Result<Vec<Arc<BlockChange>>, LaggedError> {
        let retained = self.feed.retained.lock();
        if self.next < retained.first {
            let lost = retained.first - self.next;
            self.next = retained.first;
            return Err(LaggedError { lost });
        }
        let from = usize::try_from(self.next - retained.first).unwrap_or(usize::MAX);
        let taken: Vec<_> = retained
            .changes
            .iter()
            .skip(from)
            .take(most)
            .cloned()
            .collect();
        self.next += taken.len() as u64;
        Ok(taken)
    }
}

impl Drop for ChangeFeed {
    fn drop(&mut self) {
        if self.feed.followers.fetch_sub(1, Ordering::Relaxed) == 1 {
            let mut retained = self.feed.retained.lock();
            retained.first += retained.changes.len() as u64;
            retained.changes = VecDeque::new();
            retained.bytes = 0;
        }
    }
}

/// The retained changes.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    followers: AtomicUsize,
    retained: Mutex<RetainedChanges>,
}

#[derive(Debug, Default)]
struct RetainedChanges {
    /// Number of the first of `changes`.
    first: u64,
    changes: VecDeque<Arc<BlockChange>>,
    bytes: usize,
}

/// Maximum bytes retained for slow subscribers.
const MOST_BYTES: usize = 16 << 20;
/// Estimated size of a change beside its hashes.
const CHANGE_BYTES: usize = 160;

impl ChangeLog {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            followers: AtomicUsize::new(0),
            retained: Mutex::new(RetainedChanges::default()),
        })
    }

    /// Subscribes from now on. Called with the index's lock held, so that no change is half inside.
    pub(crate) fn subscribe(self: &Arc<Self>) -> ChangeFeed {
        self.followers.fetch_add(1, Ordering::Relaxed);
        let retained = self.retained.lock();
        ChangeFeed {
            feed: Arc::clone(self),
            next: retained.first + retained.changes.len() as u64,
        }
    }

    /// Returns whether there are subscribers.
    pub(crate) fn has_subscribers(&self) -> bool {
        self.followers.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn push(&self, change: BlockChange) {
        let mut retained = self.retained.lock();
        retained.bytes += size(&change);
        retained.changes.push_back(Arc::new(change));
        while retained.bytes > MOST_BYTES
            && let Some(oldest) = retained.changes.pop_front()
        {
            retained.bytes -= size(&oldest);
            retained.first += 1;
        }
    }
}

fn size(change: &BlockChange) -> usize {
    CHANGE_BYTES + change.hashes.len() * size_of::<SequenceHash>()
}
