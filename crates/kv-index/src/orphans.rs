//! Orphans: announced blocks whose parent is unknown, until the parent arrives.
//!
//! A lost event leaves blocks without a known parent. They are credited to no target; if the parent
//! is announced after all, the caller gets them back and applies them. A waiting block can be
//! removed like any other: the blocks behind it then wait for the removed block itself, as they
//! would behind a hole.
//!
//! Not here: the resolution of engine hashes. A block waits for a parent of the same target, by
//! engine hash and block size, or by rolling hash and namespace.
//!
//! **Invariant**: waiting blocks are bounded in number and bytes; the oldest are dropped first, and
//! counted.

use std::collections::{BTreeMap, BTreeSet};

use kv_blocks::{Namespace, Tier};

mod blocks;
mod pieces;
#[cfg(test)]
mod tests;
mod waiting_store;

pub(crate) use self::blocks::{HashKeyedBlocks, NumberScope, NumberSet, OrphanBlocks};
use self::waiting_store::{ByNumber, ByParent, PIECE_BYTES, WaitingStore};

/// Maximum number of waiting pieces.
const MAX_WAITING: usize = 4096;
/// All waiting blocks.
#[derive(Debug)]
pub(crate) struct Orphans {
    max_bytes: u64,
    /// Stores in order of arrival. Bounded: [`MAX_WAITING`] pieces and `max_bytes`, beyond which
    /// the oldest are dropped.
    stores: BTreeMap<u64, WaitingStore>,
    by_parent: BTreeSet<ByParent>,
    by_number: BTreeSet<ByNumber>,
    next: u64,
    bytes: u64,
    dropped: u64,
}

impl Orphans {
    /// Creates an empty set of at most `max_bytes`.
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            stores: BTreeMap::new(),
            by_parent: BTreeSet::new(),
            by_number: BTreeSet::new(),
            next: 0,
            bytes: 0,
            dropped: 0,
        }
    }

    /// Adds the blocks that a target stored behind an unannounced parent. Ignores blocks without a
    /// parent, or with different numbers of tokens and blocks.
    pub(crate) fn insert(&mut self, slot: u32, late: OrphanBlocks) {
        let Some(count) = u32::try_from(late.len()).ok().filter(|_| late.is_sound()) else {
            return;
        };
        let mut late = late;
        late.shrink_to_fit();
        let waiting = WaitingStore {
            slot,
            late,
            pieces: BTreeMap::new(),
        };
        if waiting.bytes() + PIECE_BYTES as u64 > self.max_bytes {
            // It exceeds the limit alone: nothing else is dropped for it.
            self.dropped += u64::from(count);
            return;
        }
        let store = self.next;
        self.next += 1;
        self.by_number
            .extend((0..count).map(|at| waiting.by_number(store, at)));
        self.bytes += waiting.bytes();
        self.stores.insert(store, waiting);
        self.add_piece(store, 0, count);
        self.stay_bounded();
    }

    /// Returns the blocks that waited for a block that the target announced, in order of arrival.
    /// The caller applies them next.
    pub(crate) fn arrived(
        &mut self,
        slot: u32,
        scope: NumberScope,
        number: u64,
    ) -> Vec<OrphanBlocks> {
        let first = ByParent {
            slot,
            parent: number,
            scope,
            store: 0,
            start: 0,
        };
        let alike =
            |entry: &&ByParent| (entry.slot, entry.parent, entry.scope) == (slot, number, scope);
        let waited: Vec<_> = self
            .by_parent
            .range(first..)
            .take_while(alike)
            .copied()
            .collect();
        let mut arrived = Vec::with_capacity(waited.len());
        for ByParent { store, start, .. } in waited {
            let Some(end) = self.take_piece(store, start) else {
                continue;
            };
            let waiting = &self.stores[&store];
            arrived.push(waiting.late.piece(start, end));
            for at in start..end {
                self.by_number.remove(&waiting.by_number(store, at));
            }
            self.free_if_done(store);
        }
        arrived
    }

    /// Removes a waiting block of a target from a tier: the blocks in front of it wait on, and
    /// those behind it wait for it to be announced again. Returns whether it waited.
    pub(crate) fn removed(
        &mut self,
        slot: u32,
        numbers: NumberSet,
        number: u64,
        tier: Tier,
    ) -> bool {
        let first = ByNumber {
            slot,
            number,
            numbers,
            tier,
            store: 0,
            at: 0,
        };
        let key = |entry: &ByNumber| (entry.slot, entry.number, entry.numbers, entry.tier);
        let alike = |entry: &&ByNumber| key(entry) == key(&first);
        let removed: Vec<_> = self
            .by_number
            .range(first..)
            .take_while(alike)
            .copied()
            .collect();
        for entry in &removed {
            self.by_number.remove(entry);
            let ByNumber { store, at, .. } = *entry;
            let Some(waiting) = self.stores.get(&store) else {
                continue;
            };
            let piece = waiting
                .pieces
                .range(..=at)
                .next_back()
                .map(|(start, end)| (*start, *end));
            let Some((start, end)) = piece.filter(|(_, end)| at < *end) else {
                continue;
            };
            self.take_piece(store, start);
            self.add_piece(store, start, at);
            self.add_piece(store, at + 1, end);
            self.free_if_done(store);
        }
        self.stay_bounded();
        !removed.is_empty()
    }

    /// Drops all waiting blocks of a target.
    pub(crate) fn clear(&mut self, slot: u32) {
        self.forget(|waiting| waiting.slot == slot);
    }

    /// Drops the waiting blocks of a target that go by names.
    pub(crate) fn clear_names(&mut self, slot: u32) {
        let is_named = |late: &OrphanBlocks| !matches!(late, OrphanBlocks::Hashed(_));
        self.forget(|waiting| waiting.slot == slot && is_named(&waiting.late));
    }

    /// Drops the waiting blocks of a target for one tier.
    pub(crate) fn clear_tier(&mut self, slot: u32, tier: Tier) {
        self.forget(|waiting| waiting.slot == slot && waiting.late.tier() == tier);
    }

    /// Drops the waiting blocks of a target for one tier that may belong to a namespace.
    pub(crate) fn clear_stream(&mut self, slot: u32, namespace: &Namespace, tier: Tier) {
        self.forget(|waiting| {
            (waiting.slot, waiting.late.tier()) == (slot, tier) && waiting.late.may_be_of(namespace)
        });
    }

    /// Returns whether blocks of a target wait for a tier.
    pub(crate) fn any_in_tier(&self, slot: u32, tier: Tier) -> bool {
        let mut stores = self.stores.values();
        stores.any(|waiting| waiting.slot == slot && waiting.late.tier() == tier)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }

    /// Returns the number of waiting pieces.
    pub(crate) fn len(&self) -> usize {
        self.by_parent.len()
    }

    /// Returns the heap bytes, estimated.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of blocks dropped for lack of room, since the start.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    fn stay_bounded(&mut self) {
        while (self.len() > MAX_WAITING || self.bytes > self.max_bytes) && self.drop_oldest() {}
    }

    /// Drops the store that has waited longest; returns whether there was one.
    pub(crate) fn drop_oldest(&mut self) -> bool {
        let Some((store, waiting)) = self.stores.first_key_value() else {
            return false;
        };
        self.dropped += waiting.blocks();
        self.drop_store(*store);
        true
    }
}
