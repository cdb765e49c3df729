//! What changed, for those who follow along: a bounded feed.
//!
//! Nothing is put together and nothing kept while nobody follows. Whoever reads too slowly loses the beginning and is told
//! so; the writer never waits.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use kv_blocks::{Namespace, SequenceHash, Target, Tier};

use crate::atomic::Mutex;

/// Consecutive blocks of one chain that came into a tier of a target, or left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockChange {
    /// Whose they are.
    pub target: Target,
    /// The tier.
    pub tier: Tier,
    /// What happened.
    pub kind: ChangeKind,
    /// Of which namespace they are.
    pub namespace: Arc<Namespace>,
    /// Blocks of their chain before the first of them.
    pub depth: u32,
    /// The block before the first of them; `None` where they begin a chain.
    pub parent: Option<SequenceHash>,
    /// The blocks, in the order of their chain.
    pub hashes: Vec<SequenceHash>,
    /// Whether they went with everything else in the tier, or in the stream, which was said to be empty.
    pub cleared: bool,
}

/// What happened to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// They came into the tier.
    Stored {
        /// Whether the target had them in another tier before.
        elsewhere: bool,
    },
    /// They left the tier.
    Removed {
        /// Whether the target still has them in another tier.
        elsewhere: bool,
    },
}

/// Changes were made faster than they were read, and some are not there any more: begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "changes were made faster than they were read: {lost} of them are lost, begin with the standing state again"
)]
pub struct LaggedError {
    /// Changes that are not there any more.
    pub lost: u64,
}

/// Changes from the moment on at which it was made.
///
/// To have all of a standing state and what changes afterwards: follow first, dump then ([`crate::KvIndex::dump`]), and apply
/// what changed after that. Some changes come twice that way, and in the order of changes the last word on a block is right.
#[derive(Debug)]
pub struct ChangeFeed {
    feed: Arc<ChangeLog>,
    next: u64,
}

impl ChangeFeed {
    /// The next changes, at most `most`; empty if there are none yet.
    ///
    /// # Errors
    ///
    /// Some were lost. What comes next follows after them.
    pub fn take(&mut self, most: usize) -> Result<Vec<Arc<BlockChange>>, LaggedError> {
        let kept = self.feed.retained.lock();
        if self.next < kept.first {
            let lost = kept.first - self.next;
            self.next = kept.first;
            return Err(LaggedError { lost });
        }
        let from = usize::try_from(self.next - kept.first).unwrap_or(usize::MAX);
        let taken: Vec<_> = kept.changes.iter().skip(from).take(most).cloned().collect();
        self.next += taken.len() as u64;
        Ok(taken)
    }
}

impl Drop for ChangeFeed {
    fn drop(&mut self) {
        if self.feed.followers.fetch_sub(1, Ordering::Relaxed) == 1 {
            let mut kept = self.feed.retained.lock();
            kept.first += kept.changes.len() as u64;
            kept.changes = VecDeque::new();
            kept.bytes = 0;
        }
    }
}

/// The changes that are kept.
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

/// Bytes kept for those who are behind.
const MOST_BYTES: usize = 16 << 20;
/// What a change takes beside its hashes, about.
const CHANGE_BYTES: usize = 160;

impl ChangeLog {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            followers: AtomicUsize::new(0),
            retained: Mutex::new(RetainedChanges::default()),
        })
    }

    /// Follows from now on. Called with the index's lock held, so that no change is half inside.
    pub(crate) fn subscribe(self: &Arc<Self>) -> ChangeFeed {
        self.followers.fetch_add(1, Ordering::Relaxed);
        let kept = self.retained.lock();
        ChangeFeed {
            feed: Arc::clone(self),
            next: kept.first + kept.changes.len() as u64,
        }
    }

    /// Whether anybody wants to know.
    pub(crate) fn has_subscribers(&self) -> bool {
        self.followers.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn push(&self, change: BlockChange) {
        let mut kept = self.retained.lock();
        kept.bytes += size(&change);
        kept.changes.push_back(Arc::new(change));
        while kept.bytes > MOST_BYTES
            && let Some(oldest) = kept.changes.pop_front()
        {
            kept.bytes -= size(&oldest);
            kept.first += 1;
        }
    }
}

fn size(change: &BlockChange) -> usize {
    CHANGE_BYTES + change.hashes.len() * size_of::<SequenceHash>()
}
