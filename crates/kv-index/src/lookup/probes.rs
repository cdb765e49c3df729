//! What a search looks at in one round, and what it learns from how searches end.

use super::SharedIndex;
use crate::{
    atomic::Ordering,
    table::{DirectoryState, HomeLine, LineId, TableKey},
};

/// Probes of a round at most: all of the first one, or all of a later one.
const PROBES: usize = 8;
/// Depths at which prompts part most often that are kept in mind.
pub(crate) const KNOWN_ENDS: usize = 3;
/// Parts into which a round cuts what is left.
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
    /// Positions from here on are not there.
    pub(super) end: usize,
    /// How often of late chains were known to their last block, and it was marked.
    whole: DecayingShare,
    /// How often they ended where prompts are known to part.
    ends: [DecayingShare; KNOWN_ENDS],
    /// Whether this round looks at marked blocks only.
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

    /// Begins a search among blocks that are marked: where that is likely to be all, by the last one alone.
    ///
    /// Each probe has to be fetched, and takes its time of those beside it: so what is not likely to be needed waits for a
    /// second round.
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

    /// What is looked at beside the last block.
    fn widen(&mut self, core: &SharedIndex) {
        for (end, share) in core.ends.iter().zip(self.ends) {
            let end = end.load(Ordering::Relaxed);
            if end > 0 && (end as usize) < self.end && share.0 >= RARE {
                self.insert(end - 1);
            }
        }
        self.insert(0);
    }

    /// The second round, if the first one looked for the last block only and did not find it.
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

    /// Learns where a chain's known part ended.
    #[inline]
    pub(super) fn learn(&mut self, core: &SharedIndex, blocks: u32) {
        for (end, share) in core.ends.iter().zip(&mut self.ends) {
            share.note(end.load(Ordering::Relaxed) == blocks);
        }
    }

    /// Cuts what lies between a block that is there and one that is not.
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

/// A share that forgets, of 4096.
#[derive(Clone, Copy, Debug)]
struct DecayingShare(u32);

impl DecayingShare {
    #[inline]
    fn note(&mut self, once: bool) {
        self.0 = self.0 - self.0 / 32 + if once { 128 } else { 0 };
    }
}

/// From this share of whole chains on the last block is looked at alone.
const LIKELY: u32 = 2700;
/// Below this share it is not worth looking.
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
