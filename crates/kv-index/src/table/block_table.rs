//! The table as readers use it.

use super::{
    BlockRef, TableKey,
    line_scan::{LineScan, search},
    segment::Segment,
    slot::{DISTANCES, TableSlot},
};
use crate::{
    arena::{LINE_WORDS, LineChunks},
    atomic::{AtomicU64, Ordering, fence},
};

/// The part of the table that readers share.
#[derive(Debug)]
pub(crate) struct BlockTable {
    pub(super) directory: Box<[AtomicU64]>,
    /// Bits of a key that select the segment.
    pub(super) bits: u32,
    /// Makes keys unpredictable, so that an attacker cannot fill one segment.
    secret: [u64; 2],
}

impl BlockTable {
    /// Creates an empty table of `1 << bits` segments.
    pub(crate) fn new(bits: u32, secret: [u64; 2]) -> Self {
        Self {
            directory: (0..1 << bits).map(|_| AtomicU64::new(0)).collect(),
            bits,
            secret,
        }
    }

    /// Returns the key of a block of a namespace.
    #[inline]
    pub(crate) fn key(&self, space: u64, hash: u64) -> TableKey {
        TableKey::new(hash ^ space, self.secret)
    }

    /// Prefetches the line of `key`.
    #[inline]
    pub(crate) fn prefetch(&self, lines: &LineChunks, key: TableKey) {
        self.touch(lines, key, self.state(key));
    }

    /// Prefetches the other lines that a change of `key` reads, once its own line is in the cache.
    #[inline]
    pub(crate) fn prefetch_further(&self, lines: &LineChunks, key: TableKey) {
        let segment = Segment::decode(self.state(key).0);
        let position = key.position(self.bits);
        let Some(home) = lines
            .line(segment.line(position, 0))
            .filter(|_| segment.lines > 0)
        else {
            return;
        };
        let (mut displaced, mut full) = (0, true);
        for word in home {
            let word = word.load(Ordering::Relaxed);
            displaced |= word;
            full &= !TableSlot(word).is_empty();
        }
        if full || TableSlot(displaced).displaced() != 0 {
            for (distance, word) in home.iter().enumerate().skip(1) {
                let counted = TableSlot(word.load(Ordering::Relaxed)).displaced() != 0;
                if counted || full && distance == 1 {
                    lines.prefetch(segment.line(position, distance as u32));
                }
            }
        }
    }

    /// Returns the directory entry for `key`.
    #[inline]
    pub(crate) fn state(&self, key: TableKey) -> DirectoryState {
        DirectoryState(self.directory[key.segment(self.bits)].load(Ordering::Acquire))
    }

    /// Prefetches and returns the line of `key`.
    #[inline]
    pub(crate) fn touch(&self, lines: &LineChunks, key: TableKey, state: DirectoryState) -> LineId {
        let segment = Segment::decode(state.0);
        if segment.lines == 0 {
            return LineId::NONE;
        }
        let line = segment.line(key.position(self.bits), 0);
        lines.prefetch(line);
        LineId(line)
    }

    /// Returns the content of the key's own line for it, unverified.
    #[inline]
    pub(crate) fn peek(
        &self,
        lines: &LineChunks,
        key: TableKey,
        state: DirectoryState,
        line: LineId,
    ) -> HomeLine {
        let Some(line) = lines.line(line.0).filter(|_| line != LineId::NONE) else {
            return HomeLine::Nothing;
        };
        let position = key.position(self.bits);
        let LineScan {
            mut equal,
            displaced,
            ..
        } = LineScan::of(line, position);
        while equal != 0 {
            let slot = TableSlot(line[equal.trailing_zeros() as usize].load(Ordering::Acquire));
            if slot.matches(position) {
                return HomeLine::Perhaps(slot.block_ref());
            }
            equal &= equal - 1;
        }
        fence(Ordering::Acquire);
        if displaced || self.state(key) != state {
            HomeLine::Elsewhere
        } else {
            HomeLine::Nothing
        }
    }

    /// Returns the first result of `accept` for a candidate of `key`.
    ///
    /// Candidates share 22 bits with the key: `accept` has to compare the hash.
    #[inline]
    pub(crate) fn find<T>(
        &self,
        lines: &LineChunks,
        key: TableKey,
        mut accept: impl FnMut(BlockRef) -> Option<T>,
    ) -> Option<T> {
        let directory_entry = &self.directory[key.segment(self.bits)];
        let position = key.position(self.bits);
        let mut now = directory_entry.load(Ordering::Acquire);
        loop {
            let segment = Segment::decode(now);
            if segment.lines == 0 {
                return None;
            }
            if let Some(found) = search(lines, segment, position, &mut accept) {
                return Some(found);
            }
            // Orders the loads above before the one below: if the lines were already reused when
            // they were read, the directory shows it now.
            fence(Ordering::Acquire);
            let again = directory_entry.load(Ordering::Acquire);
            if again == now {
                return None;
            }
            now = again;
        }
    }
}

/// The directory entry of a segment at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryState(u64);

impl DirectoryState {
    /// No segment.
    pub(crate) const NONE: Self = Self(0);
}

/// Number of a line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineId(u32);

impl LineId {
    /// The line of an empty segment.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// Result of a read of a key's own line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HomeLine {
    /// The key is absent.
    Nothing,
    /// A candidate: 22 bits are equal.
    Perhaps(BlockRef),
    /// The line does not decide; the full search has to.
    Elsewhere,
}

const _: () = assert!(DISTANCES == LINE_WORDS);
