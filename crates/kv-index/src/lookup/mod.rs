//! Lookups: no lock, no writes.
//!
//! A lookup finds the deepest known block of the chain, collects the runs from there to the root,
//! and walks them from the root down. It reads each run's head as it was at one moment; in the end
//! it checks that none of the heads has changed since, else it starts over. `PROTOCOL.md` argues
//! why that is enough.

#![allow(
    clippy::cast_possible_truncation,
    reason = "fields are cut out of words, and numbers of blocks fit 32 bits"
)]

mod area;
mod collect;
mod matches;
mod probes;
mod query;
mod search;

use kv_blocks::{DpRank, SequenceHash, Target, WorkerId};

use self::collect::{PathStep, Scratch, TornRead};
pub use self::matches::{Matches, TargetSlot};
pub(crate) use self::{
    matches::MixedHolding,
    probes::KNOWN_ENDS,
    query::{ChainQuery, CreditSource},
};
use crate::{
    arena::LineChunks,
    atomic::{AtomicU32, AtomicU64, Ordering, fence, pause},
    runs::{MAX_SLOTS, RunHeads},
    table::BlockTable,
};

/// Data shared by readers and the writer.
#[derive(Debug)]
pub(crate) struct SharedIndex {
    pub(crate) heads: RunHeads,
    pub(crate) body: LineChunks,
    /// All blocks.
    pub(crate) table: BlockTable,
    /// The first block of every run, and those at the ends of prompts: so few that they stay in the
    /// cache.
    pub(crate) marks: BlockTable,
    /// Depths at which prompts diverge most often (the ends of system prompts); 0 for none. Only a
    /// hint for the first probes.
    pub(crate) ends: [AtomicU32; KNOWN_ENDS],
    /// Words of slot bits that are in use.
    pub(crate) width: AtomicU64,
    /// The target of each slot, eight to a line; 0 while it has none.
    targets: LineChunks,
    /// Changes whenever a slot gets a target or loses it.
    pub(crate) assignments: AtomicU64,
    /// Bits of slots with untrusted targets, and their number.
    pub(crate) untrusted: Box<[AtomicU64]>,
    pub(crate) doubts: AtomicU64,
}

/// Lines of targets that are added at once, as a power of two.
const TARGETS_LOG2: u32 = 3;
/// Lookups that share one round of cache misses.
const TOGETHER: usize = 16;

impl SharedIndex {
    pub(crate) fn new(
        heads: RunHeads,
        body: LineChunks,
        table: BlockTable,
        marks: BlockTable,
    ) -> Self {
        let targets = LineChunks::new(MAX_SLOTS as usize >> (3 + TARGETS_LOG2), TARGETS_LOG2);
        Self {
            heads,
            body,
            table,
            marks,
            targets,
            assignments: AtomicU64::new(0),
            ends: std::array::from_fn(|_| AtomicU32::new(0)),
            width: AtomicU64::new(1),
            untrusted: (0..MAX_SLOTS / 64).map(|_| AtomicU64::new(0)).collect(),
            doubts: AtomicU64::new(0),
        }
    }

    /// Abandons the structure: lookups credit no target from now on and do not wait for the writer.
    pub(crate) fn abandon(&self) {
        self.heads.abandon();
        self.width.store(0, Ordering::Relaxed);
    }

    /// Assigns a slot to a target. For the writer.
    pub(crate) fn assign(&self, slot: u32, target: Target) {
        if self.targets.line(slot / 8).is_none() {
            self.targets.add((slot >> (3 + TARGETS_LOG2)) as usize);
        }
        self.name(
            slot,
            1 << 63 | u64::from(target.worker.0) << 31 | u64::from(target.rank.0 & 0x7fff_ffff),
        );
        let width = u64::from(slot) / 64 + 1;
        if self.width.load(Ordering::Relaxed) < width {
            self.width.store(width, Ordering::Release);
        }
    }

    /// Removes the target of a slot. For the writer.
    pub(crate) fn unassign(&self, slot: u32) {
        self.name(slot, 0);
    }

    fn name(&self, slot: u32, target: u64) {
        if let Some(line) = self.targets.line(slot / 8) {
            line[slot as usize % 8].store(target, Ordering::Release);
        }
        self.assignments.fetch_add(1, Ordering::Release);
    }

    /// Returns the target of a slot.
    pub(crate) fn target(&self, slot: u32) -> Option<Target> {
        let word = self.targets.line(slot / 8)?[slot as usize % 8].load(Ordering::Acquire);
        let (worker, rank) = ((word >> 31) as u32, word as u32 & 0x7fff_ffff);
        (word != 0).then_some(Target {
            worker: WorkerId(worker),
            rank: DpRank(rank),
        })
    }

    /// Sets whether a slot's target is untrusted. For the writer.
    pub(crate) fn set_untrusted(&self, slot: u32, doubted: bool) {
        let (word, bit) = (&self.untrusted[slot as usize / 64], 1 << (slot % 64));
        let now = word.load(Ordering::Relaxed);
        word.store(
            if doubted { now | bit } else { now & !bit },
            Ordering::Relaxed,
        );
        let doubts = self.doubts.load(Ordering::Relaxed);
        self.doubts.store(
            if doubted { doubts + 1 } else { doubts - 1 },
            Ordering::Release,
        );
    }

    /// Looks up how much of a chain each credited target has announced or is expected to hold.
    #[inline]
    pub(crate) fn lookup(
        &self,
        query: ChainQuery<'_>,
        credit: CreditSource,
        matches: &mut Matches,
    ) {
        if !query.hashes.is_empty() {
            self.search(query, matches);
        }
        self.conclude(query, credit, matches);
    }

    /// Does several lookups at once, so that their cache misses overlap. `query` has everything but
    /// the chains.
    pub(crate) fn lookup_batch(
        &self,
        query: ChainQuery<'_>,
        chains: &[&[SequenceHash]],
        matches: &mut [Matches],
    ) {
        assert_eq!(chains.len(), matches.len(), "one answer per chain");
        for (chains, matches) in chains.chunks(TOGETHER).zip(matches.chunks_mut(TOGETHER)) {
            self.lookup_together(query, chains, matches);
        }
    }

    /// Does some lookups of a batch.
    #[inline]
    fn lookup_together(
        &self,
        query: ChainQuery<'_>,
        chains: &[&[SequenceHash]],
        matches: &mut [Matches],
    ) {
        let of = |hashes| ChainQuery { hashes, ..query };
        for (chain, matches) in chains
            .iter()
            .zip(&mut *matches)
            .filter(|(chain, _)| !chain.is_empty())
        {
            self.probe(of(chain), &mut matches.scratch.probes);
        }
        for (_, matches) in chains
            .iter()
            .zip(&mut *matches)
            .filter(|(chain, _)| !chain.is_empty())
        {
            self.scan(&mut matches.scratch.probes);
        }
        // Bits of lookups that need a second round.
        let mut more = 0_u32;
        for (number, (chain, matches)) in chains.iter().zip(&mut *matches).enumerate() {
            if !chain.is_empty() {
                self.first_of(of(chain), matches);
                let goes_on = self.probe_on(of(chain), &mut matches.scratch.probes);
                more |= u32::from(goes_on) << number;
            }
        }
        let again = |number: &usize| more >> number & 1 == 1;
        for number in (0..chains.len()).filter(again) {
            self.scan(&mut matches[number].scratch.probes);
        }
        for number in (0..chains.len()).filter(again) {
            self.first_of(of(chains[number]), &mut matches[number]);
        }
        for (chain, matches) in chains.iter().zip(matches) {
            self.conclude(of(chain), CreditSource::Trusted, matches);
        }
    }

    /// Runs the rounds of a search.
    #[inline]
    fn search(&self, query: ChainQuery<'_>, matches: &mut Matches) {
        self.probe(query, &mut matches.scratch.probes);
        self.scan(&mut matches.scratch.probes);
        self.first_of(query, matches);
        if self.probe_on(query, &mut matches.scratch.probes) {
            self.scan(&mut matches.scratch.probes);
            self.first_of(query, matches);
        }
    }

    /// Completes a lookup after its search.
    #[inline]
    fn conclude(&self, query: ChainQuery<'_>, credit: CreditSource, matches: &mut Matches) {
        if query.hashes.is_empty() {
            return matches.clear(0);
        }
        let mut round = 0;
        while self.attempt(query, credit, matches).is_err() {
            if self.heads.abandoned() {
                return matches.clear(0);
            }
            pause(&mut round);
            self.search(query, matches);
        }
    }

    #[inline]
    fn first_of(&self, query: ChainQuery<'_>, matches: &mut Matches) {
        let Scratch { path, probes, .. } = &mut matches.scratch;
        path.clear();
        path.push(PathStep::NONE);
        self.first(query, probes, &mut path[0]);
    }

    #[inline]
    fn attempt(
        &self,
        query: ChainQuery<'_>,
        credit: CreditSource,
        matches: &mut Matches,
    ) -> Result<(), TornRead> {
        matches.clear(self.width.load(Ordering::Acquire) as usize);
        let Scratch { path, probes, .. } = &mut matches.scratch;
        if probes.hit.is_none() {
            return Ok(());
        }
        self.extend_match(query, probes, &mut path[0]);
        self.path(path)?;
        self.collect(matches, credit, query.now)?;
        // All reads come before the second read of the versions.
        fence(Ordering::Acquire);
        let path = &matches.scratch.path;
        if path
            .iter()
            .all(|step| self.heads.unchanged(&self.body, step.run, &step.head))
        {
            Ok(())
        } else {
            Err(TornRead)
        }
    }

    /// Calls back with every word of the bits of untrusted targets.
    #[inline]
    fn doubted(&self, mut visit: impl FnMut(usize, u64)) {
        if self.doubts.load(Ordering::Acquire) == 0 {
            return;
        }
        let width = self.width.load(Ordering::Acquire) as usize;
        for (number, word) in self.untrusted.iter().take(width).enumerate() {
            visit(number, word.load(Ordering::Relaxed));
        }
    }
}
