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
pub struct Change {
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
pub struct Lagged {
    /// Changes that are not there any more.
    pub lost: u64,
}

/// Changes from the moment on at which it was made.
///
/// To have all of a standing state and what changes afterwards: follow first, dump then ([`crate::KvIndex::dump`]), and apply
/// what changed after that. Some changes come twice that way, and in the order of changes the last word on a block is right.
#[derive(Debug)]
pub struct Changes {
    feed: Arc<Feed>,
    next: u64,
}

impl Changes {
    /// The next changes, at most `most`; empty if there are none yet.
    ///
    /// # Errors
    ///
    /// Some were lost. What comes next follows after them.
    pub fn take(&mut self, most: usize) -> Result<Vec<Arc<Change>>, Lagged> {
        let kept = self.feed.kept.lock();
        if self.next < kept.first {
            let lost = kept.first - self.next;
            self.next = kept.first;
            return Err(Lagged { lost });
        }
        let from = usize::try_from(self.next - kept.first).unwrap_or(usize::MAX);
        let taken: Vec<_> = kept.changes.iter().skip(from).take(most).cloned().collect();
        self.next += taken.len() as u64;
        Ok(taken)
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        if self.feed.followers.fetch_sub(1, Ordering::Relaxed) == 1 {
            let mut kept = self.feed.kept.lock();
            kept.first += kept.changes.len() as u64;
            kept.changes = VecDeque::new();
            kept.bytes = 0;
        }
    }
}

/// The changes that are kept.
#[derive(Debug)]
pub(crate) struct Feed {
    followers: AtomicUsize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Number of the first of `changes`.
    first: u64,
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
}

/// Bytes kept for those who are behind.
const MOST_BYTES: usize = 16 << 20;
/// What a change takes beside its hashes, about.
const CHANGE_BYTES: usize = 160;

impl Feed {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            followers: AtomicUsize::new(0),
            kept: Mutex::new(Kept::default()),
        })
    }

    /// Follows from now on. Called with the index's lock held, so that no change is half inside.
    pub(crate) fn follow(self: &Arc<Self>) -> Changes {
        self.followers.fetch_add(1, Ordering::Relaxed);
        let kept = self.kept.lock();
        Changes {
            feed: Arc::clone(self),
            next: kept.first + kept.changes.len() as u64,
        }
    }

    /// Whether anybody wants to know.
    pub(crate) fn is_followed(&self) -> bool {
        self.followers.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn push(&self, change: Change) {
        let mut kept = self.kept.lock();
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

fn size(change: &Change) -> usize {
    CHANGE_BYTES + change.hashes.len() * size_of::<SequenceHash>()
}
