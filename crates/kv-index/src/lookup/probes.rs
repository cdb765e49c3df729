//! The probes of one search round, and the statistics on how searches end.

use super::{KNOWN_ENDS, SharedIndex};
use crate::{
    atomic::Ordering,
    table::{DirectoryState, HomeLine, LineId, TableKey},
};

/// Maximum probes of a round: all of the first one, or all of a later one.
const PROBES: usize = 8;
/// Number of parts into which a round cuts the rest.
pub(super) const PARTS: usize = 8;

const _: () = assert!(2 + KNOWN_ENDS <= PROBES && PARTS <= PROBES + 1);

/// One round of a search, deepest position first.
#[derive(Debug)]
pub(crate) struct ProbeRound {
    pub(super) count: usize,
    pub(super) positions: [u32; PROBES],
    pub(super) keys: [TableKey; PROBES],
    pub(super) states: [DirectoryState; PROBES],
    pub(super) lines: [LineId; PROBES],
    pub(super) seen: [HomeLine; PROBES],
    /// Position of the deepest block found.
    pub(super) hit: Option<usize>,
    /// Positions from here on are known to be absent.
    pub(super) end: usize,
    /// Recent share of chains that were known to their last block, which was marked.
    whole: DecayingShare,
    /// Recent shares of chains that ended at a known fork.
    ends: [DecayingShare; KNOWN_ENDS],
    /// Whether this round probes marked blocks only.
    pub(super) marked: bool,
}

impl ProbeRound {
    /// Adds a position, once; deeper ones come first.
    #[inline]
    fn insert(&mut self, position: u32) {
        let mut at = self.count;
        while at > 0 && self.positions[at - 1] < position {
            at -= 1;
        }
        if at > 0 && self.positions[at - 1] == position {
            return;
        }
        self.positions.copy_within(at..self.count, at + 1);
        self.positions[at] = position;
        self.count += 1;
    }

    /// Starts a search among marked blocks: by the last one alone if that is likely to suffice.
    ///
    /// Each probe is a fetch that slows the others down, so unlikely probes wait for a second
    /// round.
    #[inline]
    pub(super) fn begin(&mut self, core: &SharedIndex, len: usize) {
        self.hit = None;
        self.end = len;
        self.count = 1;
        self.positions[0] = len as u32 - 1;
        self.marked = true;
        if self.whole.0 < LIKELY {
            self.widen(core);
        }
    }

    /// Adds the probes beside the last block.
    fn widen(&mut self, core: &SharedIndex) {
        for (end, share) in core.ends.iter().zip(self.ends) {
            let end = end.load(Ordering::Relaxed);
            if end > 0 && (end as usize) < self.end && share.0 >= RARE {
                self.insert(end - 1);
            }
        }
        self.insert(0);
    }

    /// Runs the second round, if the first one probed only the last block and did not find it.
    #[inline]
    pub(super) fn go_on(&mut self, core: &SharedIndex, len: usize) -> bool {
        self.whole.note(self.hit == Some(len - 1));
        let more = self.count == 1 && len > 1 && self.hit.is_none();
        if more {
            self.count = 0;
            self.widen(core);
        }
        more
    }

    /// Records where the known part of a chain ended.
    #[inline]
    pub(super) fn learn(&mut self, core: &SharedIndex, blocks: u32) {
        for (end, share) in core.ends.iter().zip(&mut self.ends) {
            share.note(end.load(Ordering::Relaxed) == blocks);
        }
    }

    /// Cuts the range between a present block and an absent one.
    pub(super) fn cut(&mut self, position: usize) {
        self.hit = None;
        self.marked = false;
        self.count = 0;
        let gap = self.end - position;
        for number in (1..PARTS).rev() {
            self.positions[self.count] = (position + number * gap / PARTS) as u32;
            self.count += 1;
        }
    }
}

/// A decaying share, of 4096.
#[derive(Clone, Copy, Debug)]
struct DecayingShare(u32);

impl DecayingShare {
    #[inline]
    fn note(&mut self, once: bool) {
        self.0 = self.0 - self.0 / 32 + if once { 128 } else { 0 };
    }
}

/// Share of whole chains from which on the last block is probed alone.
const LIKELY: u32 = 2700;
/// Share below which a probe is not worth its cost.
const RARE: u32 = 100;

impl Default for ProbeRound {
    fn default() -> Self {
        Self {
            count: 0,
            positions: [0; PROBES],
            keys: [TableKey::NONE; PROBES],
            states: [DirectoryState::NONE; PROBES],
            lines: [LineId::NONE; PROBES],
            seen: [HomeLine::Nothing; PROBES],
            hit: None,
            end: 0,
            whole: DecayingShare(0),
            ends: [DecayingShare(RARE); KNOWN_ENDS],
            marked: false,
        }
    }
}
