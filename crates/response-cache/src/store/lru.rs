//! Entries in memory: expired ones go first, then the least recently used. Pure.
//!
//! **Invariant**: after every call the entries and bytes are within the bounds.

use std::collections::BTreeSet;

use kv_blocks::Moment;
use lru::LruCache;

use crate::{CacheEntry, CacheKey, CacheSelection, entry::FoundEntry};

/// Maximum number of expired entries that one call removes, so that no request pays for many.
const TIDY: usize = 64;

/// The bounds of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreBounds {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

impl StoreBounds {
    /// Returns half of the bounds; at least one entry.
    pub(crate) fn half(self) -> Self {
        Self {
            entries: (self.entries / 2).max(1),
            bytes: self.bytes / 2,
        }
    }
}

#[derive(Debug)]
pub(crate) struct LruStore {
    slots: LruCache<CacheKey, LruSlot>,
    /// The keys by expiry.
    ends: BTreeSet<(Moment, CacheKey)>,
    bytes: usize,
    bounds: StoreBounds,
    evictions: u64,
}

#[derive(Debug)]
struct LruSlot {
    entry: CacheEntry,
    end: Moment,
}

impl LruStore {
    pub(crate) fn new(bounds: StoreBounds) -> Self {
        // Bound: `bounds`, enforced after every change.
        Self {
            slots: LruCache::unbounded(),
            ends: BTreeSet::new(),
            bytes: 0,
            bounds,
            evictions: 0,
        }
    }

    /// Returns an entry and marks it as used.
    pub(crate) fn get(&mut self, key: &CacheKey, now: Moment) -> Option<FoundEntry> {
        let slot = self.slots.get(key)?;
        if slot.end > now {
            return Some(FoundEntry {
                entry: slot.entry.clone(),
                left: slot.end.since(now),
            });
        }
        self.remove(key);
        None
    }

    /// Stores an entry until `end`, replacing an existing one. An entry over the total bound is not
    /// stored.
    pub(crate) fn put(&mut self, key: CacheKey, entry: CacheEntry, end: Moment, now: Moment) {
        self.remove(&key);
        let cost = entry.cost();
        if cost > self.bounds.bytes || end <= now {
            return;
        }
        self.bytes += cost;
        self.ends.insert((end, key));
        self.slots.put(key, LruSlot { entry, end });
        self.tidy(now);
        self.fit(usize::MAX);
    }

    pub(crate) fn remove(&mut self, key: &CacheKey) -> bool {
        let Some(slot) = self.slots.pop(key) else {
            return false;
        };
        self.forget(key, &slot);
        true
    }

    /// Removes some expired entries.
    pub(crate) fn tidy(&mut self, now: Moment) {
        for _ in 0..TIDY {
            match self.ends.first() {
                Some(&(end, key)) if end <= now => drop(self.remove(&key)),
                _ => return,
            }
        }
    }

    pub(crate) fn set_bounds(&mut self, bounds: StoreBounds) {
        self.bounds = bounds;
    }

    /// Evicts at most `most` entries until the bounds hold; `false` if more must go.
    pub(crate) fn fit(&mut self, most: usize) -> bool {
        for _ in 0..most {
            if self.slots.len() <= self.bounds.entries && self.bytes <= self.bounds.bytes {
                return true;
            }
            let Some((key, slot)) = self.slots.pop_lru() else {
                return true;
            };
            self.forget(&key, &slot);
            self.evictions += 1;
        }
        false
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the total entries evicted before they expired.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Returns the keys of a selection.
    pub(crate) fn selected(&self, selection: CacheSelection) -> Vec<CacheKey> {
        let keys = self.slots.iter().map(|(key, _)| *key);
        keys.filter(|key| selection.contains(key)).collect()
    }

    /// Replaces the store by an empty one; the caller drops the old one outside the lock.
    pub(crate) fn take_all(&mut self) -> Self {
        let empty = Self {
            evictions: self.evictions,
            ..Self::new(self.bounds)
        };
        std::mem::replace(self, empty)
    }

    fn forget(&mut self, key: &CacheKey, slot: &LruSlot) {
        self.bytes -= slot.entry.cost();
        self.ends.remove(&(slot.end, *key));
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, time::Duration};

    use contract_id::contract;
    use proptest::prelude::*;

    use super::*;
    use crate::CacheScope;

    fn key(number: u8) -> CacheKey {
        CacheKey::new(CacheScope::of("default", "m"), [number; 32])
    }

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    fn entry(bytes: usize) -> CacheEntry {
        CacheEntry {
            label: 1,
            stored_at: 0,
            body: vec![b'x'; bytes].into(),
        }
    }

    fn store(entries: usize) -> LruStore {
        LruStore::new(StoreBounds {
            entries,
            bytes: usize::MAX,
        })
    }

    #[test]
    #[contract("CK30", "CH14")]
    fn at_capacity_the_least_recently_used_entry_is_evicted_and_counted() {
        let mut store = store(2);
        store.put(key(1), entry(1), at(100), at(0));
        store.put(key(2), entry(1), at(100), at(0));
        assert!(store.get(&key(1), at(1)).is_some());
        store.put(key(3), entry(1), at(100), at(1));
        assert!(store.get(&key(2), at(1)).is_none(), "1 was used since");
        assert!(store.get(&key(1), at(1)).is_some() && store.get(&key(3), at(1)).is_some());
        assert_eq!((store.len(), store.evictions()), (2, 1));
        store.put(key(3), entry(2), at(100), at(1));
        assert_eq!(
            (store.len(), store.evictions()),
            (2, 1),
            "the same key takes no more room"
        );
    }

    #[test]
    #[contract("CK31")]
    fn an_expired_entry_is_not_found_and_is_evicted_first() {
        let mut store = store(2);
        store.put(key(1), entry(1), at(10), at(0));
        store.put(key(2), entry(1), at(100), at(0));
        assert_eq!(
            store.get(&key(1), at(9)).map(|found| found.left),
            Some(Duration::from_secs(1))
        );
        assert!(store.get(&key(2), at(9)).is_some());
        store.put(key(3), entry(1), at(100), at(10));
        assert!(store.get(&key(2), at(10)).is_some(), "1 was over");
        assert_eq!((store.len(), store.evictions()), (2, 0));
        assert!(store.get(&key(3), at(100)).is_none());
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn bytes_are_bounded_too_and_an_oversized_entry_evicts_none() {
        let mut store = LruStore::new(StoreBounds {
            entries: 100,
            bytes: 3 * entry(100).cost(),
        });
        (1..=3).for_each(|number| store.put(key(number), entry(100), at(100), at(0)));
        store.put(key(4), entry(101), at(100), at(0));
        assert_eq!(
            (store.len(), store.evictions()),
            (2, 2),
            "one byte too many costs two"
        );
        store.put(key(5), entry(10_000), at(100), at(0));
        assert_eq!((store.len(), store.evictions()), (2, 2));
        store.set_bounds(store.bounds.half());
        while !store.fit(1) {}
        assert_eq!(store.len(), 1);
        let old = store.take_all();
        assert_eq!(
            (old.len(), store.len(), store.bytes(), store.evictions()),
            (1, 0, 0, 3)
        );
    }

    proptest! {
        /// Compares the store with a list that is sorted by use.
        #[test]
        fn the_store_agrees_with_a_list(steps in proptest::collection::vec((0_u8..8, any::<bool>(), 1_u64..6), 0..200)) {
            let mut store = store(4);
            let mut list: VecDeque<(u8, u64)> = VecDeque::new();
            for (now, (number, puts, life)) in steps.into_iter().enumerate() {
                let now = now as u64;
                if puts {
                    list.retain(|(other, end)| *other != number && *end > now);
                    list.push_back((number, now + life));
                    if list.len() > 4 {
                        list.pop_front();
                    }
                    store.put(key(number), entry(1), at(now + life), at(now));
                } else {
                    let place = list.iter().position(|(other, end)| *other == number && *end > now);
                    if let Some(used) = place.and_then(|place| list.remove(place)) {
                        list.push_back(used);
                    }
                    prop_assert_eq!(store.get(&key(number), at(now)).is_some(), place.is_some());
                }
                prop_assert!(store.len() <= 4);
                prop_assert_eq!(store.bytes(), store.len() * entry(1).cost());
                prop_assert_eq!(store.ends.len(), store.len());
            }
        }
    }
}
