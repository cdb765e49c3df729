//! Blocks a target is expected to hold although its stream has not said so.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
};

use kv_blocks::Moment;

use crate::{blocks::BlockKey, owner::OwnerId};

/// Why a block is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Events will confirm it soon.
    Speculative,
    /// No events to be had.
    Predicted,
}

/// What is expected, and until when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) kind: Kind,
    pub(crate) expires: Moment,
}

/// What one call of [`crate::KvIndex::speculate`] or [`crate::KvIndex::predict`] entered or renewed; for
/// [`crate::KvIndex::retract`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Promised {
    /// Stamps are never used twice, so they find what is still as this call left it, and nothing else.
    pub(crate) stamps: Range<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    owner: OwnerId,
    promise: Promise,
    stamp: u64,
}

/// All expected blocks, findable by block, by owner, by age and by end.
#[derive(Debug, Default)]
pub(crate) struct Predictions {
    by_block: HashMap<BlockKey, Vec<Entry>>,
    by_age: BTreeMap<u64, (BlockKey, OwnerId)>,
    by_end: BTreeSet<(Moment, u64)>,
    /// Stamps.
    by_owner: HashMap<OwnerId, BTreeSet<u64>>,
    stamps: u64,
    speculative: u64,
}

impl Predictions {
    /// Numbers for `count` entries of one chain. The front of a chain is worth more than its end, so it counts as
    /// younger and is pruned later.
    /// They are to be given out from the last to the first.
    pub(crate) fn stamps(&mut self, count: usize) -> Range<u64> {
        let first = self.stamps;
        self.stamps += count as u64;
        first..self.stamps
    }

    /// The stamp that the next entry will get: all there is bears a lower one.
    pub(crate) fn next_stamp(&self) -> u64 {
        self.stamps
    }

    pub(crate) fn contains(&self, key: BlockKey, owner: OwnerId) -> bool {
        self.by_block.get(&key).is_some_and(|entries| entries.iter().any(|entry| entry.owner == owner))
    }

    /// Adds or renews an entry. A renewed one never ends earlier than before.
    pub(crate) fn insert(&mut self, key: BlockKey, owner: OwnerId, promise: Promise, stamp: u64) {
        let mut promise = promise;
        if let Some(old) = self.take(key, owner).filter(|old| old.promise.expires > promise.expires) {
            promise = old.promise;
        }
        self.by_block.entry(key).or_default().push(Entry { owner, promise, stamp });
        self.by_age.insert(stamp, (key, owner));
        self.by_owner.entry(owner).or_default().insert(stamp);
        self.by_end.insert((promise.expires, stamp));
        self.speculative += u64::from(promise.kind == Kind::Speculative);
    }

    /// Returns whether there was one.
    pub(crate) fn remove(&mut self, key: BlockKey, owner: OwnerId) -> bool {
        self.take(key, owner).is_some()
    }

    /// Removes the least recently used entry; returns its block.
    pub(crate) fn remove_oldest(&mut self) -> Option<BlockKey> {
        let (key, owner) = *self.by_age.first_key_value()?.1;
        self.take(key, owner);
        Some(key)
    }

    /// Removes one entry whose time is over; returns its block.
    pub(crate) fn remove_expired(&mut self, now: Moment) -> Option<BlockKey> {
        let (end, stamp) = *self.by_end.first()?;
        if end > now {
            return None;
        }
        let (key, owner) = self.by_age[&stamp];
        self.take(key, owner);
        Some(key)
    }

    /// Removes the entry that bears `stamp`; returns its block. There is none when somebody renewed it since, and when it
    /// was confirmed, pruned or expired.
    pub(crate) fn remove_stamped(&mut self, stamp: u64) -> Option<BlockKey> {
        let (key, owner) = *self.by_age.get(&stamp)?;
        self.take(key, owner);
        Some(key)
    }

    /// Removes the oldest entry of an owner if its stamp is below `end`; returns its block.
    pub(crate) fn remove_oldest_of(&mut self, owner: OwnerId, end: u64) -> Option<BlockKey> {
        let stamp = *self.by_owner.get(&owner)?.first()?;
        if stamp < end { self.remove_stamped(stamp) } else { None }
    }

    /// Owners expected to hold a block.
    pub(crate) fn holders(&self, key: BlockKey, now: Moment) -> impl Iterator<Item = OwnerId> {
        let entries = self.by_block.get(&key).map_or(&[][..], Vec::as_slice);
        entries.iter().filter(move |entry| entry.promise.expires > now).map(|entry| entry.owner)
    }

    pub(crate) fn len(&self) -> u64 {
        self.by_age.len() as u64
    }

    pub(crate) fn speculative(&self) -> u64 {
        self.speculative
    }

    fn take(&mut self, key: BlockKey, owner: OwnerId) -> Option<Entry> {
        let entries = self.by_block.get_mut(&key)?;
        let at = entries.iter().position(|entry| entry.owner == owner)?;
        let entry = entries.swap_remove(at);
        if entries.is_empty() {
            self.by_block.remove(&key);
        }
        self.by_age.remove(&entry.stamp);
        if let Some(stamps) = self.by_owner.get_mut(&owner) {
            stamps.remove(&entry.stamp);
            if stamps.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
        self.by_end.remove(&(entry.promise.expires, entry.stamp));
        self.speculative -= u64::from(entry.promise.kind == Kind::Speculative);
        Some(entry)
    }
}
