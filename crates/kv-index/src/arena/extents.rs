//! Allocator of free lines, for the writer alone.
//!
//! Free extents of similar length are in one list, eight lists to each power of two; an allocation
//! takes the first one of a list that is certainly long enough, and returns the rest at once. Freed
//! lines are merged with the free ones beside them. So taking and giving cost the same however much
//! is free, no line is wasted, and memory of short arrays can serve long ones later. (The scheme is
//! known as two-level segregated fit, Masmano et al. 2004.)
//!
//! The lists are stored in the free lines themselves. A reader with stale data may read these
//! words; to it any word is as good as another.

use crate::atomic::{AtomicU64, Ordering, fence};

use super::{LINE_WORDS, LineChunks};

/// Lists per power of two.
const STEPS_LOG2: u32 = 3;
const STEPS: usize = 1 << STEPS_LOG2;
/// Maximum extents of a possibly too short list that are checked before a longer one is split.
const TRIES: usize = 8;
const NONE: u32 = u32::MAX;

/// Words of a free extent: in its first line next and previous of its list, and its length; its
/// length again in its last line.
const LINKS: usize = 0;
const LENGTH: usize = 1;
const LENGTH_BEHIND: usize = 2;

/// The free lines.
#[derive(Debug)]
pub(crate) struct Extents {
    /// First extent of each list, by length.
    lists: Vec<[u32; STEPS]>,
    /// Lists of each power of two that are not empty.
    filled: Vec<u8>,
    /// One bit per line: a free extent begins here.
    begins: Vec<u64>,
    /// One bit per line: a free extent ends here.
    ends: Vec<u64>,
    chunk_log2: u32,
    chunks: usize,
    used: u64,
}

impl Extents {
    /// Creates an empty set, for chunks of `1 << chunk_log2` lines.
    pub(crate) fn new(chunk_log2: u32) -> Self {
        let powers = chunk_log2 as usize + 1;
        Self {
            lists: vec![[NONE; STEPS]; powers],
            filled: vec![0; powers],
            begins: Vec::new(),
            ends: Vec::new(),
            chunk_log2,
            chunks: 0,
            used: 0,
        }
    }

    /// Returns the lines in use.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the number of chunks.
    pub(crate) fn chunks(&self) -> usize {
        self.chunks
    }

    /// Returns the bytes of the allocator's own data.
    pub(crate) fn own_bytes(&self) -> u64 {
        ((self.begins.capacity() + self.ends.capacity()) * 8) as u64
    }

    /// Adds a chunk of free lines.
    pub(crate) fn grow(&mut self, lines: &LineChunks) {
        lines.add(self.chunks);
        let first =
            u32::try_from(self.chunks << self.chunk_log2).expect("lines are numbered with 32 bits");
        self.chunks += 1;
        let words = (self.chunks << self.chunk_log2).div_ceil(64);
        self.begins.resize(words, 0);
        self.ends.resize(words, 0);
        self.put(lines, first, 1 << self.chunk_log2);
    }

    /// Takes `count` adjacent free lines; with `None`, [`Extents::grow`] or a free helps.
    pub(crate) fn take(&mut self, lines: &LineChunks, count: u32) -> Option<u32> {
        debug_assert!(count > 0);
        // Readers may still have the number of the earlier owner. A reader that reads a word
        // written here from now on, links included, and then an acquire fence, sees that the
        // earlier owner has changed its version: even if another thread changed it.
        fence(Ordering::Release);
        let start = self
            .in_own_list(lines, count)
            .or_else(|| self.in_longer_list(count))?;
        let length = word(lines, start, LENGTH).load(Ordering::Relaxed) as u32;
        self.pull(lines, start, length);
        if length > count {
            self.put(lines, start + count, length - count);
        }
        self.used += u64::from(count);
        Some(start)
    }

    /// Gives back `count` lines from `start` on: a whole extent, or a part of one.
    pub(crate) fn give(&mut self, lines: &LineChunks, mut start: u32, count: u32) {
        if count == 0 {
            return;
        }
        // The links written below are garbage to readers that still follow the earlier owner: see
        // `take`.
        fence(Ordering::Release);
        self.used -= u64::from(count);
        let mut length = count;
        let chunk = |line: u32| line >> self.chunk_log2;
        let behind = start + length;
        if chunk(behind) == chunk(start) && bit(&self.begins, behind) {
            let more = word(lines, behind, LENGTH).load(Ordering::Relaxed) as u32;
            self.pull(lines, behind, more);
            length += more;
        }
        let chunk = |line: u32| line >> self.chunk_log2;
        if start > 0 && chunk(start - 1) == chunk(start) && bit(&self.ends, start - 1) {
            let more = word(lines, start - 1, LENGTH_BEHIND).load(Ordering::Relaxed) as u32;
            start -= more;
            self.pull(lines, start, more);
            length += more;
        }
        self.put(lines, start, length);
    }

    /// Returns an extent of the list for `count` lines, if one of the first is long enough.
    fn in_own_list(&self, lines: &LineChunks, count: u32) -> Option<u32> {
        let (power, step) = list(count);
        let mut start = self.lists.get(power)?[step];
        for _ in 0..TRIES {
            if start == NONE {
                return None;
            }
            if word(lines, start, LENGTH).load(Ordering::Relaxed) as u32 >= count {
                return Some(start);
            }
            start = word(lines, start, LINKS).load(Ordering::Relaxed) as u32;
        }
        None
    }

    /// Returns the first extent of the shortest list in which all are long enough.
    fn in_longer_list(&self, count: u32) -> Option<u32> {
        let (power, step) = list(count);
        let here = u32::from(*self.filled.get(power)?) >> (step + 1) << (step + 1);
        if here != 0 {
            return Some(self.lists[power][here.trailing_zeros() as usize]);
        }
        let power = (power + 1..self.filled.len()).find(|power| self.filled[*power] != 0)?;
        Some(self.lists[power][self.filled[power].trailing_zeros() as usize])
    }

    /// Adds a free extent to its list.
    fn put(&mut self, lines: &LineChunks, start: u32, length: u32) {
        let (power, step) = list(length);
        let next = self.lists[power][step];
        word(lines, start, LINKS).store(links(next, NONE), Ordering::Relaxed);
        word(lines, start, LENGTH).store(u64::from(length), Ordering::Relaxed);
        word(lines, start + length - 1, LENGTH_BEHIND).store(u64::from(length), Ordering::Relaxed);
        if next != NONE {
            let links_of_next = word(lines, next, LINKS);
            links_of_next.store(
                links(links_of_next.load(Ordering::Relaxed) as u32, start),
                Ordering::Relaxed,
            );
        }
        self.lists[power][step] = start;
        self.filled[power] |= 1 << step;
        flip(&mut self.begins, start);
        flip(&mut self.ends, start + length - 1);
    }

    /// Removes a free extent from its list.
    fn pull(&mut self, lines: &LineChunks, start: u32, length: u32) {
        let (power, step) = list(length);
        let now = word(lines, start, LINKS).load(Ordering::Relaxed);
        let (next, previous) = (now as u32, (now >> 32) as u32);
        if next != NONE {
            let of_next = word(lines, next, LINKS);
            of_next.store(
                links(of_next.load(Ordering::Relaxed) as u32, previous),
                Ordering::Relaxed,
            );
        }
        if previous == NONE {
            self.lists[power][step] = next;
            if next == NONE {
                self.filled[power] &= !(1 << step);
            }
        } else {
            let of_previous = word(lines, previous, LINKS);
            let before = of_previous.load(Ordering::Relaxed) >> 32;
            of_previous.store(links(next, before as u32), Ordering::Relaxed);
        }
        flip(&mut self.begins, start);
        flip(&mut self.ends, start + length - 1);
    }
}

/// Returns the list of extents of `length` lines: its power of two, and which of the eight.
fn list(length: u32) -> (usize, usize) {
    let power = length.ilog2();
    let step = if power >= STEPS_LOG2 {
        length >> (power - STEPS_LOG2)
    } else {
        length << (STEPS_LOG2 - power)
    };
    (power as usize, step as usize & (STEPS - 1))
}

fn links(next: u32, previous: u32) -> u64 {
    u64::from(next) | u64::from(previous) << 32
}

fn word(lines: &LineChunks, line: u32, number: usize) -> &AtomicU64 {
    let line: &[AtomicU64; LINE_WORDS] = lines.line(line).expect("free lines are there");
    &line[number]
}

fn bit(bits: &[u64], at: u32) -> bool {
    bits[at as usize / 64] >> (at % 64) & 1 == 1
}

fn flip(bits: &mut [u64], at: u32) {
    bits[at as usize / 64] ^= 1 << (at % 64);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn lines_of_freed_short_extents_are_reused_for_long_ones() {
        let chunks = LineChunks::new(1, 6);
        let mut extents = Extents::new(6);
        extents.grow(&chunks);
        let short: Vec<_> = (0..64).map(|_| extents.take(&chunks, 1).unwrap()).collect();
        assert_eq!((extents.take(&chunks, 1), extents.used()), (None, 64));
        short
            .into_iter()
            .for_each(|start| extents.give(&chunks, start, 1));
        assert_eq!((extents.take(&chunks, 64), extents.used()), (Some(0), 64));
    }

    proptest! {
        #[test]
        fn no_line_is_given_out_twice_and_none_is_lost(steps in vec((any::<bool>(), 1..40_u32, any::<u16>()), 1..200)) {
            let chunks = LineChunks::new(2, 7);
            let mut extents = Extents::new(7);
            extents.grow(&chunks);
            extents.grow(&chunks);
            let mut taken: Vec<(u32, u32)> = Vec::new();
            for (take, lines, pick) in steps {
                if take {
                    if let Some(start) = extents.take(&chunks, lines) {
                        taken.push((start, lines));
                    }
                } else if !taken.is_empty() {
                    let (start, lines) = taken.swap_remove(usize::from(pick) % taken.len());
                    // A part at the end is freed first, as when a run is trimmed.
                    let retained = u32::from(pick) % (lines + 1);
                    extents.give(&chunks, start + retained, lines - retained);
                    if retained > 0 {
                        taken.push((start, retained));
                    }
                }
                let lines: Vec<u32> = taken.iter().flat_map(|(start, lines)| *start..start + lines).collect();
                prop_assert_eq!(lines.len(), lines.iter().collect::<BTreeSet<_>>().len());
                prop_assert_eq!(extents.used(), lines.len() as u64);
                prop_assert!(taken.iter().all(|(start, lines)| start / 128 == (start + lines - 1) / 128), "within a chunk");
            }
            for (start, lines) in taken {
                extents.give(&chunks, start, lines);
            }
            prop_assert!(
                extents.take(&chunks, 128).is_some() && extents.take(&chunks, 128).is_some(),
                "all free lines are merged again"
            );
        }
    }
}
