//! The view's content, part by part, for the code that maintains a copy of it.

use std::{sync::Arc, time::Duration};

use kv_blocks::Moment;

use super::{MemoryPrefixIndex, entry::Stamp};
use crate::{Holder, PrefixHash};

/// One prefix and its holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixHolders {
    /// The prefix.
    pub prefix: PrefixHash,
    /// The holders, best first; at least one.
    pub holders: Vec<Holder>,
    /// Time to live left of the holding that was recorded last.
    pub left: Duration,
}

impl MemoryPrefixIndex {
    /// Returns the number of parts for [`Self::live_entries`]. It never changes.
    pub fn parts(&self) -> usize {
        self.table.shards().len()
    }

    /// Returns the prefixes with holders at `now` in one part of the view, some 1,600 prefixes;
    /// empty if there is no such part. Queries go on meanwhile. The call is not a use of a prefix:
    /// it does not change the order of eviction.
    pub fn live_entries(&self, part: usize, now: Moment) -> Vec<PrefixHolders> {
        let Some(shard) = self.table.shards().get(part) else {
            return Vec::new();
        };
        let (horizon, ttl) = (self.horizon(now), self.settings.entry_ttl);
        let live = |(prefix, entry): (&PrefixHash, &super::PrefixEntry)| {
            let (mut holders, last) = entry.live_holders(horizon)?;
            holders.sort_unstable_by(Holder::rank);
            let age = Stamp::from(now).0.saturating_sub(last.0);
            Some(PrefixHolders {
                prefix: *prefix,
                holders,
                left: ttl.saturating_sub(Duration::from_nanos(age)),
            })
        };
        shard.read().iter().filter_map(live).collect()
    }
}

impl super::PrefixEntry {
    /// Returns the holders, in no order, and when the last of them was recorded; `None` if expired.
    fn live_holders(&self, horizon: super::Horizon) -> Option<(Vec<Holder>, Stamp)> {
        let last = self
            .counting(horizon)
            .map(|holding| holding.recorded)
            .max()?;
        let holder = |holding: &super::BackendHolding| Holder {
            backend: Arc::clone(&holding.backend),
            tokens: holding.tokens,
            tier: holding.tier,
        };
        Some((self.counting(horizon).map(holder).collect(), last))
    }
}
