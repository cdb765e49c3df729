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
mod scratch;
mod search;
mod shared_index;

use kv_blocks::SequenceHash;

pub use self::matches::{Matches, TargetSlot};
use self::{
    collect::TornRead,
    scratch::{PathStep, Scratch},
};
pub(crate) use self::{
    matches::MixedTiers,
    query::{ChainQuery, CreditSource},
    shared_index::{KNOWN_ENDS, SharedIndex},
};
use crate::atomic::{Ordering, fence, pause};

/// Lookups that share one round of cache misses.
const TOGETHER: usize = 16;

impl SharedIndex {
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

    /// Does several lookups at once, so that their cache misses overlap.
    pub(crate) fn lookup_batch(
        &self,
        space: u64,
        chains: &[&[SequenceHash]],
        now: u64,
        matches: &mut [Matches],
    ) {
        assert_eq!(chains.len(), matches.len(), "one answer per chain");
        for (chains, matches) in chains.chunks(TOGETHER).zip(matches.chunks_mut(TOGETHER)) {
            self.lookup_together(space, chains, now, matches);
        }
    }

    /// Does some lookups of a batch.
    #[inline]
    fn lookup_together(
        &self,
        space: u64,
        chains: &[&[SequenceHash]],
        now: u64,
        matches: &mut [Matches],
    ) {
        let of = |hashes| ChainQuery { space, hashes, now };
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
}
