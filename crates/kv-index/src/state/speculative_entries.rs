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
    pub(crate) stamp: u64,
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
    by_stamp: BTreeMap<u64, SpeculativeEntry>,
    by_end: BTreeSet<(u64, u64)>,
    stamps: u64,
    blocks: u64,
    speculative: u64,
    runs: u64,
    /// During a pruning: the number of blocks to leave.
    pub(crate) pruning: Option<u64>,
}

impl SpeculativeEntries {
    /// Returns a new stamp.
    pub(crate) fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    /// Adds an entry, unless it is empty.
    pub(crate) fn add(&mut self, stamp: u64, entry: SpeculativeEntry) {
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
        self.by_end.insert((entry.ends, stamp));
        self.by_stamp.insert(stamp, entry);
    }

    /// Sets a later expiry for the rest of an entry.
    pub(crate) fn extend(&mut self, stamp: u64, ends: u64) {
        if let Some(promise) = self.by_stamp.get_mut(&stamp) {
            self.by_end.remove(&(promise.ends, stamp));
            promise.ends = ends;
            self.by_end.insert((ends, stamp));
        }
    }

    /// Subtracts `blocks` blocks from the entry `stamp`.
    pub(crate) fn drop_blocks(&mut self, stamp: u64, blocks: u32) {
        let Some(promise) = self.by_stamp.get_mut(&stamp) else {
            return;
        };
        let blocks = u64::from(blocks).min(promise.blocks);
        promise.blocks -= blocks;
        self.blocks -= blocks;
        self.speculative -= if promise.kind == SpeculationKind::Speculative {
            blocks
        } else {
            0
        };
        if promise.blocks == 0 {
            self.forget(stamp);
        }
    }

    /// Returns the runs of an entry, the deepest last.
    pub(crate) fn runs(&self, stamp: u64) -> Vec<u32> {
        self.by_stamp
            .get(&stamp)
            .map_or_else(Vec::new, |promise| promise.runs.clone())
    }

    /// Removes an empty entry.
    pub(crate) fn forget(&mut self, stamp: u64) {
        if let Some(promise) = self.by_stamp.remove(&stamp) {
            self.by_end.remove(&(promise.ends, stamp));
            self.blocks -= promise.blocks;
            self.speculative -= if promise.kind == SpeculationKind::Speculative {
                promise.blocks
            } else {
                0
            };
            self.runs -= promise.runs.len() as u64;
        }
    }

    /// Returns the least recently used entry.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.by_stamp.first_key_value().map(|(stamp, _)| *stamp)
    }

    /// Returns an entry with expired blocks.
    pub(crate) fn expired(&self, now: u64) -> Option<u64> {
        self.by_end
            .first()
            .filter(|(end, _)| *end <= now)
            .map(|(_, stamp)| *stamp)
    }

    /// Returns stamp, runs, blocks and first expiry of every entry.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u32], u64, u64)> {
        self.by_stamp
            .iter()
            .map(|(stamp, promise)| (*stamp, &promise.runs[..], promise.blocks, promise.ends))
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn speculative(&self) -> u64 {
        self.speculative
    }

    /// Returns the heap bytes, estimated.
    pub(crate) fn bytes(&self) -> u64 {
        self.by_stamp.len() as u64 * PROMISE_BYTES + self.runs * 4
    }
}

/// An entry with its places in both trees.
const PROMISE_BYTES: u64 = 160;
