//! The result of a lookup.

use super::scratch::Scratch;
use crate::runs::{EXPECTED, TierSpan, each_bit};

/// Small number of a registered target inside one index, assigned in order of registration from 0.
/// A cleared target gets another slot; its old one has no target ([`crate::KvIndex::target`]) until
/// it is assigned again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetSlot(pub u32);

/// The part of a slot's run that is not simply on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MixedTiers {
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
    pub(crate) mixed: Vec<MixedTiers>,
    pub(crate) scratch: Scratch,
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

impl Matches {
    #[inline]
    pub(super) fn single(&mut self, slot: u32, depth: u32) {
        if depth > 0 {
            self.singles.push((slot, depth));
        }
    }

    /// Ends the shares of all slots in `alive` at `depth`.
    #[inline]
    pub(super) fn level(&mut self, depth: u32, alive: &[u64]) {
        if alive.iter().any(|word| *word != 0) {
            self.depths.push(depth);
            self.bits.extend_from_slice(alive);
        }
    }

    /// Ends the shares of the slots in `alive` and `bits` at `depth`; they leave `alive`.
    #[inline]
    pub(super) fn level_of(&mut self, depth: u32, alive: &mut [u64], bits: impl Fn(usize) -> u64) {
        let any = alive
            .iter()
            .enumerate()
            .fold(0, |any, (number, alive)| any | *alive & bits(number));
        if any == 0 {
            return;
        }
        if depth > 0 {
            self.depths.push(depth);
            self.bits.extend(
                alive
                    .iter()
                    .enumerate()
                    .map(|(number, alive)| *alive & bits(number)),
            );
        }
        for (number, alive) in alive.iter_mut().enumerate() {
            *alive &= !bits(number);
        }
    }

    /// Records the tiers of the first `reach` blocks of a slot's share in one run, unless they are
    /// only on the device.
    pub(super) fn add_mixed(
        &mut self,
        slot: u32,
        leading: u32,
        spans: &[(TierSpan, u64)],
        reach: u32,
    ) {
        let at = self
            .mixed
            .iter()
            .position(|mixed| mixed.slot == slot)
            .unwrap_or_else(|| {
                self.mixed.push(MixedTiers {
                    slot,
                    best: [0; 5],
                    present: [0; 4],
                });
                self.mixed.len() - 1
            });
        let mixed = &mut self.mixed[at];
        // Nothing changes between two borders, so one check each is enough.
        let mut from = 0;
        while from < reach {
            let borders = spans
                .iter()
                .flat_map(|(span, _)| [span.start, span.end])
                .chain([leading]);
            let to = borders
                .filter(|border| *border > from)
                .min()
                .unwrap_or(reach)
                .min(reach);
            let mut tiers = u32::from(from < leading);
            for (span, _) in spans
                .iter()
                .filter(|(span, _)| span.start <= from && from < span.end)
            {
                tiers |= 1 << span.tier;
            }
            let best = tiers.trailing_zeros();
            if best > 0 {
                mixed.best[best as usize] += to - from;
            }
            for (tier, present) in mixed.present.iter_mut().enumerate().skip(1) {
                *present += if tiers >> tier & 1 == 1 { to - from } else { 0 };
            }
            debug_assert!(
                tiers != 0 && best <= EXPECTED,
                "within reach every block is somewhere"
            );
            from = to;
        }
    }
}
