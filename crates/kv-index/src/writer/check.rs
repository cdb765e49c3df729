//! Invariants of the structure after every change.

#![allow(clippy::unwrap_used, reason = "a check may panic")]

use std::collections::{BTreeMap, BTreeSet};

use super::{
    TreeWriter,
    tree_writer::{hashes, lines_of},
};
use crate::{
    arena::LINE_WORDS,
    atomic::Ordering,
    lookup::SharedIndex,
    runs::{NO_RUN, SpeculativeBlocks, TierSpan},
    table::BlockRef,
};

/// Held blocks of all runs.
#[derive(Debug, Default)]
pub(crate) struct BlocksByHolder {
    /// Confirmed stretches, by run.
    pub(crate) spans: Vec<(u32, TierSpan)>,
    pub(crate) expected: Vec<(u32, SpeculativeBlocks)>,
}

impl TreeWriter {
    /// Panics if runs, table, lines and the writer's own records contradict each other.
    pub(crate) fn check(&mut self, core: &SharedIndex) -> BlocksByHolder {
        assert!(
            self.pin.block_ref.is_none()
                && !self.pin.preserved
                && self.effects.dropped.is_empty()
                && self.effects.freed.is_empty(),
            "nothing is under way"
        );
        let free: BTreeSet<_> = self.nodes.free.iter().copied().collect();
        assert_eq!(free.len(), self.nodes.free.len(), "no number is free twice");
        let mut found = BlocksByHolder::default();
        let (mut blocks, mut unheld, mut lines, mut marks) = (0, 0, 0, 0);
        let mut kids = BTreeMap::new();
        for run in 0..self.runs() {
            assert_eq!(
                self.nodes.space(run).is_none(),
                free.contains(&run),
                "run {run}"
            );
            let head = core.heads.get(&core.body, run);
            if free.contains(&run) {
                assert_eq!(head.blocks(), 0, "run {run} is free");
                continue;
            }
            if head.parent() == NO_RUN {
                assert_eq!(head.depth(), 0, "run {run}");
            } else {
                let parent = core.heads.get(&core.body, head.parent());
                assert_eq!(head.grandparent(), parent.parent(), "run {run}");
                assert!(
                    (1..=parent.blocks()).contains(&head.attach()),
                    "run {run} hangs on a block that is there"
                );
                assert_eq!(
                    (head.depth(), head.space()),
                    (parent.depth() + head.attach(), parent.space()),
                    "run {run}"
                );
                *kids.entry((head.parent(), head.attach())).or_insert(0) += 1;
            }
            lines += self.check_run(core, run, &mut found);
            blocks += u64::from(head.blocks());
            marks += self.check_marks(core, run);
            unheld += u64::from(self.nodes.get(run).unheld);
        }
        assert_eq!(
            (self.blocks, self.nodes.unheld()),
            (blocks, unheld),
            "blocks, and those nobody holds"
        );
        assert_eq!(self.fill.total(), blocks, "one entry a block");
        assert_eq!(self.marks.total(), marks, "marked blocks");
        assert_eq!(self.nodes.children, kids, "children by place");
        for run in 0..self.runs() {
            let children: u32 = self
                .nodes
                .children
                .range((run, 0)..=(run, u32::MAX))
                .map(|(_, count)| *count)
                .sum();
            assert_eq!(
                self.nodes.get(run).children,
                children,
                "children of run {run}"
            );
            let head = core.heads.get(&core.body, run);
            assert_eq!(
                head.has_children(),
                children > 0,
                "run {run} says whether it has children"
            );
            let hung = self
                .nodes
                .children
                .range((run, 0)..=(run, u32::MAX))
                .next_back()
                .map_or(0, |((_, attach), _)| *attach);
            self.holders.read(&head, &core.body);
            assert_eq!(
                hung.max(self.holders.reach()),
                head.blocks(),
                "run {run} ends where something ends"
            );
        }
        let slabs = (self.nodes.len() as usize).div_ceil(core.heads.slab() as usize)
            * core.heads.slab() as usize;
        assert_eq!(
            self.extents.used(),
            lines + slabs as u64 + core.table.lines_in_use() + core.marks.lines_in_use(),
            "lines in use"
        );
        found
    }

    /// Checks the marked blocks of a run; returns their number.
    fn check_marks(&self, core: &SharedIndex, run: u32) -> u64 {
        let space = core.heads.get(&core.body, run).space();
        let ends: Vec<_> = self
            .ends
            .range((run, 0)..=(run, u32::MAX))
            .map(|(_, at)| *at)
            .collect();
        for at in ends.iter().copied().chain([0]) {
            let block_ref = BlockRef { run, at };
            let key = core.marks.key(space, self.hash(core, block_ref));
            let found = core
                .marks
                .find(&core.body, key, |known| (known == block_ref).then_some(()));
            assert!(found.is_some(), "block {at} of run {run} is marked");
        }
        1 + ends.len() as u64
    }

    /// Checks a run; returns its lines.
    fn check_run(&mut self, core: &SharedIndex, run: u32, found: &mut BlocksByHolder) -> u64 {
        let head = core.heads.get(&core.body, run);
        let node = *self.nodes.get(run);
        assert!(
            node.lines as usize * LINE_WORDS >= head.blocks() as usize,
            "run {run}"
        );
        for (at, word) in (0..).zip(hashes(core, &head)) {
            let hash = word.load(Ordering::Relaxed);
            assert_eq!(
                self.find(core, head.space(), hash),
                Some(BlockRef { run, at }),
                "each block is found, and once"
            );
        }
        assert_eq!(
            self.hash(
                core,
                BlockRef {
                    run,
                    at: head.blocks() - 1
                }
            ),
            head.tail(),
            "run {run}"
        );
        self.holders.read(&head, &core.body);
        assert_eq!(node.unheld, self.holders.unheld(), "run {run}");
        let mut spans = Vec::new();
        self.holders.each(|span| spans.push(span));
        spans.sort_unstable();
        for two in spans.windows(2) {
            let apart = (two[0].slot, two[0].tier) != (two[1].slot, two[1].tier)
                || two[0].end <= two[1].start;
            assert!(apart, "{two:?} of run {run} overlap");
        }
        let expected = self.holders.expected.iter().map(|known| known.span);
        for span in spans.iter().copied().chain(expected) {
            assert!(
                span.start < span.end && span.end <= head.blocks(),
                "{span:?} of run {run}"
            );
        }
        found
            .spans
            .extend(spans.into_iter().map(|span| (run, span)));
        found
            .expected
            .extend(self.holders.expected.iter().map(|known| (run, *known)));
        let area = if head.has_area() {
            lines_of(head.area().1)
        } else {
            0
        };
        u64::from(node.lines + area)
    }
}
