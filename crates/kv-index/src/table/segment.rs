//! One entry of the directory.

use super::slot::{DISTANCES, POSITION_BITS};

/// The lines of a segment. Bits 0..32: first line. 32..48: number of lines. 48..64: number of this
/// state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) first: u32,
    pub(super) lines: u32,
    state: u32,
}

/// Maximum lines of a segment.
pub(super) const MOST_LINES: u32 = (1 << 16) - 1;

impl Segment {
    #[inline]
    pub(super) fn decode(word: u64) -> Self {
        Self {
            first: word as u32,
            lines: (word >> 32) as u32 & MOST_LINES,
            state: (word >> 48) as u32,
        }
    }

    pub(super) fn encode(self) -> u64 {
        u64::from(self.first) | u64::from(self.lines) << 32 | u64::from(self.state) << 48
    }

    /// Returns the segment in other lines.
    pub(super) fn moved(self, first: u32, lines: u32) -> Self {
        // The number wraps after 65,536 changes; no reader pauses that long between two loads.
        Self {
            first,
            lines,
            state: (self.state + 1) & 0xffff,
        }
    }

    /// Returns the line of `position`, or with a `distance` one of its other lines.
    ///
    /// Steps differ between positions: with equal ones full lines would fill their neighbours.
    #[inline]
    pub(super) fn line(self, position: u32, distance: u32) -> u32 {
        debug_assert!((distance as usize) < DISTANCES);
        let home = ((u64::from(position) * u64::from(self.lines)) >> POSITION_BITS) as u32;
        if distance == 0 {
            return self.first.wrapping_add(home);
        }
        let step = 1 + ((u64::from(position & 0xff) * u64::from(self.lines - 1)) >> 8) as u32;
        self.first.wrapping_add(self.wrap(home + distance * step))
    }

    #[cold]
    fn wrap(self, line: u32) -> u32 {
        line.checked_rem(self.lines).unwrap_or(0)
    }
}
