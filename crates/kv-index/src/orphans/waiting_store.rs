//! One store that waits, and the keys by which its blocks are found.

use std::collections::BTreeMap;

use kv_blocks::Tier;

use super::blocks::{NumberScope, NumberSet, OrphanBlocks};

/// Estimates: an entry of the index by name, with the name; a piece with its entry by parent; a
/// store.
const BLOCK_BYTES: usize = 56;
pub(super) const PIECE_BYTES: usize = 80;
const STORE_BYTES: usize = 352;

/// A store of one target with blocks that still wait.
#[derive(Debug)]
pub(super) struct WaitingStore {
    pub(super) slot: u32,
    pub(super) late: OrphanBlocks,
    /// First block to the block behind the last of each piece. Each piece waits for the block in
    /// front of it.
    pub(super) pieces: BTreeMap<u32, u32>,
}

impl WaitingStore {
    /// Returns the block for which the piece that begins with block `start` waits.
    pub(super) fn parent(&self, start: u32) -> Option<u64> {
        start
            .checked_sub(1)
            .map_or(self.late.parent(), |before| Some(self.late.number(before)))
    }

    pub(super) fn blocks(&self) -> u64 {
        self.pieces
            .iter()
            .map(|(start, end)| u64::from(end - start))
            .sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        let blocks = self.late.len() * BLOCK_BYTES + self.late.own_bytes();
        (STORE_BYTES + blocks + self.pieces.len() * PIECE_BYTES) as u64
    }

    pub(super) fn by_number(&self, store: u64, at: u32) -> ByNumber {
        let (numbers, number, tier) = (self.late.numbers(), self.late.number(at), self.late.tier());
        ByNumber {
            slot: self.slot,
            numbers,
            number,
            tier,
            store,
            at,
        }
    }
}

/// A piece by the block for which it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ByParent {
    pub(super) slot: u32,
    pub(super) parent: u64,
    pub(super) scope: NumberScope,
    pub(super) store: u64,
    pub(super) start: u32,
}

/// A waiting block by its own engine hash or rolling hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ByNumber {
    pub(super) slot: u32,
    pub(super) number: u64,
    pub(super) numbers: NumberSet,
    pub(super) tier: Tier,
    pub(super) store: u64,
    pub(super) at: u32,
}
