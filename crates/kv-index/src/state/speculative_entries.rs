//! The table of speculative entries: number of blocks, creation, expiry.
//!
//! The expected blocks themselves are in the runs, with the stamp of the entry that added or last
//! renewed them.

use std::collections::{BTreeMap, BTreeSet};

/// Kind of an unconfirmed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpeculationKind {
    /// Events will confirm the blocks soon.
    Speculative,
    /// The target has no events.
    Predicted,
}

/// Id of the blocks that one call of [`crate::KvIndex::speculate`] or [`crate::KvIndex::predict`]
/// added or renewed; for [`crate::KvIndex::retract`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeculationId {
    /// Stamps are never used twice, so this one finds exactly the blocks unchanged since the call.
    /// 0: none.
    pub(crate) generation: u64,
}

/// The part of one entry that is not yet confirmed, renewed, pruned or taken back.
#[derive(Clone, Debug)]
pub(crate) struct SpeculativeEntry {
    pub(crate) kind: SpeculationKind,
    /// Earliest expiry of its blocks.
    pub(crate) ends: u64,
    /// The runs with its blocks, the deepest last.
    pub(crate) runs: Vec<u32>,
    pub(crate) blocks: u64,
}

/// All speculative entries; a higher stamp is younger.
#[derive(Debug, Default)]
pub(crate) struct SpeculativeEntries {
    by_generation: BTreeMap<u64, SpeculativeEntry>,
    by_end: BTreeSet<(u64, u64)>,
    last_generation: u64,
    blocks: u64,
    speculative: u64,
    runs: u64,
    /// During a pruning: the number of blocks to leave.
    pub(crate) pruning: Option<u64>,
}

impl SpeculativeEntries {
    /// Returns a new stamp.
    pub(crate) fn next_generation(&mut self) -> u64 {
        self.last_generation += 1;
        self.last_generation
    }

    /// Adds an entry, unless it is empty.
    pub(crate) fn add(&mut self, generation: u64, entry: SpeculativeEntry) {
        if entry.blocks == 0 {
            return;
        }
        self.blocks += entry.blocks;
        self.speculative += if entry.kind == SpeculationKind::Speculative {
            entry.blocks
        } else {
            0
        };
        self.runs += entry.runs.len() as u64;
        self.by_end.insert((entry.ends, generation));
        self.by_generation.insert(generation, entry);
    }

    /// Sets a later expiry for the rest of an entry.
    pub(crate) fn extend(&mut self, generation: u64, ends: u64) {
        if let Some(found) = self.by_generation.get_mut(&generation) {
            self.by_end.remove(&(found.ends, generation));
            found.ends = ends;
            self.by_end.insert((ends, generation));
        }
    }

    /// Subtracts `blocks` blocks from the entry `generation`.
    pub(crate) fn drop_blocks(&mut self, generation: u64, blocks: u32) {
        let Some(found) = self.by_generation.get_mut(&generation) else {
            return;
        };
        let blocks = u64::from(blocks).min(found.blocks);
        found.blocks -= blocks;
        self.blocks -= blocks;
        self.speculative -= if found.kind == SpeculationKind::Speculative {
            blocks
        } else {
            0
        };
        if found.blocks == 0 {
            self.forget(generation);
        }
    }

    /// Returns the runs of an entry, the deepest last.
    pub(crate) fn runs(&self, generation: u64) -> Vec<u32> {
        self.by_generation
            .get(&generation)
            .map_or_else(Vec::new, |found| found.runs.clone())
    }

    /// Removes an empty entry.
    pub(crate) fn forget(&mut self, generation: u64) {
        if let Some(found) = self.by_generation.remove(&generation) {
            self.by_end.remove(&(found.ends, generation));
            self.blocks -= found.blocks;
            self.speculative -= if found.kind == SpeculationKind::Speculative {
                found.blocks
            } else {
                0
            };
            self.runs -= found.runs.len() as u64;
        }
    }

    /// Returns the least recently used entry.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.by_generation
            .first_key_value()
            .map(|(generation, _)| *generation)
    }

    /// Returns an entry with expired blocks.
    pub(crate) fn expired(&self, now: u64) -> Option<u64> {
        self.by_end
            .first()
            .filter(|(end, _)| *end <= now)
            .map(|(_, generation)| *generation)
    }

    /// Returns stamp, runs, blocks and first expiry of every entry.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u32], u64, u64)> {
        self.by_generation
            .iter()
            .map(|(generation, found)| (*generation, &found.runs[..], found.blocks, found.ends))
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn speculative(&self) -> u64 {
        self.speculative
    }

    /// Returns the heap bytes, estimated.
    pub(crate) fn bytes(&self) -> u64 {
        self.by_generation.len() as u64 * ENTRY_BYTES + self.runs * 4
    }
}

/// An entry with its places in both trees.
const ENTRY_BYTES: u64 = 160;
