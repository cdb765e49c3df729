//! The deepest block of a chain that the structure knows.
//!
//! Whatever block is there has all blocks before it there too, so a search need not look at every block. One round of
//! probes at the end, at positions that grow sixteenfold, and on both sides of the depths where prompts are known to part, all
//! under way at once; then along the runs from the deepest hit, where one comparison at a run's end stands for all of the
//! run.

use kv_blocks::SequenceHash;

use super::{Core, collect::Step};
use crate::{
    atomic::{Ordering, fence},
    lines::prefetch,
    runs::{Head, NO_RUN},
    table::{Key, Line, Seen, Spot, State},
};

/// Probes of the first round, enough for chains up to 2^32 blocks and two at each well-known end.
const PROBES: usize = 10 + 2 * KNOWN_ENDS;
/// Depths at which prompts part most often that are kept in mind.
pub(crate) const KNOWN_ENDS: usize = 3;

/// The first round of a search, deepest position first.
#[derive(Debug)]
pub(crate) struct Probes {
    count: usize,
    positions: [u32; PROBES],
    keys: [Key; PROBES],
    states: [State; PROBES],
    lines: [Line; PROBES],
    seen: [Seen; PROBES],
    /// Position of the deepest block found, and where none is any more.
    pub(super) hit: Option<(usize, usize)>,
}

impl Probes {
    /// Adds a position, once; deeper ones come first.
    #[inline]
    fn insert(&mut self, count: &mut usize, position: u32) {
        let mut at = *count;
        while at > 0 && self.positions[at - 1] < position {
            at -= 1;
        }
        if at > 0 && self.positions[at - 1] == position {
            return;
        }
        self.positions.copy_within(at..*count, at + 1);
        self.positions[at] = position;
        *count += 1;
    }
}

impl Default for Probes {
    fn default() -> Self {
        Self {
            count: 0,
            positions: [0; PROBES],
            keys: [Key::NONE; PROBES],
            states: [State::NONE; PROBES],
            lines: [Line::NONE; PROBES],
            seen: [Seen::Nothing; PROBES],
            hit: None,
        }
    }
}

impl Core {
    /// Asks for all that the first round will look at.
    ///
    /// One step for all probes before the next one for any: so the processor has the misses of a step under way together.
    #[inline]
    pub(super) fn probe(&self, space: u64, chain: &[SequenceHash], probes: &mut Probes) {
        let last = chain.len() - 1;
        probes.positions[0] = last as u32;
        let mut count = 1;
        // 16^n - 1, down to 0.
        let power = (usize::BITS - last.leading_zeros()).saturating_sub(1) / 4;
        let mut position = (1_usize << (4 * power)) - 1;
        while last > 0 && count < PROBES {
            if position < last {
                probes.positions[count] = position as u32;
                count += 1;
            }
            if position == 0 {
                break;
            }
            position >>= 4;
        }
        for end in &self.ends {
            let end = end.load(Ordering::Relaxed);
            if end > 0 && end < last as u32 {
                probes.insert(&mut count, end);
                probes.insert(&mut count, end - 1);
            }
        }
        probes.count = count;
        for position in &probes.positions[..count] {
            prefetch(&chain[*position as usize]);
        }
        for number in 0..count {
            probes.keys[number] = self.table.key(space, chain[probes.positions[number] as usize].0);
        }
        for number in 0..probes.count {
            let state = self.table.state(probes.keys[number]);
            probes.states[number] = state;
            probes.lines[number] = self.table.touch(&self.body, probes.keys[number], state);
        }
    }

    /// Sees what may be there, and asks for the heads of all those runs: they are likely to be on the way to the root.
    #[inline]
    pub(super) fn scan(&self, probes: &mut Probes) {
        for number in 0..probes.count {
            let seen = self.table.peek(&self.body, probes.keys[number], probes.states[number], probes.lines[number]);
            probes.seen[number] = seen;
            match seen {
                Seen::Perhaps(spot) => self.heads.prefetch(&self.body, spot.run),
                Seen::Elsewhere => self.table.prefetch_further(&self.body, probes.keys[number]),
                Seen::Nothing => {}
            }
        }
    }

    /// Finds the deepest of the probed blocks that is there, and asks for what the rest of the lookup will read. `found` gets it
    /// as the first step of the way to the root.
    #[inline]
    pub(super) fn first(&self, space: u64, chain: &[SequenceHash], probes: &mut Probes, found: &mut Step) {
        // Positions from here on are not there.
        let mut end = chain.len();
        probes.hit = None;
        for number in 0..probes.count {
            let position = probes.positions[number] as usize;
            let there = match probes.seen[number] {
                Seen::Nothing => false,
                // Where only those 22 bits were the same, another entry may be the one.
                Seen::Perhaps(spot) => {
                    self.is_at(space, chain, position, spot, found)
                        || self.look(space, chain, position, probes.keys[number], found)
                }
                Seen::Elsewhere => self.look(space, chain, position, probes.keys[number], found),
            };
            if there {
                let run_end = position + (found.head.blocks() - found.limit) as usize;
                prefetch(&chain[run_end.min(end - 1)]);
                if found.head.has_area() {
                    self.body.prefetch(found.head.area().0);
                }
                if found.head.parent() != NO_RUN {
                    self.heads.prefetch(&self.body, found.head.parent());
                }
                probes.hit = Some((position, end));
                return;
            }
            end = position;
        }
    }

    /// Goes on from the block at `position` to the deepest one before `end`.
    #[inline]
    pub(super) fn follow(&self, space: u64, chain: &[SequenceHash], mut position: usize, end: usize, found: &mut Step) {
        loop {
            let left_in_run = (found.head.blocks() - found.limit) as usize;
            let most = left_in_run.min(end - 1 - position);
            let next = position + left_in_run + 1;
            let mut ahead = None;
            if next < end && found.head.has_children() {
                // The search is likely to go on behind the run's end, if only to find nothing there.
                let key = self.table.key(space, chain[next].0);
                self.table.prefetch(&self.body, key);
                ahead = Some(key);
            }
            if most > 0 {
                let equal = self.equal_blocks(found, &chain[position..=position + most]);
                found.limit += equal as u32;
                position += equal;
            }
            position += 1;
            if position >= end || !found.head.has_children() {
                return;
            }
            let key = ahead.filter(|_| position == next).unwrap_or_else(|| self.table.key(space, chain[position].0));
            let mut further = Step::NONE;
            if !self.look(space, chain, position, key, &mut further) {
                return;
            }
            *found = further;
        }
    }

    /// How many blocks of the run behind the one found are the chain's; `chain` begins with the one found.
    #[inline]
    fn equal_blocks(&self, found: &Step, chain: &[SequenceHash]) -> usize {
        let (at, most) = (found.limit as usize - 1, chain.len() - 1);
        let blocks = found.head.blocks() as usize;
        if at + most == blocks - 1 && found.head.tail() == chain[most].0 {
            return most;
        }
        let Some(hashes) = self.body.words(found.head.hashes(), blocks) else { return 0 };
        let same = |offset: usize| hashes[at + offset].load(Ordering::Relaxed) == chain[offset].0;
        // Equal up to `low`, different at `high`: sixteen places a round, their lines under way together.
        let (mut low, mut high) = (0, most + 1);
        while high - low > 1 {
            let gap = high - low;
            let places = gap.min(17);
            if gap > 32 {
                for number in 1..places {
                    let offset = low + number * gap / places;
                    prefetch(&chain[offset]);
                    prefetch(&hashes[at + offset]);
                }
            }
            let mut bound = high;
            for number in 1..places {
                let offset = low + number * gap / places;
                if offset <= low || offset >= bound {
                    continue;
                }
                if same(offset) {
                    low = offset;
                } else {
                    bound = offset;
                    break;
                }
            }
            high = bound;
        }
        low
    }

    /// Looks for block `position` of a chain in the table.
    #[inline]
    fn look(&self, space: u64, chain: &[SequenceHash], position: usize, key: Key, found: &mut Step) -> bool {
        self.table.find(&self.body, key, |spot| self.is_at(space, chain, position, spot, found).then_some(())).is_some()
    }

    /// Whether block `position` of a chain is at `spot`; then `found` says so.
    #[inline]
    fn is_at(&self, space: u64, chain: &[SequenceHash], position: usize, spot: Spot, found: &mut Step) -> bool {
        if !self.block_at(space, chain[position].0, spot, &mut found.head) {
            return false;
        }
        found.run = spot.run;
        found.limit = spot.at + 1;
        found.head.depth() as usize + spot.at as usize == position
    }

    /// Whether block `spot` is there and is called `hash`; `head` gets its run's head.
    #[inline]
    pub(crate) fn block_at(&self, space: u64, hash: u64, spot: Spot, head: &mut Head) -> bool {
        loop {
            if !self.heads.read(&self.body, spot.run, head) || head.space() != space || spot.at >= head.blocks() {
                return false;
            }
            if spot.at == head.blocks() - 1 {
                return head.tail() == hash;
            }
            let words = self.body.words(head.hashes(), head.blocks() as usize);
            let equal = words.is_some_and(|hashes| hashes[spot.at as usize].load(Ordering::Relaxed) == hash);
            fence(Ordering::Acquire);
            if self.heads.unchanged(&self.body, spot.run, head) {
                return equal;
            }
        }
    }
}
