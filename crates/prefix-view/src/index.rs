//! The interface of every implementation of the view, and its results.

use std::{cmp::Ordering, fmt, sync::Arc};

use kv_blocks::Moment;

use crate::{EventKind, PrefixEvent, PrefixHash, StorageTier};

/// Map from a prefix to the backends that hold it.
///
/// No call waits for anything but a short lock, so it may be called from the code that routes a
/// request. An implementation with its data on another machine keeps that rule with two halves: an
/// asynchronous one, which sends recorded events and queries a prefix while the request is
/// prepared, for a bounded time, and this one, which records events and answers from the events
/// that this process received. [`QueryCache`](crate::QueryCache) is in front of both
/// implementations and caches each answer for 100 ms, so the other machine gets at most one query
/// per prefix in that time.
pub trait PrefixIndex: fmt::Debug + Send + Sync {
    /// Records an event of `backend`. The name comes from the configuration, never from the wire;
    /// passing the same `Arc` every time shares its text.
    fn record(
        &self,
        backend: &Arc<str>,
        event: &PrefixEvent,
        now: Moment,
    ) -> Result<RecordOutcome, Unavailable>;

    /// Returns the backends that hold `prefix`, best first: more tokens, then the better tier, then
    /// by name. With no holder the vector is empty and allocates nothing.
    fn query(&self, prefix: &PrefixHash, now: Moment) -> Result<Vec<Holder>, Unavailable>;

    /// Removes a backend that left, and returns the number of its entries.
    fn remove_backend(&self, backend: &str) -> Result<u64, Unavailable>;

    /// Removes every entry; events fill the view again.
    fn clear(&self) -> Result<ClearedCounts, Unavailable>;

    /// Removes expired entries and returns their number. Queries never count expired entries; this
    /// call frees their memory. An implementation whose storage expires entries by itself returns
    /// 0.
    fn cleanup_expired(&self, now: Moment) -> u64;

    /// Returns totals.
    fn stats(&self) -> ViewStats;
}

/// One backend that holds a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The backend's name.
    pub backend: Arc<str>,
    /// Tokens that it has cached for the prefix.
    pub tokens: u32,
    /// Tier of the cached tokens.
    pub tier: StorageTier,
}

impl Holder {
    /// Compares two holders; the better one is the lesser: more tokens first, then the better tier,
    /// then by name.
    pub fn rank(&self, other: &Self) -> Ordering {
        other
            .tokens
            .cmp(&self.tokens)
            .then(self.tier.cmp(&other.tier))
            .then_with(|| self.backend.cmp(&other.backend))
    }
}

/// Effect of an event on the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// The backend holds the prefix now.
    Stored,
    /// The backend held the prefix and does not any more.
    Dropped,
    /// No effect: the backend did not hold the prefix, so there was nothing to drop or to move; or
    /// the view has its maximum number of backends.
    Ignored,
}

/// Number of prefixes and entries that [`PrefixIndex::clear`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClearedCounts {
    /// Prefixes.
    pub prefixes: u64,
    /// Entries: pairs of prefix and backend.
    pub entries: u64,
}

/// The view cannot answer now. No request fails for it: a request is routed as if no backend held
/// its prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the prefix view is not available ({reason}): requests are routed without it until it is back"
)]
pub struct Unavailable {
    /// Human-readable reason.
    pub reason: String,
}

/// Totals of a view. An entry is a pair of prefix and backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewStats {
    /// Prefixes in the view, including expired ones that were not queried since.
    pub prefixes: u64,
    /// Entries, including expired ones that were not queried since.
    pub entries: u64,
    /// Queries since the start.
    pub queries: u64,
    /// Queries with at least one holder, since the start.
    pub hits: u64,
    /// Prefixes evicted for lack of room, since the start.
    pub evicted_prefixes: u64,
    /// Entries of the evicted prefixes.
    pub evicted_entries: u64,
    /// Entries dropped because they expired, since the start.
    pub expired_entries: u64,
    /// Events that changed nothing, since the start.
    pub ignored_events: u64,
    /// Statistics per backend, in the order of names.
    pub backends: Vec<BackendStats>,
}

/// One backend's part of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendStats {
    /// The backend's name.
    pub backend: Arc<str>,
    /// Events that changed the view, since the start, in the order of [`EventKind::ALL`].
    pub events: [u64; EventKind::ALL.len()],
    /// Entries in [`StorageTier::GpuHot`].
    pub hot: u64,
    /// Entries in [`StorageTier::StorageWarm`].
    pub warm: u64,
}
