//! Copies: how often one target holds the same block in its device tier.
//!
//! Engines announce each physical copy: a cached prompt of exactly k blocks computes its last block
//! once more, which is stored again, and each of the two copies is removed by itself. If
//! configured, they also announce reused blocks, without any new copy. No field tells the two
//! apart, so neither a set nor a counter of copies is right: the set loses a block with the first
//! of two removals, the counter never drops one that was reported twice and removed once.
//!
//! The rule, for blocks that the target already holds on its device:
//! - A repeated store counts as a further copy, except in the leading run of held blocks of an
//!   event without parent: an event from the root repeats reused blocks. A prompt of one block that
//!   is computed again looks the same, and counts once.
//! - A removal takes one copy. The credit that remains is unbacked. It is confirmed as soon as the
//!   target stores the block, or stores a block right behind it, which it can only do with the
//!   block in use; and it expires after a turnover: when the target has announced as many further
//!   removals as it held copies of blocks at that moment, since by then a least-recently-used cache
//!   has evicted every unused block.
//! - Where removals may have been lost, every block counts as one copy, and unbacked credit ends at
//!   once.
//!
//! Not here: the blocks themselves, and tiers other than the device, which stay plain sets.
//!
//! **Invariant**: the credit is never below that of a set, nor above that of a counter.

use std::collections::{BTreeSet, HashMap};

use crate::{runs::BlockRange, table::BlockRef};

/// Maximum counted blocks of one target; a further one counts as held once, however often it is
/// stored.
const MAX_COUNTED: usize = 4096;
/// Maximum counted copies beside the first one.
const MAX_SPARE: u8 = 7;

/// Count of one block, to be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountedBlock {
    pub(crate) block: BlockRef,
    /// Copies beside the first one.
    pub(crate) spare: u8,
    /// If its credit is unbacked: the number of the removal with which it ends.
    pub(crate) lapses: Option<u64>,
}

/// Copy count of one held block.
#[derive(Clone, Copy, Debug, Default)]
struct CopyCount {
    /// Copies beside the first one.
    spare: u8,
    trust: Option<UnbackedCredit>,
}

/// A credit without a backing announcement.
#[derive(Clone, Copy, Debug)]
struct UnbackedCredit {
    /// Number of the removal with which it ends.
    lapses: u64,
}

/// The counted blocks of one target. Each of them is held on the device.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Bounded: [`MAX_COUNTED`].
    counted: HashMap<BlockRef, CopyCount>,
    /// Unbacked credits, by the removal that ends them.
    lapses: BTreeSet<(u64, BlockRef)>,
    spares: u64,
    /// Removals announced so far.
    removals: u64,
    /// Whether the snapshot in progress contains the current counts.
    saved: bool,
}

impl Copies {
    /// Returns whether no block is counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.counted.is_empty()
    }

    /// Returns the number of counted blocks.
    pub(crate) fn len(&self) -> u64 {
        self.counted.len() as u64
    }

    /// Returns the number of removals announced so far.
    pub(crate) fn removals(&self) -> u64 {
        self.removals
    }

    /// Begins a snapshot, which has no counts yet.
    pub(crate) fn begin_save(&mut self) {
        self.saved = false;
    }

    /// Returns the counts, unless the snapshot in progress has them as they are.
    pub(crate) fn take_unsaved(&mut self) -> Option<Vec<CountedBlock>> {
        if std::mem::replace(&mut self.saved, true) {
            return None;
        }
        let to_save = |(block, counted): (&BlockRef, &CopyCount)| CountedBlock {
            block: *block,
            spare: counted.spare,
            lapses: counted.trust.map(|trust| trust.lapses),
        };
        Some(self.counted.iter().map(to_save).collect())
    }

    /// Restores the count of a held block, which must have none. A further block than the bound
    /// counts as held once.
    pub(crate) fn restore(&mut self, counted: CountedBlock) {
        let CountedBlock {
            block,
            spare,
            lapses,
        } = counted;
        if self.counted.len() >= MAX_COUNTED {
            return;
        }
        self.saved = false;
        let spare = spare.min(MAX_SPARE);
        let trust = lapses.map(|lapses| UnbackedCredit { lapses });
        self.counted.insert(block, CopyCount { spare, trust });
        self.spares += u64::from(spare);
        self.lapses.extend(lapses.map(|lapses| (lapses, block)));
    }

    /// Returns the counted blocks.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockRef> {
        self.counted.keys().copied()
    }

    /// Counts a further copy of a held block.
    pub(crate) fn add(&mut self, key: BlockRef) {
        if self.counted.len() >= MAX_COUNTED && !self.counted.contains_key(&key) {
            return;
        }
        self.saved = false;
        let counted = self.counted.entry(key).or_default();
        if counted.spare < MAX_SPARE {
            counted.spare += 1;
            self.spares += 1;
        }
        self.confirm(key);
    }

    /// Counts copies for blocks that were stored; those in `resident_ranges` were there before, so
    /// they are copies, or repetitions as long as `repeats`: it ends with the first block that was
    /// not held.
    pub(crate) fn store(
        &mut self,
        blocks: BlockRange,
        resident_ranges: &[(u32, u32)],
        repeats: &mut bool,
    ) {
        let run = blocks.run;
        let mut next = blocks.start;
        for (start, end) in resident_ranges.iter().copied() {
            *repeats &= start == next;
            next = end;
            if *repeats && self.is_empty() {
                continue;
            }
            for at in start..end {
                let block_ref = BlockRef { run, at };
                if *repeats {
                    self.confirm(block_ref)
                } else {
                    self.add(block_ref)
                }
            }
        }
        *repeats &= next == blocks.end;
    }

    /// Confirms a block's credit: the target certainly has the block.
    pub(crate) fn confirm(&mut self, key: BlockRef) {
        let Some(counted) = self.counted.get_mut(&key) else {
            return;
        };
        self.saved = false;
        if let Some(trust) = counted.trust.take() {
            self.lapses.remove(&(trust.lapses, key));
        }
        if counted.spare == 0 {
            self.counted.remove(&key);
        }
    }

    /// Records announced removals.
    pub(crate) fn record_removals(&mut self, blocks: u64) {
        self.removals = self.removals.saturating_add(blocks);
    }

    /// Takes one copy of a block that has several; the credit of the others is unbacked from now
    /// on. `device_blocks`: blocks on the target's device. Returns whether there were several.
    pub(crate) fn take(&mut self, key: BlockRef, device_blocks: u64) -> bool {
        let Some(counted) = self
            .counted
            .get_mut(&key)
            .filter(|counted| counted.spare > 0)
        else {
            return false;
        };
        self.saved = false;
        counted.spare -= 1;
        self.spares -= 1;
        let lapses = self
            .removals
            .saturating_add(device_blocks)
            .saturating_add(self.spares);
        if let Some(earlier) = counted.trust.replace(UnbackedCredit { lapses }) {
            self.lapses.remove(&(earlier.lapses, key));
        }
        self.lapses.insert((lapses, key));
        true
    }

    /// Returns the next block whose credit has expired; the caller removes it from the target.
    pub(crate) fn next_expired(&mut self) -> Option<BlockRef> {
        let (lapses, key) = *self.lapses.first()?;
        if lapses > self.removals {
            return None;
        }
        self.forget(key);
        Some(key)
    }

    /// Handles a possible loss of removals: resets all counts to one copy, and returns the blocks
    /// with unbacked credit, for the caller to remove from the target.
    pub(crate) fn distrust(&mut self) -> Vec<BlockRef> {
        let on_trust = |(key, counted): (BlockRef, CopyCount)| counted.trust.map(|_| key);
        let lapsed = self.counted.drain().filter_map(on_trust).collect();
        self.lapses.clear();
        self.spares = 0;
        self.saved = false;
        lapsed
    }

    /// Drops the counts of a run that the target does not hold any more.
    pub(crate) fn remove_run(&mut self, run: u32) {
        let blocks: Vec<_> = self
            .counted
            .keys()
            .filter(|block| block.run == run)
            .copied()
            .collect();
        blocks.into_iter().for_each(|block| self.forget(block));
    }

    /// Drops the count of a block that the target does not hold any more.
    pub(crate) fn discard(&mut self, key: BlockRef) {
        self.forget(key);
    }

    fn forget(&mut self, key: BlockRef) {
        let Some(counted) = self.counted.remove(&key) else {
            return;
        };
        self.saved = false;
        self.spares -= u64::from(counted.spare);
        if let Some(trust) = counted.trust {
            self.lapses.remove(&(trust.lapses, key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> BlockRef {
        BlockRef {
            run: number / 100,
            at: number % 100,
        }
    }

    #[test]
    fn counted_blocks_and_copies_are_bounded() {
        let mut copies = Copies::default();
        for number in 0..2 * u32::try_from(MAX_COUNTED).unwrap() {
            for _ in 0..100 {
                copies.add(key(number));
            }
        }
        assert_eq!(copies.len(), MAX_COUNTED as u64);
        let taken = (0..100).filter(|_| copies.take(key(0), 1)).count();
        assert_eq!(taken, usize::from(MAX_SPARE));
        assert!(
            !copies.take(key(2 * u32::try_from(MAX_COUNTED).unwrap() - 1), 1),
            "held only once"
        );
    }

    #[test]
    fn removed_lapsed_and_doubted_blocks_leave_no_count() {
        let mut copies = Copies::default();
        for number in 0..4 {
            copies.add(key(number));
            copies.add(key(number));
            assert!(copies.take(key(number), 1));
        }
        copies.discard(key(0));
        copies.confirm(key(1));
        for _ in 0..100 {
            copies.record_removals(1);
        }
        let lapsed = std::iter::from_fn(|| copies.next_expired()).count();
        assert_eq!(lapsed, 2);
        assert_eq!(
            (copies.len(), copies.spares),
            (1, 1),
            "the block without doubt keeps its extra copy"
        );
        assert_eq!(copies.distrust(), []);
        assert_eq!(
            (copies.len(), copies.spares, copies.lapses.len()),
            (0, 0, 0)
        );
    }
}
