//! The last worker for each prompt beginning: a short memory for prompts of which no target is
//! known to hold any part.
//!
//! A hint only: the worker may have dropped the prompt's blocks, and the policy checks the load
//! first.
//!
//! **Invariant**: at most the allowed number of entries; the least recently used is dropped first.

use std::collections::{BTreeMap, HashMap};

use kv_blocks::{Moment, WorkerId};

use crate::{SharedPrefixRouting, policy::cost::unit};

/// The prefix memory. Keys are hashes over the model and a prompt's beginning.
///
/// ```
/// use kv_blocks::{Moment, WorkerId};
/// use routing::{PrefixMemory, SharedPrefixRouting};
///
/// let mut memory = PrefixMemory::new(SharedPrefixRouting::default());
/// memory.record_served(Moment::START, 7, WorkerId(1), 0);
/// assert_eq!(memory.find(Moment::START, 7), Some(WorkerId(1)));
/// ```
#[derive(Debug)]
pub struct PrefixMemory {
    settings: SharedPrefixRouting,
    entries: HashMap<u64, MemoryEntry>,
    /// Keys by their last use: a lookup or a write.
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

#[derive(Debug)]
struct MemoryEntry {
    worker: WorkerId,
    written: Moment,
    used: u64,
}

impl PrefixMemory {
    /// Creates an empty memory.
    pub fn new(settings: SharedPrefixRouting) -> Self {
        Self {
            settings,
            entries: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Returns the worker of the last recorded request with this beginning.
    pub fn find(&mut self, now: Moment, key: u64) -> Option<WorkerId> {
        let entry = self.entries.get(&key)?;
        let (worker, fresh) = (entry.worker, now.since(entry.written) < self.settings.ttl);
        if fresh {
            self.touch(key)
        } else {
            self.remove(key)
        }
        fresh.then_some(worker)
    }

    /// Records that a worker took a request. A new key is always written; an existing one now and
    /// then, by `random`: often enough to follow a prompt that moved, and seldom enough to cost
    /// nothing where the memory is shared.
    pub fn record_served(&mut self, now: Moment, key: u64, worker: WorkerId, random: u64) {
        let known = self
            .entries
            .get(&key)
            .is_some_and(|entry| now.since(entry.written) < self.settings.ttl);
        if known && unit(random) >= self.settings.write_probability {
            return;
        }
        let used = self.entries.get(&key).map_or(0, |entry| entry.used);
        self.by_use.remove(&used);
        self.entries.insert(
            key,
            MemoryEntry {
                worker,
                written: now,
                used: 0,
            },
        );
        self.touch(key);
        self.shrink_to(self.settings.max_entries);
    }

    /// Drops entries beyond half of the allowed number, and frees their memory.
    pub fn shrink(&mut self) {
        let most = self.settings.max_entries / 2;
        if self.entries.len() > most {
            self.shrink_to(most);
            self.entries.shrink_to_fit();
        }
    }

    fn shrink_to(&mut self, most: usize) {
        while self.entries.len() > most
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.entries.remove(&oldest);
        }
    }

    /// Returns the number of entries, expired ones included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn touch(&mut self, key: u64) {
        // Starts at 1: 0 is an entry that was never used.
        self.uses += 1;
        if let Some(entry) = self.entries.get_mut(&key) {
            self.by_use.remove(&entry.used);
            entry.used = self.uses;
            self.by_use.insert(self.uses, key);
        }
    }

    fn remove(&mut self, key: u64) {
        if let Some(entry) = self.entries.remove(&key) {
            self.by_use.remove(&entry.used);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contract_id::contract;

    use super::*;

    const ALWAYS: u64 = 0;
    const NEVER: u64 = u64::MAX;

    fn at(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(seconds)
    }

    #[test]
    #[contract("V44")]
    fn an_entry_expires_300_seconds_after_its_write() {
        let mut memory = PrefixMemory::new(SharedPrefixRouting::default());
        memory.record_served(at(0), 1, WorkerId(1), NEVER);
        assert_eq!(memory.find(at(299), 1), Some(WorkerId(1)));
        assert_eq!(memory.find(at(300), 1), None);
        assert!(memory.is_empty(), "an expired entry is dropped by a lookup");
        memory.record_served(at(400), 1, WorkerId(2), NEVER);
        assert_eq!(
            memory.find(at(400), 1),
            Some(WorkerId(2)),
            "a missing entry is written whatever the draw"
        );
    }

    #[test]
    #[contract("V44")]
    fn a_known_prefix_is_rewritten_one_time_in_ten() {
        let mut memory = PrefixMemory::new(SharedPrefixRouting::default());
        memory.record_served(at(0), 1, WorkerId(1), NEVER);
        memory.record_served(at(10), 1, WorkerId(2), NEVER);
        assert_eq!(memory.find(at(10), 1), Some(WorkerId(1)));
        memory.record_served(at(20), 1, WorkerId(2), ALWAYS);
        assert_eq!(memory.find(at(319), 1), Some(WorkerId(2)));
        let mut written = 0;
        for i in 0..10_000u64 {
            memory.record_served(at(20), 1, WorkerId(1), NEVER);
            let before = memory.find(at(20), 1);
            let other = if before == Some(WorkerId(3)) {
                WorkerId(4)
            } else {
                WorkerId(3)
            };
            memory.record_served(
                at(20),
                1,
                other,
                crate::policy::cost::random_for(5, usize::try_from(i).expect("small")),
            );
            written += u32::from(memory.find(at(20), 1) != before);
        }
        assert!((800..1200).contains(&written), "{written} of 10000");
    }

    #[test]
    #[contract("V44")]
    fn the_least_recently_requested_prefix_is_evicted() {
        let mut memory = PrefixMemory::new(SharedPrefixRouting {
            max_entries: 3,
            ..Default::default()
        });
        for key in 0..3 {
            memory.record_served(at(key), key, WorkerId(1), NEVER);
        }
        assert!(memory.find(at(3), 0).is_some());
        memory.record_served(at(4), 9, WorkerId(1), NEVER);
        let left: Vec<_> = (0..10)
            .filter(|key| memory.find(at(5), *key).is_some())
            .collect();
        assert_eq!(
            (left, memory.len(), memory.by_use.len()),
            (vec![0, 2, 9], 3, 3)
        );
    }
}
