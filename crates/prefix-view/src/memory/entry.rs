//! One prefix, and who holds it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kv_blocks::Moment;

use crate::{Holder, StorageTier};

/// A moment in 8 bytes: nanoseconds since the start, which last for 584 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(pub(super) u64);

/// The moment from which on entries count: what was recorded at it or before is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Horizon(Option<Stamp>);

/// What one backend holds of a prefix.
#[derive(Debug)]
pub(super) struct BackendHolding {
    pub(super) backend: Arc<str>,
    pub(super) recorded: Stamp,
    pub(super) tokens: u32,
    pub(super) tier: StorageTier,
}

/// One prefix. At most one holding per backend, so their number is bounded by that of backends.
#[derive(Debug, Default)]
pub(super) struct PrefixEntry {
    /// When it was last recorded, or found by a query: queries write it while they share the lock.
    used: AtomicU64,
    holdings: Vec<BackendHolding>,
}

impl From<Moment> for Stamp {
    fn from(moment: Moment) -> Self {
        Self(u64::try_from(moment.since_start().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Horizon {
    /// Nothing is over before one time to live has passed since the start.
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

    /// Enters a holding and gives back the tier of the one that it replaces.
    pub(super) fn put(&mut self, holding: BackendHolding) -> Option<StorageTier> {
        self.touch(holding.recorded);
        if let Some(known) = self
            .holdings
            .iter_mut()
            .find(|known| known.backend == holding.backend)
        {
            return Some(std::mem::replace(known, holding).tier);
        }
        // Most prefixes are held by one or two backends: room for four would double what an entry costs.
        self.holdings.reserve_exact(1);
        self.holdings.push(holding);
        None
    }

    /// Removes the holdings that `goes` names.
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

    /// What is not over.
    pub(super) fn counting(&self, horizon: Horizon) -> impl Iterator<Item = &BackendHolding> {
        self.holdings
            .iter()
            .filter(move |holding| !horizon.is_past(holding))
    }

    /// Who holds it, in no order.
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

    /// The order of eviction, least first; `None`: it is over.
    pub(super) fn last_use(&self, horizon: Horizon) -> Option<Stamp> {
        let over = self.holdings.iter().all(|holding| horizon.is_past(holding));
        (!over).then(|| Stamp(self.used.load(Ordering::Relaxed)))
    }

    fn touch(&self, now: Stamp) {
        self.used.fetch_max(now.0, Ordering::Relaxed);
    }
}
