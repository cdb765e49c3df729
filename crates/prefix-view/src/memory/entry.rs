//! One prefix and its holders.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kv_blocks::Moment;

use crate::{Holder, StorageTier};

/// A moment in 8 bytes: nanoseconds since the start, which suffice for 584 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(pub(super) u64);

/// The moment before which entries are expired: an entry recorded at it or earlier does not count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Horizon(Option<Stamp>);

/// A backend's holding of a prefix.
#[derive(Debug)]
pub(super) struct BackendHolding {
    pub(super) backend: Arc<str>,
    pub(super) recorded: Stamp,
    pub(super) tokens: u32,
    pub(super) tier: StorageTier,
}

/// One prefix. It has at most one holding per backend, so the number of backends bounds them.
#[derive(Debug, Default)]
pub(super) struct PrefixEntry {
    /// Time of the last event or of the last query that found it; queries write it under the shared
    /// lock.
    used: AtomicU64,
    holdings: Vec<BackendHolding>,
}

impl From<Moment> for Stamp {
    fn from(moment: Moment) -> Self {
        Self(u64::try_from(moment.since_start().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Horizon {
    /// Returns the horizon at `now`. Nothing expires before one time to live has passed since the
    /// start.
    pub(super) fn at(now: Moment, ttl: Duration) -> Self {
        Self(
            now.since_start()
                .checked_sub(ttl)
                .map(|moment| Moment::at(moment).into()),
        )
    }

    fn is_past(self, holding: &BackendHolding) -> bool {
        self.0.is_some_and(|horizon| holding.recorded <= horizon)
    }
}

impl PrefixEntry {
    pub(super) fn of(&self, backend: &str) -> Option<&BackendHolding> {
        self.holdings
            .iter()
            .find(|holding| *holding.backend == *backend)
    }

    /// Inserts a holding and returns the tier of the one that it replaces.
    pub(super) fn put(&mut self, holding: BackendHolding) -> Option<StorageTier> {
        self.touch(holding.recorded);
        if let Some(known) = self
            .holdings
            .iter_mut()
            .find(|known| known.backend == holding.backend)
        {
            return Some(std::mem::replace(known, holding).tier);
        }
        // Most prefixes have one or two holders: capacity for four would double the size of an
        // entry.
        self.holdings.reserve_exact(1);
        self.holdings.push(holding);
        None
    }

    /// Removes the holdings for which `goes` is true.
    pub(super) fn remove(
        &mut self,
        goes: impl FnMut(&mut BackendHolding) -> bool,
    ) -> Vec<BackendHolding> {
        self.holdings.extract_if(.., goes).collect()
    }

    pub(super) fn remove_past(&mut self, horizon: Horizon) -> Vec<BackendHolding> {
        self.remove(|holding| horizon.is_past(holding))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holdings.is_empty()
    }

    pub(super) fn has_past(&self, horizon: Horizon) -> bool {
        self.holdings.iter().any(|holding| horizon.is_past(holding))
    }

    /// Returns the holdings that are not expired.
    pub(super) fn counting(&self, horizon: Horizon) -> impl Iterator<Item = &BackendHolding> {
        self.holdings
            .iter()
            .filter(move |holding| !horizon.is_past(holding))
    }

    /// Returns the holders, in no order.
    pub(super) fn holders(&self, now: Stamp, horizon: Horizon) -> Vec<Holder> {
        let holders: Vec<Holder> = self
            .counting(horizon)
            .map(
                |BackendHolding {
                     backend,
                     tokens,
                     tier,
                     ..
                 }| Holder {
                    backend: Arc::clone(backend),
                    tokens: *tokens,
                    tier: *tier,
                },
            )
            .collect();
        if !holders.is_empty() {
            self.touch(now);
        }
        holders
    }

    /// Returns the time of the last use, the order of eviction; `None`, the least, if it is
    /// expired.
    pub(super) fn last_use(&self, horizon: Horizon) -> Option<Stamp> {
        let over = self.holdings.iter().all(|holding| horizon.is_past(holding));
        (!over).then(|| Stamp(self.used.load(Ordering::Relaxed)))
    }

    fn touch(&self, now: Stamp) {
        self.used.fetch_max(now.0, Ordering::Relaxed);
    }
}
