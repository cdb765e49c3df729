//! Leading blocks of slots on the device: single entries, or bits shared by slots with the same
//! number.

use super::{GROUP_FROM, Holders, MOST_GROUPS, MOST_PARTS, each_bit};
use crate::runs::head::{INLINE_HOLDERS, WHOLE, pack_part};

impl Holders {
    /// Sets how many leading blocks `slot` holds on the device; returns `false` without room.
    pub(super) fn set_leading(&mut self, slot: u32, blocks: u32) -> bool {
        self.remove_leading(slot);
        if blocks == 0 {
            return true;
        }
        let cut = if blocks >= self.blocks { WHOLE } else { blocks };
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if word < self.width {
            if cut == WHOLE {
                self.whole[word] |= bit;
                return true;
            }
            if let Some(group) = self.cuts.iter().position(|known| *known == cut) {
                self.group_bits[group * self.width + word] |= bit;
                return true;
            }
        }
        if self.parts.len() >= MOST_PARTS {
            return false;
        }
        self.parts.push((slot, cut));
        if self.parts.len() >= GROUP_FROM {
            self.gather(cut);
        }
        true
    }

    fn remove_leading(&mut self, slot: u32) {
        let (word, bit) = (slot as usize / 64, 1_u64 << (slot % 64));
        if word < self.width {
            self.whole[word] &= !bit;
            for group in (0..self.cuts.len()).rev() {
                let bits = &mut self.group_bits[group * self.width..(group + 1) * self.width];
                if bits[word] & bit != 0 {
                    bits[word] &= !bit;
                    if bits.iter().all(|word| *word == 0) {
                        self.remove_group(group);
                    }
                    return;
                }
            }
        }
        if let Some(part) = self.parts.iter().position(|(holder, _)| *holder == slot) {
            self.parts.swap_remove(part);
        }
    }

    pub(super) fn remove_group(&mut self, group: usize) {
        self.cuts.swap_remove(group);
        let last = self.cuts.len();
        for word in 0..self.width {
            self.group_bits[group * self.width + word] = self.group_bits[last * self.width + word];
        }
        self.group_bits.truncate(last * self.width);
    }

    /// Moves single holders of `cut` blocks to bits, if they are numerous enough.
    fn gather(&mut self, cut: u32) {
        let alike = || self.parts.iter().filter(|(_, known)| *known == cut);
        let need = alike()
            .map(|(slot, _)| *slot as usize / 64 + 1)
            .max()
            .unwrap_or(0)
            .max(self.width);
        let (count, words) = (alike().count(), need + usize::from(cut != WHOLE));
        if count < GROUP_FROM.max(2 * words) || cut != WHOLE && self.cuts.len() >= MOST_GROUPS {
            return;
        }
        self.widen(need);
        let base = if cut == WHOLE {
            None
        } else {
            self.cuts.push(cut);
            self.group_bits.resize(self.cuts.len() * self.width, 0);
            Some((self.cuts.len() - 1) * self.width)
        };
        let (whole, group_bits) = (&mut self.whole, &mut self.group_bits);
        self.parts.retain(|(slot, known)| {
            if *known == cut {
                let (word, bit) = (*slot as usize / 64, 1 << (slot % 64));
                match base {
                    None => whole[word] |= bit,
                    Some(base) => group_bits[base + word] |= bit,
                }
            }
            *known != cut
        });
    }

    fn widen(&mut self, width: usize) {
        if width <= self.width {
            return;
        }
        let mut bits = Vec::with_capacity(self.cuts.len() * width);
        for group in 0..self.cuts.len() {
            bits.extend_from_slice(&self.group_bits[group * self.width..(group + 1) * self.width]);
            bits.resize((group + 1) * width, 0);
        }
        self.group_bits = bits;
        self.whole.resize(width, 0);
        self.width = width;
    }

    /// Returns the holders in the form of the head; `None` if they need an area.
    pub(crate) fn inline(&mut self) -> Option<([u32; INLINE_HOLDERS], usize)> {
        if !self.spans.is_empty() || !self.expected.is_empty() {
            return None;
        }
        let bits = |words: &[u64]| {
            words
                .iter()
                .map(|word| word.count_ones() as usize)
                .sum::<usize>()
        };
        if self.width > 0
            && self.parts.len() + bits(&self.whole) + bits(&self.group_bits) <= INLINE_HOLDERS
        {
            self.scatter();
        }
        if self.width > 0 || self.parts.len() > INLINE_HOLDERS {
            return None;
        }
        let mut named = [0; INLINE_HOLDERS];
        for (named, (slot, cut)) in named.iter_mut().zip(&self.parts) {
            *named = pack_part(*slot, *cut);
        }
        Some((named, self.parts.len()))
    }

    /// Converts every holder to a single entry.
    pub(super) fn scatter(&mut self) {
        let whole = std::mem::take(&mut self.whole);
        let bits = std::mem::take(&mut self.group_bits);
        each_bit(&whole, |slot| self.parts.push((slot, WHOLE)));
        for (group, cut) in self.cuts.iter().enumerate() {
            let parts = &mut self.parts;
            each_bit(
                &bits[group * self.width..(group + 1) * self.width],
                |slot| parts.push((slot, *cut)),
            );
        }
        self.cuts.clear();
        self.width = 0;
    }
}
