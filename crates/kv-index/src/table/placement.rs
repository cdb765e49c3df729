//! Writes entries into the lines of a segment.

use super::{
    segment::Segment,
    slot::{BlockRef, DISTANCES, MOST_DISPLACED, TableSlot},
};
use crate::{
    arena::{LINE_WORDS, LineChunks},
    atomic::{AtomicU64, Ordering},
};

/// Copies all entries; returns whether they fit.
pub(super) fn refill(lines: &LineChunks, old: Segment, new: Segment) -> bool {
    for line in 0..new.lines {
        for word in writable(lines, new.first + line) {
            word.store(0, Ordering::Relaxed);
        }
    }
    (0..old.lines)
        .flat_map(|line| writable(lines, old.first + line))
        .all(|word| {
            let slot = TableSlot(word.load(Ordering::Relaxed));
            slot.is_empty() || insert_entry(lines, new, slot.position(), slot.block_ref())
        })
}

/// Puts an entry in the first free slot; returns whether there was one.
pub(super) fn insert_entry(
    lines: &LineChunks,
    segment: Segment,
    position: u32,
    block_ref: BlockRef,
) -> bool {
    let entry = TableSlot::new(block_ref, position);
    let reach = (DISTANCES as u32).min(segment.lines);
    for distance in 0..reach {
        let line = writable(lines, segment.line(position, distance));
        let mut empty = 0_u32;
        for (at, word) in line.iter().enumerate() {
            empty |= u32::from(TableSlot(word.load(Ordering::Relaxed)).is_empty()) << at;
        }
        let home = || writable(lines, segment.line(position, 0));
        if empty == 0 || distance > 0 && !count_displaced(&home()[distance as usize], 1) {
            continue;
        }
        fill_slot(&line[empty.trailing_zeros() as usize], entry);
        return true;
    }
    false
}

pub(super) fn fill_slot(word: &AtomicU64, entry: TableSlot) {
    word.store(
        TableSlot(word.load(Ordering::Relaxed)).filled_with(entry).0,
        Ordering::Release,
    );
}

pub(super) fn remove_entry(
    lines: &LineChunks,
    segment: Segment,
    position: u32,
    block_ref: BlockRef,
) {
    let entry = TableSlot::new(block_ref, position);
    let reach = (DISTANCES as u32).min(segment.lines);
    for distance in 0..reach {
        let line = writable(lines, segment.line(position, distance));
        let mut equal = 0_u32;
        for (at, word) in line.iter().enumerate() {
            equal |= u32::from(TableSlot(word.load(Ordering::Relaxed)).own() == entry.0) << at;
        }
        if equal == 0 {
            continue;
        }
        let word = &line[equal.trailing_zeros() as usize];
        word.store(
            TableSlot(word.load(Ordering::Relaxed)).emptied().0,
            Ordering::Release,
        );
        if distance > 0 {
            let home = writable(lines, segment.line(position, 0));
            count_displaced(&home[distance as usize], -1);
        }
        return;
    }
    debug_assert!(false, "an entry that is removed is there");
}

/// Counts a key that is not in its own line, in that line's word for its distance; returns `false`
/// if the count is full.
fn count_displaced(word: &AtomicU64, change: i64) -> bool {
    let slot = TableSlot(word.load(Ordering::Relaxed));
    if change > 0 && slot.displaced() == MOST_DISPLACED {
        return false;
    }
    word.store(slot.with_displaced(change).0, Ordering::Release);
    true
}

pub(super) fn writable(lines: &LineChunks, line: u32) -> &[AtomicU64; LINE_WORDS] {
    lines
        .line(line)
        .expect("the writer knows which lines there are")
}
