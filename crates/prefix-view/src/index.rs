//! What every form of the view can do, and what it answers.

use std::{cmp::Ordering, fmt, sync::Arc};

use kv_blocks::Moment;

use crate::{EventKind, PrefixEvent, PrefixHash, StorageTier};

/// Prefix -> backends that hold it.
///
/// No call waits for anything but a short lock, so it may be called from wherever a request is decided. A form whose
/// data lies on another machine keeps that rule by having two halves: an asynchronous one that sends what was recorded
/// and asks for a prefix while the request is being prepared, for a bounded time, and this one, which takes events in and
/// answers from what this process itself heard. [`PreparedQueries`](crate::PreparedQueries) stands in front of both forms
/// and keeps each answer for 100 ms, so the other machine is asked at most that often for one prefix.
pub trait PrefixIndex: fmt::Debug + Send + Sync {
    /// Enters what `backend` said. A name comes from the configuration, never from the wire; passing the same `Arc`
    /// every time shares its text.
    fn record(
        &self,
        backend: &Arc<str>,
        event: &PrefixEvent,
        now: Moment,
    ) -> Result<RecordOutcome, Unavailable>;

    /// The backends that hold `prefix`, best first: more tokens, then the better tier, then by name. Nobody: an empty
    /// vector, which allocates nothing.
    fn query(&self, prefix: &PrefixHash, now: Moment) -> Result<Vec<Holder>, Unavailable>;

    /// Forgets a backend that has left, and how many of its entries there were.
    fn remove_backend(&self, backend: &str) -> Result<u64, Unavailable>;

    /// Forgets every entry; events fill the view again.
    fn clear(&self) -> Result<ClearedCounts, Unavailable>;

    /// Forgets entries whose time is over and says how many there were. Queries do not count them in any case: this is
    /// for the memory. A form whose storage does that by itself answers 0.
    fn cleanup_expired(&self, now: Moment) -> u64;

    /// Totals.
    fn stats(&self) -> ViewStats;
}

/// One backend that holds a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The backend's name.
    pub backend: Arc<str>,
    /// Tokens it has cached for the prefix.
    pub tokens: u32,
    /// Where.
    pub tier: StorageTier,
}

impl Holder {
    /// The better holder is the lesser: more tokens first, then the better tier, then by name.
    pub fn rank(&self, other: &Self) -> Ordering {
        other
            .tokens
            .cmp(&self.tokens)
            .then(self.tier.cmp(&other.tier))
            .then_with(|| self.backend.cmp(&other.backend))
    }
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// The backend holds the prefix now.
    Held,
    /// It held it and does not any more.
    Dropped,
    /// It did not hold it, so there was nothing to drop or to move; or the view knows its most backends already.
    Ignored,
}

/// How much a [`PrefixIndex::clear`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClearedCounts {
    /// Prefixes.
    pub prefixes: u64,
    /// Entries: pairs of prefix and backend.
    pub entries: u64,
}

/// The view cannot answer now. Never a reason for a request to fail: it is routed as if nobody held its prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the prefix view is not available ({reason}): requests are routed without it until it is back"
)]
pub struct Unavailable {
    /// What happened, for people.
    pub reason: String,
}

/// Totals of a view. An entry is a pair of prefix and backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewStats {
    /// Prefixes known, expired ones that nobody asked for since included.
    pub prefixes: u64,
    /// Entries, the same way.
    pub entries: u64,
    /// Queries, ever.
    pub queries: u64,
    /// Queries that found somebody, ever.
    pub hits: u64,
    /// Prefixes evicted for lack of room, ever.
    pub evicted_prefixes: u64,
    /// The entries of those.
    pub evicted_entries: u64,
    /// Entries dropped because their time was over, ever.
    pub expired_entries: u64,
    /// Events that changed nothing, ever.
    pub ignored_events: u64,
    /// Per backend, in the order of names.
    pub backends: Vec<BackendStats>,
}

/// One backend's part of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendStats {
    /// The backend's name.
    pub backend: Arc<str>,
    /// Events that changed the view, ever, in the order of [`EventKind::ALL`].
    pub events: [u64; EventKind::ALL.len()],
    /// Entries in [`StorageTier::GpuHot`].
    pub hot: u64,
    /// Entries in [`StorageTier::StorageWarm`].
    pub warm: u64,
}
