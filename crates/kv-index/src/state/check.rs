//! Invariants of the writer's state after every change.

#![allow(clippy::unwrap_used, reason = "a check may panic")]

use std::collections::{BTreeMap, BTreeSet};

use super::IndexState;
use crate::{lookup::SharedIndex, table::BlockRef, writer::BlocksByHolder};

impl IndexState {
    /// Panics if the writer's state contradicts itself or the structure.
    pub(crate) fn check(&mut self, core: &SharedIndex) {
        assert!(self.arrived.is_empty(), "no orphan is under way");
        let found = self.writer.check(core);
        self.check_targets(&found);
        self.check_speculative_entries(&found);
        self.check_names(core);
        let mut uses = BTreeMap::new();
        for space in (0..self.writer.runs()).filter_map(|run| self.writer.space(run)) {
            *uses.entry(space).or_insert(0) += 1;
        }
        assert_eq!(
            self.namespaces.uses(),
            uses,
            "a use of a namespace for each of its runs"
        );
        let bytes = self.bytes();
        let limit = self.settings.memory_budget;
        assert!(
            bytes <= limit || self.writer.blocks() == 0,
            "{bytes} bytes in use, {limit} allowed"
        );
    }

    fn check_targets(&self, found: &BlocksByHolder) {
        let mut blocks: BTreeMap<u32, [u64; 4]> = BTreeMap::new();
        let mut by_slot: BTreeMap<u32, BTreeSet<BlockRef>> = BTreeMap::new();
        for (run, span) in &found.spans {
            blocks.entry(span.slot).or_default()[span.tier as usize] +=
                u64::from(span.end - span.start);
            by_slot
                .entry(span.slot)
                .or_default()
                .extend((span.start..span.end).map(|at| BlockRef { run: *run, at }));
        }
        let (mut memberships, mut copied) = (0, 0);
        for (slot, owner) in self.targets.owners() {
            let target = owner.target;
            assert_eq!(
                owner.blocks,
                blocks.remove(&slot).unwrap_or_default(),
                "blocks per tier of {target}"
            );
            let resident = by_slot.remove(&slot).unwrap_or_default();
            assert_eq!(
                owner.block_count,
                resident.len() as u64,
                "blocks of {target}"
            );
            memberships += owner.block_count;
            copied += owner.copies.len();
            for block_ref in owner.copies.blocks() {
                let on_device = |(run, span): &(u32, crate::runs::TierSpan)| {
                    (*run, span.slot, span.tier) == (block_ref.run, slot, 0)
                        && (span.start..span.end).contains(&block_ref.at)
                };
                assert!(
                    found.spans.iter().any(on_device),
                    "{block_ref:?} counts copies of {target}, which does not hold it"
                );
            }
        }
        assert_eq!(
            blocks.len(),
            0,
            "held by slots that are nobody's: {blocks:?}"
        );
        assert_eq!(
            (self.counts.memberships, self.targets.copied()),
            (memberships, copied)
        );
    }

    fn check_speculative_entries(&self, found: &BlocksByHolder) {
        let mut by_entry: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (run, known) in &found.expected {
            let (blocks, ends) = by_entry.entry(known.generation).or_insert((0, u64::MAX));
            *blocks += u64::from(known.span.end - known.span.start);
            *ends = (*ends).min(known.expires);
            let runs = self
                .speculative
                .iter()
                .find(|(generation, ..)| *generation == known.generation)
                .map(|(_, runs, ..)| runs);
            assert!(
                runs.is_some_and(|runs| runs.contains(run)),
                "speculative entry {} is in run {run}",
                known.generation
            );
        }
        for (generation, _, blocks, ends) in self.speculative.iter() {
            let (found, first) = by_entry.remove(&generation).unwrap_or_default();
            assert_eq!(blocks, found, "blocks of speculative entry {generation}");
            assert!(
                ends <= first,
                "speculative entry {generation} is looked at when its first block ends"
            );
        }
        assert!(by_entry.is_empty(), "no speculative entry for {by_entry:?}");
        assert!(self.speculative.blocks() <= self.settings.prediction_max_blocks);
    }

    fn check_names(&self, core: &SharedIndex) {
        for run in 0..self.writer.runs() + 1 {
            let there = self
                .writer
                .space(run)
                .map_or(0, |_| core.heads.get(&core.body, run).blocks());
            for stretch in self.names.names_of(run) {
                let end = stretch.at as usize + stretch.names.len();
                assert!(
                    end <= there as usize,
                    "{stretch:?} names blocks of run {run}, which has {there}"
                );
            }
        }
    }
}
