//! Eviction when the view is full.

use std::collections::BinaryHeap;

use kv_blocks::Moment;

use super::{
    MemoryPrefixIndex,
    counters::{LossReason, ViewCounters},
    entry::{Horizon, Stamp},
};

/// Limit of an eviction: expired prefixes go, prefixes last used before `last_use`, and this many
/// of those last used at exactly that moment.
struct Cutoff {
    last_use: Option<Stamp>,
    ties: usize,
}

impl MemoryPrefixIndex {
    /// Makes room for one more prefix. A full view evicts the tenth of its prefixes that was
    /// neither recorded nor found by a query for the longest time. Expired ones count first, and
    /// all of them are evicted.
    pub(super) fn evict_excess(&self, ledger: &mut ViewCounters, now: Moment) {
        let max = self.settings.max_entries.get();
        let horizon = self.horizon(now);
        // A prefix that is queried during the eviction stays, so one pass may remove fewer than a
        // tenth.
        while ledger.prefixes >= max {
            let Some(cutoff) = self.cutoff((max / 10).max(1), horizon) else {
                return;
            };
            self.evict(ledger, cutoff, horizon);
        }
    }

    /// Returns the cutoff for the `goal` prefixes that were unused for the longest time. Reads all
    /// prefixes, the price for queries that only record the time: a list in the order of use would
    /// make each query a writer.
    fn cutoff(&self, goal: usize, horizon: Horizon) -> Option<Cutoff> {
        // Bound: a tenth of `max_entries`.
        let mut oldest: BinaryHeap<Option<Stamp>> = BinaryHeap::with_capacity(goal);
        for shard in self.table.shards() {
            for entry in shard.read().values() {
                let last_use = entry.last_use(horizon);
                if oldest.len() < goal {
                    oldest.push(last_use);
                } else if let Some(mut newest) = oldest.peek_mut()
                    && last_use < *newest
                {
                    *newest = last_use;
                }
            }
        }
        let last_use = *oldest.peek()?;
        Some(Cutoff {
            last_use,
            ties: oldest.iter().filter(|other| **other == last_use).count(),
        })
    }

    fn evict(&self, ledger: &mut ViewCounters, mut cutoff: Cutoff, horizon: Horizon) {
        for shard in self.table.shards() {
            shard.write().retain(|_, entry| {
                let last_use = entry.last_use(horizon);
                let tied = last_use.is_some() && last_use == cutoff.last_use;
                let goes =
                    last_use.is_none() || last_use < cutoff.last_use || tied && cutoff.ties > 0;
                if !goes {
                    return true;
                }
                cutoff.ties -= usize::from(tied);
                ledger.lost(&entry.remove_past(horizon), LossReason::Expired);
                let evicted = entry.remove(|_| true);
                if !evicted.is_empty() {
                    ledger.evicted_prefix();
                }
                ledger.lost(&evicted, LossReason::Evicted);
                ledger.prefixes -= 1;
                false
            });
        }
    }
}
