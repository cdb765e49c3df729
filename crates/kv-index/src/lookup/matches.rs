//! The result of a lookup.

use crate::runs::each_bit;

/// Small number of a registered target inside one index, assigned in order of registration from 0.
/// A cleared target gets another slot; its old one has no target ([`crate::KvIndex::target`]) until
/// it is assigned again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetSlot(pub u32);

/// The part of a slot's run that is not simply on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MixedHolding {
    pub(crate) slot: u32,
    /// Blocks by best tier, and expected ones; the rest of the run is the device's share.
    pub(crate) best: [u32; 5],
    /// Blocks in each tier; for the device, without those that are in another tier too.
    pub(crate) present: [u32; 4],
}

/// How much of a prompt each slot holds, by depth: each level has the slots whose run ends there.
///
/// Reuse one for many lookups to reuse its buffers.
#[derive(Debug, Default)]
pub struct Matches {
    /// Words of slot bits per level.
    pub(crate) width: usize,
    pub(crate) depths: Vec<u32>,
    pub(crate) bits: Vec<u64>,
    pub(crate) singles: Vec<(u32, u32)>,
    pub(crate) mixed: Vec<MixedHolding>,
    pub(crate) scratch: super::collect::Scratch,
}

impl Matches {
    pub(crate) fn clear(&mut self, width: usize) {
        self.width = width;
        self.depths.clear();
        self.bits.clear();
        self.singles.clear();
        self.mixed.clear();
    }

    /// Returns every slot that holds at least the first block, once, with its number of leading
    /// blocks.
    pub fn iter(&self) -> impl Iterator<Item = (TargetSlot, u32)> + '_ {
        let levels = self.depths.iter().enumerate().flat_map(|(level, depth)| {
            let bits = &self.bits[level * self.width..(level + 1) * self.width];
            bits.iter().enumerate().flat_map(move |(number, word)| {
                let mut left = *word;
                std::iter::from_fn(move || {
                    if left == 0 {
                        return None;
                    }
                    let slot = number as u32 * 64 + left.trailing_zeros();
                    left &= left - 1;
                    Some((TargetSlot(slot), *depth))
                })
            })
        });
        self.singles
            .iter()
            .map(|(slot, depth)| (TargetSlot(*slot), *depth))
            .chain(levels)
    }

    /// Calls back with the items of [`Matches::iter`], faster.
    pub fn each(&self, mut visit: impl FnMut(TargetSlot, u32)) {
        for (slot, depth) in &self.singles {
            visit(TargetSlot(*slot), *depth);
        }
        for (level, depth) in self.depths.iter().enumerate() {
            each_bit(
                &self.bits[level * self.width..(level + 1) * self.width],
                |slot| visit(TargetSlot(slot), *depth),
            );
        }
    }

    /// Returns the longest run, in blocks; 0 without a holder.
    pub fn best(&self) -> u32 {
        let singles = self.singles.iter().map(|(_, depth)| *depth);
        singles
            .chain(self.depths.iter().copied())
            .max()
            .unwrap_or(0)
    }

    /// Returns how many leading blocks `slot` holds.
    pub fn of(&self, slot: TargetSlot) -> u32 {
        if let Some((_, depth)) = self.singles.iter().find(|(single, _)| *single == slot.0) {
            return *depth;
        }
        let (word, bit) = (slot.0 as usize / 64, 1_u64 << (slot.0 % 64));
        if word >= self.width {
            return 0;
        }
        let level =
            (0..self.depths.len()).find(|level| self.bits[level * self.width + word] & bit != 0);
        level.map_or(0, |level| self.depths[level])
    }
}
