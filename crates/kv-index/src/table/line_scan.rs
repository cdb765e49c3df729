//! Searches the lines of a segment.

use super::{BlockRef, segment::Segment, slot::TableSlot};
use crate::{
    arena::{LINE_WORDS, LineChunks},
    atomic::{AtomicU64, Ordering},
};

/// One branch-free scan of a line: the matching slot is unpredictable.
pub(super) struct LineScan {
    /// Bits of slots with that position, possibly including empty ones.
    pub(super) equal: u32,
    /// Bits of empty slots.
    pub(super) empty: u32,
    /// Whether keys of this line are in other lines.
    pub(super) displaced: bool,
}

impl LineScan {
    #[inline]
    pub(super) fn of(line: &[AtomicU64; LINE_WORDS], position: u32) -> Self {
        let (mut equal, mut empty, mut all) = (0, 0, 0);
        for (at, word) in line.iter().enumerate() {
            let word = word.load(Ordering::Relaxed);
            all |= word;
            equal |= u32::from(TableSlot(word).position() == position) << at;
            empty |= u32::from(TableSlot(word).is_empty()) << at;
        }
        Self {
            equal,
            empty,
            displaced: TableSlot(all).displaced() != 0,
        }
    }
}

#[inline]
pub(super) fn search<T>(
    lines: &LineChunks,
    segment: Segment,
    position: u32,
    accept: &mut impl FnMut(BlockRef) -> Option<T>,
) -> Option<T> {
    let home = lines.line(segment.line(position, 0))?;
    let displaced = match in_line(home, position, accept) {
        Ok(found) => return Some(found),
        Err(displaced) => displaced,
    };
    if !displaced {
        return None;
    }
    for (distance, word) in home.iter().enumerate().skip(1) {
        if TableSlot(word.load(Ordering::Relaxed)).displaced() > 0
            && let Ok(found) = in_line(
                lines.line(segment.line(position, distance as u32))?,
                position,
                accept,
            )
        {
            return Some(found);
        }
    }
    None
}

/// Searches one line; `Err` if the key is not here, with whether keys of this line are in other
/// lines.
#[inline]
fn in_line<T>(
    line: &[AtomicU64; LINE_WORDS],
    position: u32,
    accept: &mut impl FnMut(BlockRef) -> Option<T>,
) -> Result<T, bool> {
    let LineScan {
        mut equal,
        displaced,
        ..
    } = LineScan::of(line, position);
    while equal != 0 {
        let slot = TableSlot(line[equal.trailing_zeros() as usize].load(Ordering::Acquire));
        if slot.matches(position)
            && let Some(found) = accept(slot.block_ref())
        {
            return Ok(found);
        }
        equal &= equal - 1;
    }
    Err(displaced)
}
