//! Where entries lie: one trait, and a file for each way of it.
//!
//! [`memory`] is this process, [`redis`] a server that routers share, [`s3`] an object store; [`tiered`] is two of them.
//! [`patient`] wraps whatever is elsewhere, and [`fallback`] goes on in memory without it. What lies elsewhere is sealed
//! ([`sealing`]). What an implementation cannot do is said in its [`Abilities`].

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

use crate::{CacheEntry, CacheGeneration, CacheKey, StoreFault, entry::FoundEntry};

/// What a store is going to answer.
pub(crate) type StoreFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, StoreFault>> + Send + 'a>>;

/// What a store can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreCapabilities {
    /// It knows how much lies in it.
    pub(crate) counts: bool,
}

/// A look for an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreLookup {
    pub(crate) key: CacheKey,
    /// Nobody waits longer.
    pub(crate) until: Instant,
    /// When it began: copies that it leads to are of that time.
    pub(crate) generation: CacheGeneration,
}

/// An entry to be kept.
#[derive(Clone, Debug)]
pub(crate) struct StoreFill {
    pub(crate) key: CacheKey,
    pub(crate) entry: CacheEntry,
    pub(crate) ttl: Duration,
    /// When its making began.
    pub(crate) generation: CacheGeneration,
}

/// How much lies in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreStats {
    /// Entries, and bytes that they take in this process.
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// Entries that had to go before their time, ever.
    pub(crate) evictions: u64,
}

/// Where entries lie.
///
/// No call waits without end, and none holds back a request: a look is waited for until [`Ask::until`], everything else
/// happens where no request waits.
pub(crate) trait Store: fmt::Debug + Send + Sync {
    fn abilities(&self) -> StoreCapabilities;

    /// Whether it is there, as far as it knows: one that is not need not be asked to find out.
    fn is_there(&self) -> bool {
        true
    }

    /// The names of those behind it that are not there.
    fn absent(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// What memory may have of an entry before it is written: looks find it there.
    fn near(&self, _: &StoreFill) -> Option<StoreFill> {
        None
    }

    /// The entry under a key, if it is ours and whole. What is there and is not goes.
    fn get(&self, ask: StoreLookup) -> StoreFuture<'_, Option<FoundEntry>>;

    /// Keeps an entry in the place of what was there.
    fn set(&self, fill: StoreFill) -> StoreFuture<'_, ()>;

    /// Takes one away.
    fn delete(&self, key: CacheKey) -> StoreFuture<'_, ()>;

    /// Takes all away, and nothing that is not ours; says how many there were.
    fn clear(&self) -> StoreFuture<'_, u64>;

    fn stats(&self) -> StoreStats;

    /// Counts the entries, also where that means to ask somebody: not for requests.
    fn count(&self) -> StoreFuture<'_, u64> {
        Box::pin(async move { Ok(self.stats().entries) })
    }
}
