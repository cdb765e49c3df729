//! Cache entries and lookup results.

use std::time::Duration;

use bytes::Bytes;

/// Memory of an entry besides its body, bytes: the key twice, its positions in two orders, the body's
/// own bookkeeping.
const OVERHEAD: usize = 256;

/// A cached reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// The kind of the body, defined by the caller.
    pub label: u8,
    /// When it was stored, seconds since 1970.
    pub stored_at: u64,
    /// The bytes. A slice of a longer buffer retains all of that buffer in memory, but counts with
    /// its own length only: pass bytes that stand alone.
    pub body: Bytes,
}

impl CacheEntry {
    /// Returns the bytes of memory that it takes.
    pub(crate) fn cost(&self) -> usize {
        self.body.len().saturating_add(OVERHEAD)
    }
}

/// An entry and its remaining lifetime.
#[derive(Clone, Debug)]
pub(crate) struct FoundEntry {
    pub(crate) entry: CacheEntry,
    pub(crate) left: Duration,
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheLookup {
    /// The entry.
    Found(CacheEntry),
    /// A store answered and has no entry.
    NotFound,
    /// No store was available, or none answered in time.
    Unavailable,
}

/// The outcome of a request at the cache, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheResult {
    /// The cache answered the request.
    Hit,
    /// A lookup found no entry.
    Miss,
    /// There was no lookup.
    Skip,
}

impl CacheResult {
    /// All results.
    pub const ALL: [Self; 3] = [Self::Hit, Self::Miss, Self::Skip];

    /// Returns the value of the label `result` in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Skip => "skip",
        }
    }
}
