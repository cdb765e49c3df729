//! What a lookup answers.

use crate::runs::each_bit;

/// Small number of a registered target inside one index; given out in order of registration, starting with 0. A target that
/// is cleared gets another one, and the one before is nobody's ([`crate::KvIndex::target`]) until it is given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetSlot(pub u32);

/// What a slot's run has that is not simply on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MixedHolding {
    pub(crate) slot: u32,
    /// Blocks by best tier, and expected ones; the device's share is what is left of the run.
    pub(crate) best: [u32; 5],
    /// Blocks in each tier, those of the device that are elsewhere too not counted for it.
    pub(crate) present: [u32; 4],
}

/// Who holds how much of a prompt, by depth: at each level the slots whose run ends there.
///
/// Reuse one for many lookups: its buffers stay.
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

    /// Every slot that holds at least the first block, once, with how many leading blocks it holds.
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

    /// Calls back with what [`Matches::iter`] returns, sooner.
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

    /// The longest run, in blocks; 0 when nobody holds any.
    pub fn best(&self) -> u32 {
        let singles = self.singles.iter().map(|(_, depth)| *depth);
        singles
            .chain(self.depths.iter().copied())
            .max()
            .unwrap_or(0)
    }

    /// How many leading blocks `slot` holds.
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
