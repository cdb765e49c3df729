//! What is kept, and what a look for it brings.

use std::time::Duration;

use bytes::Bytes;

/// What an entry takes in memory beside its body, bytes: the key twice, the two orders that it stands in, the body's own
/// bookkeeping.
const OVERHEAD: usize = 256;

/// A reply as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// What the body is, in the caller's own terms.
    pub label: u8,
    /// When it was stored, seconds since 1970.
    pub stored_at: u64,
    /// The bytes. A slice of something longer keeps all of that in memory, and is counted with its own length only: give
    /// bytes that stand alone.
    pub body: Bytes,
}

impl CacheEntry {
    /// Bytes that it takes in memory.
    pub(crate) fn cost(&self) -> usize {
        self.body.len().saturating_add(OVERHEAD)
    }
}

/// An entry and the rest of its life.
#[derive(Clone, Debug)]
pub(crate) struct FoundEntry {
    pub(crate) entry: CacheEntry,
    pub(crate) left: Duration,
}

/// What a lookup brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheLookup {
    /// This.
    Found(CacheEntry),
    /// A store was asked, and has nothing.
    NotFound,
    /// Nothing could be asked, or nothing answered in time.
    Unavailable,
}

/// What became of a request at the cache, as metrics tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheResult {
    /// It was answered from the cache.
    Hit,
    /// It was looked for and not found.
    Miss,
    /// It was not looked for.
    Skip,
}

impl CacheResult {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Hit, Self::Miss, Self::Skip];

    /// The value of the label `result` in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Skip => "skip",
        }
    }
}
