//! The writers' counters: totals, and the entries of each backend.

use std::{collections::BTreeMap, sync::Arc};

use super::entry::BackendHolding;
use crate::{BackendStats, EventKind, StorageTier, ViewStats};

/// Maximum number of backends; events of further ones are ignored and counted. The names are
/// configured, so this is a bound that no real fleet reaches.
const MOST_BACKENDS: usize = 1024;

/// Why a holding is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossReason {
    /// An event or an operator removed it.
    Dropped,
    Expired,
    Evicted,
}

#[derive(Debug, Default)]
pub(super) struct ViewCounters {
    pub(super) prefixes: usize,
    entries: u64,
    evicted_prefixes: u64,
    evicted_entries: u64,
    expired_entries: u64,
    ignored_events: u64,
    backends: BTreeMap<Arc<str>, BackendCounters>,
}

#[derive(Debug, Default)]
struct BackendCounters {
    events: [u64; EventKind::ALL.len()],
    hot: u64,
    warm: u64,
}

impl BackendCounters {
    fn of(&mut self, tier: StorageTier) -> &mut u64 {
        match tier {
            StorageTier::GpuHot => &mut self.hot,
            StorageTier::StorageWarm => &mut self.warm,
        }
    }
}

impl ViewCounters {
    /// Returns the shared copy of a backend's name; `None` if there are too many backends.
    pub(super) fn name(&mut self, backend: &Arc<str>) -> Option<Arc<str>> {
        if let Some((name, _)) = self.backends.get_key_value(backend) {
            return Some(Arc::clone(name));
        }
        if self.backends.len() >= MOST_BACKENDS {
            return None;
        }
        self.backends
            .insert(Arc::clone(backend), BackendCounters::default());
        Some(Arc::clone(backend))
    }

    pub(super) fn forget(&mut self, backend: &str) {
        self.backends.remove(backend);
    }

    pub(super) fn applied(&mut self, backend: &str, kind: EventKind) {
        if let Some(counters) = self.backends.get_mut(backend) {
            counters.events[kind.index()] += 1;
        }
    }

    pub(super) fn ignored(&mut self) {
        self.ignored_events += 1;
    }

    /// Counts a new holding of a backend, which replaces one in tier `before`.
    pub(super) fn gained(&mut self, backend: &str, before: Option<StorageTier>, tier: StorageTier) {
        if before.is_none() {
            self.entries += 1;
        }
        if let Some(counters) = self.backends.get_mut(backend) {
            if let Some(before) = before {
                *counters.of(before) -= 1;
            }
            *counters.of(tier) += 1;
        }
    }

    pub(super) fn lost(&mut self, holdings: &[BackendHolding], loss: LossReason) {
        for holding in holdings {
            if let Some(counters) = self.backends.get_mut(&*holding.backend) {
                *counters.of(holding.tier) -= 1;
            }
        }
        let count = holdings.len() as u64;
        self.entries -= count;
        match loss {
            LossReason::Dropped => {}
            LossReason::Expired => self.expired_entries += count,
            LossReason::Evicted => self.evicted_entries += count,
        }
    }

    pub(super) fn evicted_prefix(&mut self) {
        self.evicted_prefixes += 1;
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns all totals that writers count; queries are counted elsewhere.
    pub(super) fn stats(&self) -> ViewStats {
        ViewStats {
            prefixes: self.prefixes as u64,
            entries: self.entries,
            evicted_prefixes: self.evicted_prefixes,
            evicted_entries: self.evicted_entries,
            expired_entries: self.expired_entries,
            ignored_events: self.ignored_events,
            backends: self
                .backends
                .iter()
                .map(|(name, counters)| BackendStats {
                    backend: Arc::clone(name),
                    events: counters.events,
                    hot: counters.hot,
                    warm: counters.warm,
                })
                .collect(),
            ..ViewStats::default()
        }
    }
}
