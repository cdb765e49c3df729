//! The writer's operations on the table.

use super::{
    block_table::BlockTable,
    line_scan::{LineScan, search},
    placement::{fill_slot, insert_entry, refill, remove_entry, writable},
    segment::{MOST_LINES, Segment},
    slot::{BlockRef, TableEntry, TableSlot},
};
use crate::{
    arena::{Extents, LINE_WORDS, LineChunks},
    atomic::Ordering,
};

/// Maximum load of a segment, percent.
const FULL_PERCENT: usize = 74;
/// Load of a segment that is enlarged for entries to come, percent.
const RESERVED_PERCENT: usize = 66;
/// Load below which it shrinks, percent.
const SPARSE_PERCENT: usize = 40;

/// No lines are left for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoFreeLines;

/// Why an entry was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotInserted {
    /// No lines are left for its segment.
    NoRoom,
    /// The block already has an entry.
    Known,
}

/// The writer's data on the table beside its lines.
#[derive(Debug)]
pub(crate) struct TableFill {
    /// Entries per segment.
    entries: Box<[u32]>,
}

impl TableFill {
    pub(crate) fn new(table: &BlockTable) -> Self {
        Self {
            entries: vec![0; table.directory.len()].into(),
        }
    }

    /// Returns the entries of all segments.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.entries.iter().map(|entries| u64::from(*entries)).sum()
    }
}

impl BlockTable {
    /// Returns the lines of all segments.
    #[cfg(test)]
    pub(crate) fn lines_in_use(&self) -> u64 {
        let words = self.directory.iter();
        words
            .map(|word| u64::from(Segment::decode(word.load(Ordering::Relaxed)).lines))
            .sum()
    }

    /// Adds an entry, unless `known` recognizes one with the same 22 bits as the same block.
    pub(crate) fn insert(
        &self,
        fill: &mut TableFill,
        lines: &LineChunks,
        extents: &mut Extents,
        entry: TableEntry,
        known: impl Fn(BlockRef) -> bool,
    ) -> Result<(), NotInserted> {
        let TableEntry { key, block_ref } = entry;
        let number = key.segment(self.bits);
        let position = key.position(self.bits);
        let mut segment = Segment::decode(self.directory[number].load(Ordering::Relaxed));
        let entries = &mut fill.entries[number];
        if (*entries as usize + 1) * 100 > segment.lines as usize * LINE_WORDS * FULL_PERCENT {
            let more = self.resize(number, more_lines(number, segment.lines), lines, extents);
            // With little room it still continues, as long as there is a free slot.
            segment = more.unwrap_or(segment);
        }
        if segment.lines > 0 {
            // The usual case in one scan: no similar entry, and a free slot.
            let home = writable(lines, segment.line(position, 0));
            let LineScan {
                equal,
                empty,
                displaced,
            } = LineScan::of(home, position);
            let alike = equal & !empty != 0 || displaced;
            if alike
                && search(lines, segment, position, &mut |other| {
                    known(other).then_some(())
                })
                .is_some()
            {
                return Err(NotInserted::Known);
            }
            if empty != 0 {
                fill_slot(
                    &home[empty.trailing_zeros() as usize],
                    TableSlot::new(block_ref, position),
                );
                *entries += 1;
                return Ok(());
            }
        }
        while segment.lines == 0 || !insert_entry(lines, segment, position, block_ref) {
            let more = self.resize(number, more_lines(number, segment.lines), lines, extents);
            segment = more.map_err(|NoFreeLines| NotInserted::NoRoom)?;
        }
        *entries += 1;
        Ok(())
    }

    /// Removes an existing entry.
    pub(crate) fn remove(
        &self,
        fill: &mut TableFill,
        lines: &LineChunks,
        extents: &mut Extents,
        entry: TableEntry,
    ) {
        let TableEntry { key, block_ref } = entry;
        let number = key.segment(self.bits);
        let position = key.position(self.bits);
        let segment = Segment::decode(self.directory[number].load(Ordering::Relaxed));
        remove_entry(lines, segment, position, block_ref);
        let entries = &mut fill.entries[number];
        *entries -= 1;
        let few = *entries as usize * 100 < segment.lines as usize * LINE_WORDS * SPARSE_PERCENT;
        if *entries == 0 || few && segment.lines > 2 {
            // Only to save memory: if it fails, the next removal tries again.
            let fewer = if *entries == 0 {
                0
            } else {
                segment.lines - segment.lines / 3
            };
            let _ = self.resize(number, fewer, lines, extents);
        }
    }

    /// Returns the number of segments.
    pub(crate) fn segments(&self) -> usize {
        self.directory.len()
    }

    /// Enlarges a segment for its share of `entries`, which is cheaper than its growth entry by
    /// entry.
    pub(crate) fn reserve(
        &self,
        number: usize,
        entries: u64,
        lines: &LineChunks,
        extents: &mut Extents,
    ) -> Result<(), NoFreeLines> {
        let share = entries / self.directory.len() as u64;
        let count = share * 100 / (LINE_WORDS * RESERVED_PERCENT) as u64;
        let count = u32::try_from(count).map_or(MOST_LINES, |count| count.min(MOST_LINES));
        let segment = Segment::decode(self.directory[number].load(Ordering::Relaxed));
        if count > segment.lines {
            self.resize(number, count, lines, extents)?;
        }
        Ok(())
    }

    /// Moves a segment to other lines.
    fn resize(
        &self,
        number: usize,
        count: u32,
        lines: &LineChunks,
        extents: &mut Extents,
    ) -> Result<Segment, NoFreeLines> {
        let old = Segment::decode(self.directory[number].load(Ordering::Relaxed));
        let mut count = count;
        let new = loop {
            if count > MOST_LINES {
                return Err(NoFreeLines);
            }
            if count == 0 {
                break old.moved(0, 0);
            }
            let new = old.moved(extents.take(lines, count).ok_or(NoFreeLines)?, count);
            if refill(lines, old, new) {
                break new;
            }
            extents.give(lines, new.first, count);
            count += (count / 4).max(1);
        };
        // The entries are written before the directory shows them.
        self.directory[number].store(new.encode(), Ordering::Release);
        if old.lines > 0 {
            extents.give(lines, old.first, old.lines);
        }
        Ok(new)
    }
}

/// Returns the number of lines for a segment that has too few: 6 to 22 % more. Segments fill
/// evenly; if they also grew evenly, all of them would be half empty at the same time.
fn more_lines(segment: usize, lines: u32) -> u32 {
    let mixed = (segment as u64 ^ u64::from(lines) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let percent = 6 + (mixed >> 32) % 17;
    lines + (u64::from(lines) * percent / 100).max(1) as u32
}
