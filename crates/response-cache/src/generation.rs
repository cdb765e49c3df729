//! Generations: they keep a cleared cache free of entries begun before the clear, and a removed
//! entry from returning as a copy.

use std::sync::atomic::{AtomicU64, Ordering};

/// The period between two clears. The production of an entry takes the current generation at its
/// start, and an entry that began before a clear is not stored after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheGeneration {
    clears: u64,
    /// Set for copies from one store to another: a copy is not stored after a removal either.
    removals: Option<u64>,
}

/// The current generation.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    clears: AtomicU64,
    removals: AtomicU64,
}

impl Generations {
    /// Returns the generation for a new entry.
    pub(crate) fn now(&self) -> CacheGeneration {
        // Acquire: an entry stored after this load is stored after the clear that raised the
        // number.
        CacheGeneration {
            clears: self.clears.load(Ordering::Acquire),
            removals: None,
        }
    }

    /// Returns the generation for a new copy.
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

    /// Starts a new generation, before any removal: an entry stored from here on either is of the
    /// new generation, or is removed.
    pub(crate) fn clear(&self) {
        self.clears.fetch_add(1, Ordering::AcqRel);
    }

    /// Marks a removal, after the original entry is removed and before its copies are.
    pub(crate) fn removed(&self) {
        self.removals.fetch_add(1, Ordering::AcqRel);
    }
}
