//! The stores: one trait, and a module for each implementation.
//!
//! [`memory`] is this process, [`redis`] a server that routers share, [`s3`] an object store;
//! [`tiered`] combines two of them. [`budgeted`] wraps every remote store, and [`fallback`] adds
//! memory for its outages. Remote values are in an envelope ([`envelope`]). [`StoreCapabilities`]
//! lists the limits of an implementation.

pub(crate) mod budgeted;
pub(crate) mod envelope;
pub(crate) mod fallback;
pub(crate) mod health;
pub(crate) mod lru;
pub(crate) mod memory;
#[cfg(feature = "redis-cache")]
pub(crate) mod redis;
#[cfg(feature = "s3-cache")]
pub(crate) mod s3;
pub(crate) mod tiered;

use std::{fmt, pin::Pin, time::Duration};

use tokio::time::Instant;

use crate::{CacheEntry, CacheGeneration, CacheKey, CacheSelection, StoreFault, entry::FoundEntry};

/// The future of a store's answer.
pub(crate) type StoreFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, StoreFault>> + Send + 'a>>;

/// The capabilities of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreCapabilities {
    /// Whether it can count its entries.
    pub(crate) counts: bool,
}

/// A lookup of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreLookup {
    pub(crate) key: CacheKey,
    /// Deadline of the wait.
    pub(crate) until: Instant,
    /// Generation at its start: copies made from its result belong to it.
    pub(crate) generation: CacheGeneration,
}

/// An entry to store.
#[derive(Clone, Debug)]
pub(crate) struct StoreFill {
    pub(crate) key: CacheKey,
    pub(crate) entry: CacheEntry,
    pub(crate) ttl: Duration,
    /// Generation at the start of its production.
    pub(crate) generation: CacheGeneration,
}

/// The size of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreStats {
    /// Entries, and their bytes in this process.
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// Total entries evicted before they expired.
    pub(crate) evictions: u64,
}

/// A store of entries.
///
/// Every call is bounded in time, and none delays a request: a lookup is awaited until
/// [`StoreLookup::until`], everything else runs outside requests.
pub(crate) trait Store: fmt::Debug + Send + Sync {
    fn capabilities(&self) -> StoreCapabilities;

    /// Returns whether the store is available, as far as it knows without a probe.
    fn is_available(&self) -> bool {
        true
    }

    /// Returns the names of the unavailable stores behind it.
    fn absent(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Returns the copy of an entry that memory may have before the write: lookups find it there.
    fn near(&self, _: &StoreFill) -> Option<StoreFill> {
        None
    }

    /// Returns the entry under a key, if it is valid and belongs to this cache. An invalid one is
    /// removed.
    fn get(&self, lookup: StoreLookup) -> StoreFuture<'_, Option<FoundEntry>>;

    /// Stores an entry, replacing an existing one.
    fn set(&self, fill: StoreFill) -> StoreFuture<'_, ()>;

    /// Removes an entry.
    fn delete(&self, key: CacheKey) -> StoreFuture<'_, ()>;

    /// Removes the selected entries of this cache and no foreign ones; returns their number.
    fn clear(&self, selection: CacheSelection) -> StoreFuture<'_, u64>;

    fn stats(&self) -> StoreStats;

    /// Counts the entries, even if that takes a request to a server: not for the request path.
    fn count(&self) -> StoreFuture<'_, u64> {
        Box::pin(async move { Ok(self.stats().entries) })
    }
}
