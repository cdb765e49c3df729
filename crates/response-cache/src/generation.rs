//! What keeps a cleared cache clear of what was begun before.

use std::sync::atomic::{AtomicU64, Ordering};

/// A time between two clears. Whoever begins to make an entry takes the present one along, and an entry that was begun
/// before a clear is not kept after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(u64);

/// The present one.
#[derive(Debug, Default)]
pub(crate) struct Generations(AtomicU64);

impl Generations {
    pub(crate) fn now(&self) -> Generation {
        // Acquire: what is put after a look at it is put after the clear that it was raised by.
        Generation(self.0.load(Ordering::Acquire))
    }

    /// Before anything is removed: what is put from here on either is of the new one, or is removed.
    pub(crate) fn next(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}
