//! A table in many small parts.
//!
//! A walk over the whole table visits part after part and lets others in between; nothing moves from one part to
//! another, so such a walk sees whatever stays throughout exactly once. A table in parts also grows a part at a time:
//! nobody waits for millions of entries to be moved at once.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::Hash,
};

/// A key that says which part it belongs to.
pub(crate) trait Spread {
    /// A number that differs between keys; it need not be evenly spread.
    fn spread(&self) -> u64;
}

/// A table in a fixed number of parts.
#[derive(Debug)]
pub(crate) struct Parted<K, V> {
    parts: Box<[HashMap<K, V>]>,
    mask: u64,
}

impl<K: Spread + Eq + Hash, V> Parted<K, V> {
    /// An empty table of at least `parts` parts.
    pub(crate) fn new(parts: usize) -> Self {
        let count = parts.next_power_of_two();
        let hasher = RandomState::new();
        let parts = (0..count).map(|_| HashMap::with_hasher(hasher.clone())).collect();
        Self { parts, mask: count as u64 - 1 }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.parts[self.at(key)].get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.parts[self.at(key)].get_mut(key)
    }

    pub(crate) fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.parts[self.at(&key)].entry(key).or_insert_with(make)
    }

    /// Returns what was there before.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.parts[self.at(&key)].insert(key, value)
    }

    /// Returns what was there. A part that is empty then gives its memory back, if it is worth it.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let part = &mut self.parts[self.at(key)];
        let value = part.remove(key)?;
        if part.is_empty() && part.capacity() > 64 {
            *part = HashMap::with_hasher(part.hasher().clone());
        }
        Some(value)
    }

    /// How many parts there are.
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// What is in one part; nothing beyond the last.
    pub(crate) fn part(&self, part: usize) -> impl Iterator<Item = (&K, &V)> {
        self.parts.get(part).into_iter().flatten()
    }

    fn at(&self, key: &K) -> usize {
        // The product's upper half depends on all of the number.
        let mixed = key.spread().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        usize::try_from(mixed & self.mask).expect("the mask is a table's length less one")
    }
}
