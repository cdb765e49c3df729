//! What is expected because requests were sent somewhere: how much, since when, until when.
//!
//! The expected blocks themselves stand in the runs, with the stamp of the promise that entered or last renewed them.

use std::collections::{BTreeMap, BTreeSet};

/// Why blocks are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpeculationKind {
    /// Events will confirm them soon.
    Speculative,
    /// No events to be had.
    Predicted,
}

/// What one call of [`crate::KvIndex::speculate`] or [`crate::KvIndex::predict`] entered or renewed; for
/// [`crate::KvIndex::retract`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeculationId {
    /// Stamps are never used twice, so they find what is still as this call left it, and nothing else. 0: nothing.
    pub(crate) stamp: u64,
}

/// One promise, as far as it has not been confirmed, renewed, pruned or taken back.
#[derive(Clone, Debug)]
struct SpeculativeEntry {
    kind: SpeculationKind,
    /// When the first of its blocks ends.
    ends: u64,
    /// Where its blocks are, the deepest last.
    runs: Vec<u32>,
    blocks: u64,
}

/// All promises; a higher stamp is younger.
#[derive(Debug, Default)]
pub(crate) struct SpeculativeEntries {
    by_stamp: BTreeMap<u64, SpeculativeEntry>,
    by_end: BTreeSet<(u64, u64)>,
    stamps: u64,
    blocks: u64,
    speculative: u64,
    runs: u64,
}

impl SpeculativeEntries {
    /// A stamp that was never used.
    pub(crate) fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    /// Notes a promise of `blocks` blocks, the first of which ends at `ends`.
    pub(crate) fn add(
        &mut self,
        stamp: u64,
        kind: SpeculationKind,
        ends: u64,
        runs: Vec<u32>,
        blocks: u64,
    ) {
        if blocks == 0 {
            return;
        }
        self.blocks += blocks;
        self.speculative += if kind == SpeculationKind::Speculative {
            blocks
        } else {
            0
        };
        self.runs += runs.len() as u64;
        self.by_end.insert((ends, stamp));
        self.by_stamp.insert(
            stamp,
            SpeculativeEntry {
                kind,
                ends,
                runs,
                blocks,
            },
        );
    }

    /// What is left of a promise ends later.
    pub(crate) fn extend(&mut self, stamp: u64, ends: u64) {
        if let Some(promise) = self.by_stamp.get_mut(&stamp) {
            self.by_end.remove(&(promise.ends, stamp));
            promise.ends = ends;
            self.by_end.insert((ends, stamp));
        }
    }

    /// `blocks` blocks do not bear `stamp` any more.
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

    /// The runs of a promise, the deepest last.
    pub(crate) fn runs(&self, stamp: u64) -> Vec<u32> {
        self.by_stamp
            .get(&stamp)
            .map_or_else(Vec::new, |promise| promise.runs.clone())
    }

    /// Ends a promise of which nothing is left.
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

    /// The least recently used promise.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.by_stamp.first_key_value().map(|(stamp, _)| *stamp)
    }

    /// A promise with blocks whose time is over.
    pub(crate) fn expired(&self, now: u64) -> Option<u64> {
        self.by_end
            .first()
            .filter(|(end, _)| *end <= now)
            .map(|(_, stamp)| *stamp)
    }

    /// Stamp, runs, blocks and first end of every promise.
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

    /// Heap bytes, estimated.
    pub(crate) fn bytes(&self) -> u64 {
        self.by_stamp.len() as u64 * PROMISE_BYTES + self.runs * 4
    }
}

/// A promise with its places in both trees.
const PROMISE_BYTES: u64 = 160;
