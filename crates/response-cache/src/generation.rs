//! What keeps a cleared cache clear of what was begun before, and a removed entry from coming back as a copy.

use std::sync::atomic::{AtomicU64, Ordering};

/// A time between two clears. Whoever begins to make an entry takes the present one along, and an entry that was begun
/// before a clear is not kept after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheGeneration {
    clears: u64,
    /// Of what is copied from one store to another: nor is it kept after a removal.
    removals: Option<u64>,
}

/// The present one.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    clears: AtomicU64,
    removals: AtomicU64,
}

impl Generations {
    /// Of what is made now.
    pub(crate) fn now(&self) -> CacheGeneration {
        // Acquire: what is put after a look at it is put after the clear that it was raised by.
        CacheGeneration {
            clears: self.clears.load(Ordering::Acquire),
            removals: None,
        }
    }

    /// Of what is copied now.
    pub(crate) fn of_copies(&self) -> CacheGeneration {
        CacheGeneration {
            removals: Some(self.removals.load(Ordering::Acquire)),
            ..self.now()
        }
    }

    pub(crate) fn is_present(&self, begun: CacheGeneration) -> bool {
        let removals = || self.removals.load(Ordering::Acquire);
        begun.clears == self.now().clears && begun.removals.is_none_or(|seen| seen == removals())
    }

    /// Before anything is removed: what is put from here on either is of the new one, or is removed.
    pub(crate) fn clear(&self) {
        self.clears.fetch_add(1, Ordering::AcqRel);
    }

    /// After the original of one entry is gone, and before its copies are removed.
    pub(crate) fn removed(&self) {
        self.removals.fetch_add(1, Ordering::AcqRel);
    }
}
