//! The deepest block of a chain that the structure knows.
//!
//! A block in the structure has all blocks before it there too, so a search need not visit every
//! block. It begins with blocks that are likely to be marked, in one round of parallel probes: the
//! last one, the last ones before known forks, and the first one. Then it follows the runs from the
//! deepest hit, where one comparison at a run's end stands for the whole run. Where many runs
//! follow one another, rounds among all blocks cut the rest into parts.

use kv_blocks::SequenceHash;

use super::{
    SharedIndex,
    probes::{PARTS, ProbeRound},
    query::{ChainBlock, ChainQuery},
    scratch::PathStep,
};
use crate::{
    arena::prefetch,
    atomic::{Ordering, fence},
    runs::{NO_RUN, RunHead},
    table::{BlockRef, BlockTable, HomeLine, TableKey},
};

/// Maximum runs followed one by one before the rest is cut into parts.
const FOLLOWED: u32 = 3;
/// Minimum blocks left for a cut to be worth it.
const FEW: usize = 4 * PARTS;

impl SharedIndex {
    /// Starts a search: prefetches everything that the first round reads.
    #[inline]
    pub(super) fn probe(&self, query: ChainQuery<'_>, probes: &mut ProbeRound) {
        probes.begin(self, query.hashes.len());
        self.prefetch_probes(query, probes);
    }

    /// Prefetches the reads of the second round, if there is one.
    #[inline]
    pub(super) fn probe_on(&self, query: ChainQuery<'_>, probes: &mut ProbeRound) -> bool {
        let more = probes.go_on(self, query.hashes.len());
        if more {
            self.prefetch_probes(query, probes);
        }
        more
    }

    /// Does one step for all probes before the next one for any, so that the cache misses of a step
    /// overlap.
    #[inline]
    fn prefetch_probes(&self, query: ChainQuery<'_>, probes: &mut ProbeRound) {
        let ChainQuery { space, hashes, .. } = query;
        let table = self.probed_table(probes);
        for position in &probes.positions[..probes.count] {
            prefetch(&hashes[*position as usize]);
        }
        for number in 0..probes.count {
            probes.keys[number] = table.key(space, hashes[probes.positions[number] as usize].0);
        }
        for number in 0..probes.count {
            let state = table.state(probes.keys[number]);
            probes.states[number] = state;
            probes.lines[number] = table.touch(&self.body, probes.keys[number], state);
        }
    }

    /// Returns the table that the round probes.
    #[inline]
    fn probed_table(&self, probes: &ProbeRound) -> &BlockTable {
        if probes.marked {
            &self.marks
        } else {
            &self.table
        }
    }

    /// Finds candidates, and prefetches the heads of their runs, which are likely to be on the path
    /// to the root.
    #[inline]
    pub(super) fn scan(&self, probes: &mut ProbeRound) {
        let table = self.probed_table(probes);
        for number in 0..probes.count {
            let seen = table.peek(
                &self.body,
                probes.keys[number],
                probes.states[number],
                probes.lines[number],
            );
            probes.seen[number] = seen;
            match seen {
                HomeLine::Perhaps(block_ref) => self.heads.prefetch(&self.body, block_ref.run),
                HomeLine::Elsewhere => table.prefetch_further(&self.body, probes.keys[number]),
                HomeLine::Nothing => {}
            }
        }
    }

    /// Finds the deepest probed block that is present, and prefetches the reads of the rest of the
    /// lookup. `found` gets the block as the first step of the path to the root.
    #[inline]
    pub(super) fn first(
        &self,
        query: ChainQuery<'_>,
        probes: &mut ProbeRound,
        found: &mut PathStep,
    ) {
        let table = self.probed_table(probes);
        for number in 0..probes.count {
            let position = probes.positions[number] as usize;
            let there = match probes.seen[number] {
                HomeLine::Nothing => false,
                // If only those 22 bits were equal, another entry may match.
                HomeLine::Perhaps(block_ref) => {
                    let block = query.block(position);
                    self.is_at(block, block_ref, found)
                        || self.find_block(table, probes.keys[number], block, found)
                }
                HomeLine::Elsewhere => {
                    self.find_block(table, probes.keys[number], query.block(position), found)
                }
            };
            if there {
                let run_end = position + (found.head.blocks() - found.limit) as usize;
                prefetch(&query.hashes[run_end.min(probes.end - 1)]);
                self.prefetch_beside(&found.head);
                if found.head.parent() != NO_RUN {
                    self.heads.prefetch(&self.body, found.head.parent());
                }
                probes.hit = Some(position);
                return;
            }
            // A present block need not be marked, unless it is the first.
            if !probes.marked || position == 0 {
                probes.end = position;
            }
        }
    }

    /// Prefetches the path to the root beside a run's parent: the run's holders, and one run
    /// further on.
    #[inline]
    pub(super) fn prefetch_beside(&self, head: &RunHead) {
        if head.has_area() {
            self.body.prefetch(head.area().0);
        }
        if head.grandparent() != NO_RUN {
            self.heads.prefetch(&self.body, head.grandparent());
        }
    }

    /// Continues from the deepest block of the rounds to the deepest present one.
    #[inline]
    pub(super) fn extend_match(
        &self,
        query: ChainQuery<'_>,
        probes: &mut ProbeRound,
        found: &mut PathStep,
    ) {
        self.go_along(query, probes, found);
        probes.learn(self, found.head.depth() + found.limit);
    }

    #[inline]
    fn go_along(&self, query: ChainQuery<'_>, probes: &mut ProbeRound, found: &mut PathStep) {
        let Some(mut position) = probes.hit else {
            return;
        };
        let mut followed = 0;
        loop {
            let end = probes.end;
            let left_in_run = (found.head.blocks() - found.limit) as usize;
            let most = left_in_run.min(end - 1 - position);
            let next = position + left_in_run + 1;
            let mut ahead = None;
            if next < end && found.head.has_children() {
                // The search probably continues behind the run's end, if only to find nothing
                // there.
                let key = self.marks.key(query.space, query.hashes[next].0);
                self.marks.prefetch(&self.body, key);
                ahead = Some(key);
            }
            if most > 0 {
                let equal = self.equal_blocks(found, &query.hashes[position..=position + most]);
                found.limit += equal as u32;
                position += equal;
            }
            position += 1;
            if position >= end || !found.head.has_children() {
                return;
            }
            let mut further = PathStep::NONE;
            if followed == FOLLOWED && end - position > FEW {
                followed = 0;
                probes.cut(position);
                self.prefetch_probes(query, probes);
                self.scan(probes);
                self.first(query, probes, &mut further);
                if let Some(hit) = probes.hit {
                    position = hit;
                    *found = further;
                    continue;
                }
            }
            let block = query.block(position);
            let key = ahead
                .filter(|_| position == next)
                .unwrap_or_else(|| self.marks.key(block.space, block.hash));
            // A block that continues the chain outside this run begins another run.
            if !self.find_block(&self.marks, key, block, &mut further) {
                return;
            }
            followed += 1;
            *found = further;
        }
    }

    /// Returns how many blocks of the run behind the one found match the chain; `chain` begins with
    /// the one found.
    #[inline]
    fn equal_blocks(&self, found: &PathStep, chain: &[SequenceHash]) -> usize {
        let (at, most) = (found.limit as usize - 1, chain.len() - 1);
        let blocks = found.head.blocks() as usize;
        let Some(hashes) = self.body.words(found.head.hashes(), blocks) else {
            return 0;
        };
        let same = |offset: usize| hashes[at + offset].load(Ordering::Relaxed) == chain[offset].0;
        // Prompts mostly diverge at known forks, and the search began there.
        if !same(1) {
            return 0;
        }
        if at + most == blocks - 1 && found.head.tail() == chain[most].0 {
            return most;
        }
        // Equal up to `low`, different at `high`: some positions a round, their cache misses
        // overlapping.
        let (mut low, mut high) = (1, most + 1);
        while high - low > 1 {
            let gap = high - low;
            let parts = gap.min(PARTS);
            if gap > 32 {
                for number in 1..parts {
                    let offset = low + number * gap / parts;
                    prefetch(&chain[offset]);
                    prefetch(&hashes[at + offset]);
                }
            }
            let mut bound = high;
            for number in 1..parts {
                let offset = low + number * gap / parts;
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

    /// Looks up a block of a chain in a table.
    #[inline]
    fn find_block(
        &self,
        table: &BlockTable,
        key: TableKey,
        block: ChainBlock,
        found: &mut PathStep,
    ) -> bool {
        table
            .find(&self.body, key, |block_ref| {
                self.is_at(block, block_ref, found).then_some(())
            })
            .is_some()
    }

    /// Checks whether a block of a chain is at `block_ref`, and records it in `found`.
    #[inline]
    fn is_at(&self, block: ChainBlock, block_ref: BlockRef, found: &mut PathStep) -> bool {
        if !self.block_at(block.space, block.hash, block_ref, &mut found.head) {
            return false;
        }
        found.run = block_ref.run;
        found.limit = block_ref.at + 1;
        found.head.depth() as usize + block_ref.at as usize == block.position
    }

    /// Checks whether block `block_ref` exists and has `hash`; `head` gets its run's head.
    #[inline]
    pub(crate) fn block_at(
        &self,
        space: u64,
        hash: u64,
        block_ref: BlockRef,
        head: &mut RunHead,
    ) -> bool {
        loop {
            if !self.heads.read(&self.body, block_ref.run, head)
                || head.space() != space
                || block_ref.at >= head.blocks()
            {
                return false;
            }
            if block_ref.at == head.blocks() - 1 {
                return head.tail() == hash;
            }
            let words = self.body.words(head.hashes(), head.blocks() as usize);
            let equal = words.is_some_and(|hashes| {
                hashes[block_ref.at as usize].load(Ordering::Relaxed) == hash
            });
            fence(Ordering::Acquire);
            if self.heads.unchanged(&self.body, block_ref.run, head) {
                return equal;
            }
        }
    }
}
