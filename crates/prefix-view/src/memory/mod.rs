//! The view in this process's memory.

mod counters;
mod entry;
mod evict;
mod prefix_holders;
mod table;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use kv_blocks::Moment;
use parking_lot::Mutex;

use self::{
    counters::{LossReason, ViewCounters},
    entry::{BackendHolding, Horizon, PrefixEntry, Stamp},
    table::ShardedTable,
};
use crate::{
    ClearedCounts, Holder, PrefixEvent, PrefixHash, PrefixIndex, RecordOutcome, StorageTier,
    Unavailable, ViewSettings, ViewStats, tiers::Effect,
};

pub use self::prefix_holders::PrefixHolders;

/// The view in this process's memory; it is always available.
///
/// Queries share a lock and wait for a writer only while it is in the same part of the table.
/// Writers run one at a time. A query that finds expired entries drops them, unless a writer is
/// busy: it never waits for one.
#[derive(Debug)]
pub struct MemoryPrefixIndex {
    settings: ViewSettings,
    table: ShardedTable,
    /// Held by every writer of the table, which takes locks of the table after it, never before.
    ledger: Mutex<ViewCounters>,
    queries: AtomicU64,
    hits: AtomicU64,
}

impl MemoryPrefixIndex {
    /// Creates an empty view.
    pub fn new(settings: ViewSettings) -> Self {
        Self {
            settings,
            table: ShardedTable::new(settings.max_entries.get()),
            ledger: Mutex::default(),
            queries: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }

    fn horizon(&self, now: Moment) -> Horizon {
        Horizon::at(now, self.settings.entry_ttl)
    }

    /// Returns the tokens that a backend holds of a prefix after an event; `None` if the event
    /// moves a prefix that the backend does not hold.
    ///
    /// An event without a count leaves the known number. If there is none, only an event that
    /// brings the prefix onto the accelerator stands for the assumed number.
    fn tokens(&self, event: &PrefixEvent, known: Option<u32>, tier: StorageTier) -> Option<u32> {
        let assumed = || (tier == StorageTier::GpuHot).then(|| self.settings.assumed_tokens());
        event.token_count.or(known).or_else(assumed)
    }

    fn hold(
        &self,
        ledger: &mut ViewCounters,
        prefix: &PrefixHash,
        holding: BackendHolding,
        now: Moment,
    ) {
        if !self.table.shard(prefix).read().contains_key(prefix) {
            self.evict_excess(ledger, now);
            ledger.prefixes += 1;
        }
        let (backend, tier) = (Arc::clone(&holding.backend), holding.tier);
        let before = self
            .table
            .shard(prefix)
            .write()
            .entry(*prefix)
            .or_default()
            .put(holding);
        ledger.gained(&backend, before, tier);
    }

    /// Applies `remove` to one prefix, and removes the prefix itself when it has no holder left.
    fn remove(
        &self,
        ledger: &mut ViewCounters,
        prefix: &PrefixHash,
        loss: LossReason,
        remove: impl FnOnce(&mut PrefixEntry) -> Vec<BackendHolding>,
    ) {
        let mut shard = self.table.shard(prefix).write();
        let Some(entry) = shard.get_mut(prefix) else {
            return;
        };
        ledger.lost(&remove(entry), loss);
        if entry.is_empty() {
            shard.remove(prefix);
            ledger.prefixes -= 1;
        }
    }

    /// Applies `remove` to every prefix, and returns the counts of the removed.
    fn remove_everywhere(
        &self,
        loss: LossReason,
        mut remove: impl FnMut(&mut PrefixEntry) -> Vec<BackendHolding>,
    ) -> u64 {
        let mut removed = 0;
        for shard in self.table.shards() {
            // The lock is taken anew for every part, so that events can be recorded in between.
            let mut ledger = self.ledger.lock();
            shard.write().retain(|_, entry| {
                let lost = remove(entry);
                ledger.lost(&lost, loss);
                removed += lost.len() as u64;
                if entry.is_empty() {
                    ledger.prefixes -= 1;
                }
                !entry.is_empty()
            });
        }
        removed
    }
}

impl PrefixIndex for MemoryPrefixIndex {
    fn record(
        &self,
        backend: &Arc<str>,
        event: &PrefixEvent,
        now: Moment,
    ) -> Result<RecordOutcome, Unavailable> {
        let mut ledger = self.ledger.lock();
        let Some(backend) = ledger.name(backend) else {
            ledger.ignored();
            return Ok(RecordOutcome::Ignored);
        };
        let horizon = self.horizon(now);
        self.remove(&mut ledger, &event.prefix, LossReason::Expired, |entry| {
            entry.remove_past(horizon)
        });
        let known = {
            let shard = self.table.shard(&event.prefix).read();
            shard
                .get(&event.prefix)
                .and_then(|entry| entry.of(&backend))
                .map(|holding| holding.tokens)
        };
        let recorded = match self.settings.offloading.effect(event.kind) {
            Effect::Hold(tier) => match self.tokens(event, known, tier) {
                Some(tokens) => {
                    let holding = BackendHolding {
                        backend: Arc::clone(&backend),
                        recorded: now.into(),
                        tokens,
                        tier,
                    };
                    self.hold(&mut ledger, &event.prefix, holding, now);
                    RecordOutcome::Stored
                }
                None => RecordOutcome::Ignored,
            },
            Effect::Drop if known.is_some() => {
                self.remove(&mut ledger, &event.prefix, LossReason::Dropped, |entry| {
                    entry.remove(|holding| holding.backend == backend)
                });
                RecordOutcome::Dropped
            }
            Effect::Drop => RecordOutcome::Ignored,
        };
        match recorded {
            RecordOutcome::Ignored => ledger.ignored(),
            RecordOutcome::Stored | RecordOutcome::Dropped => ledger.applied(&backend, event.kind),
        }
        Ok(recorded)
    }

    fn query(&self, prefix: &PrefixHash, now: Moment) -> Result<Vec<Holder>, Unavailable> {
        let horizon = self.horizon(now);
        let (mut holders, past) = match self.table.shard(prefix).read().get(prefix) {
            Some(entry) => (
                entry.holders(Stamp::from(now), horizon),
                entry.has_past(horizon),
            ),
            None => (Vec::new(), false),
        };
        if past && let Some(mut ledger) = self.ledger.try_lock() {
            self.remove(&mut ledger, prefix, LossReason::Expired, |entry| {
                entry.remove_past(horizon)
            });
        }
        holders.sort_unstable_by(Holder::rank);
        self.queries.fetch_add(1, Ordering::Relaxed);
        if !holders.is_empty() {
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(holders)
    }

    fn remove_backend(&self, backend: &str) -> Result<u64, Unavailable> {
        let removed = self.remove_everywhere(LossReason::Dropped, |entry| {
            entry.remove(|holding| *holding.backend == *backend)
        });
        self.ledger.lock().forget(backend);
        Ok(removed)
    }

    fn clear(&self) -> Result<ClearedCounts, Unavailable> {
        let mut ledger = self.ledger.lock();
        let cleared = ClearedCounts {
            prefixes: ledger.prefixes as u64,
            entries: ledger.entries(),
        };
        for shard in self.table.shards() {
            let taken = std::mem::take(&mut *shard.write());
            for mut entry in taken.into_values() {
                ledger.lost(&entry.remove(|_| true), LossReason::Dropped);
            }
        }
        ledger.prefixes = 0;
        Ok(cleared)
    }

    fn cleanup_expired(&self, now: Moment) -> u64 {
        let horizon = self.horizon(now);
        self.remove_everywhere(LossReason::Expired, |entry| entry.remove_past(horizon))
    }

    fn stats(&self) -> ViewStats {
        let written = self.ledger.lock().stats();
        ViewStats {
            queries: self.queries.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            ..written
        }
    }
}
