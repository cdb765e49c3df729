//! Exports the targets' blocks in an order for rebuilding: parents first.

use std::{mem, ops::Range};

use kv_blocks::{Target, Tier};

use super::{IndexState, change_capture::RunCopy};
use crate::{
    changes::{BlockChange, ChangeKind},
    export::{ExportCursor, ExportedBlocks},
    lookup::SharedIndex,
    runs::{NO_RUN, TierSpan},
};

/// Blocks of stretches per step.
const BLOCKS: usize = 4096;
/// Runs visited in one step.
const RUNS: u32 = 4096;

impl IndexState {
    /// Returns the next stretches; `None` after the last.
    pub(crate) fn export(
        &mut self,
        core: &SharedIndex,
        cursor: &mut ExportCursor,
        selected: &dyn Fn(Target) -> bool,
    ) -> Option<Vec<ExportedBlocks>> {
        let (mut exported, mut blocks, mut runs) = (Vec::new(), 0, 0);
        while blocks < BLOCKS && runs < RUNS {
            let parent = |run: u32| {
                self.writer
                    .space(run)
                    .map(|_| core.heads.get(&core.body, run).parent())
            };
            let next = cursor.next(self.writer.runs(), |run| {
                parent(run).filter(|parent| *parent != NO_RUN)
            });
            let Some(run) = next else {
                return (!exported.is_empty()).then_some(exported);
            };
            runs += 1;
            let mut of_run = self.export_run(core, run, cursor, selected);
            blocks += of_run.iter().map(ExportedBlocks::blocks).sum::<usize>() + 1;
            exported.append(&mut of_run);
        }
        Some(exported)
    }

    /// Returns the next stretches of a run.
    fn export_run(
        &mut self,
        core: &SharedIndex,
        number: u32,
        cursor: &mut ExportCursor,
        selected: &dyn Fn(Target) -> bool,
    ) -> Vec<ExportedBlocks> {
        let spans = self.selected_spans(core, number, selected);
        let run = self
            .run(core, number)
            .filter(|run| !spans.is_empty() && (cursor.at as usize) < run.hashes.len());
        let Some(run) = run else {
            cursor.end_run();
            return Vec::new();
        };
        let from = cursor.at;
        let step = u32::try_from(BLOCKS / spans.len()).unwrap_or(1).max(1);
        let to = from
            .saturating_add(step)
            .min(u32::try_from(run.hashes.len()).unwrap_or(u32::MAX));
        cursor.at = to;
        // Blocks of this run that the importer has by now.
        let mut known = spans
            .iter()
            .filter(|span| span.start < from)
            .map(|span| span.end.min(from))
            .max()
            .unwrap_or(0);
        let mut exported = Vec::new();
        for span in &spans {
            let (start, end) = (span.start.max(from), span.end.min(to));
            if start >= end {
                continue;
            }
            let mut lead = Vec::new();
            if start > known || known == 0 {
                let gap = TierSpan {
                    start: known,
                    end: start,
                    ..*span
                };
                lead = self.lead(core, &run, gap, selected);
            }
            known = known.max(end);
            for (stretch, elsewhere) in by_faster_tiers(*span, start..end, &spans) {
                let kind = ChangeKind::Stored { elsewhere };
                let target = self.targets.get(span.slot).target;
                let blocks = stretch.start as usize..stretch.end as usize;
                exported.push(ExportedBlocks {
                    change: run.change(target, tier(*span), kind, blocks),
                    lead: mem::take(&mut lead),
                });
            }
        }
        exported
    }

    fn selected_spans(
        &mut self,
        core: &SharedIndex,
        run: u32,
        selected: &dyn Fn(Target) -> bool,
    ) -> Vec<TierSpan> {
        let mut spans = Vec::new();
        if self.writer.space(run).is_some() {
            self.writer.each_holder(core, run, |span| spans.push(span));
        }
        spans.retain(|span| selected(self.targets.get(span.slot).target));
        if self.targets.has_sweeps() {
            self.join_retired(&mut spans);
        }
        spans.sort_unstable_by_key(|span| (span.start, span.tier, span.slot));
        spans
    }

    /// Adds the blocks of a target's retired slots to its own, as subscribers see them.
    pub(super) fn join_retired(&self, spans: &mut Vec<TierSpan>) {
        for span in spans.iter_mut() {
            let slots = self.targets.slots_of(self.targets.get(span.slot).target);
            span.slot = slots.first().copied().unwrap_or(span.slot);
        }
        spans.sort_unstable_by_key(|span| (span.slot, span.tier, span.start));
        spans.dedup_by(|next, span| {
            let joined = (next.slot, next.tier) == (span.slot, span.tier) && next.start <= span.end;
            if joined {
                span.end = span.end.max(next.end);
            }
            joined
        });
    }

    /// Returns the blocks right before a stretch that no selected target holds, first one first:
    /// `gap` of its own run, and, if that begins with the run, the end of the runs above; as if in
    /// the gap's slot and tier.
    fn lead(
        &mut self,
        core: &SharedIndex,
        run: &RunCopy,
        gap: TierSpan,
        selected: &dyn Fn(Target) -> bool,
    ) -> Vec<BlockChange> {
        let target = self.targets.get(gap.slot).target;
        let kind = ChangeKind::Stored { elsewhere: false };
        let part = |run: &RunCopy, blocks: Range<u32>| {
            run.change(
                target,
                tier(gap),
                kind,
                blocks.start as usize..blocks.end as usize,
            )
        };
        let mut parts = Vec::new();
        if gap.start < gap.end {
            parts.push(part(run, gap.start..gap.end));
        }
        let mut below = (gap.start == 0).then_some(run.number);
        while let Some(child) = below.take() {
            let head = core.heads.get(&core.body, child);
            let (parent, attach) = (head.parent(), head.attach());
            if parent == NO_RUN {
                break;
            }
            let spans = self.selected_spans(core, parent, selected);
            let covered = spans
                .iter()
                .map(|span| span.end.min(attach))
                .max()
                .unwrap_or(0);
            if covered < attach {
                parts.extend(
                    self.run(core, parent)
                        .map(|run| part(&run, covered..attach)),
                );
                below = (covered == 0).then_some(parent);
            }
        }
        parts.reverse();
        parts
    }
}

fn tier(span: TierSpan) -> Tier {
    Tier::ALL[span.tier as usize]
}

/// Splits `blocks` of a span by whether its slot has them in a faster tier too.
fn by_faster_tiers(
    span: TierSpan,
    blocks: Range<u32>,
    spans: &[TierSpan],
) -> Vec<(Range<u32>, bool)> {
    let faster: Vec<_> = spans
        .iter()
        .filter(|other| other.slot == span.slot && other.tier < span.tier)
        .collect();
    let has = |at: u32| {
        faster
            .iter()
            .any(|other| (other.start..other.end).contains(&at))
    };
    let mut cut: Vec<(Range<u32>, bool)> = Vec::new();
    for at in blocks {
        let elsewhere = has(at);
        match cut.last_mut() {
            Some((stretch, same)) if *same == elsewhere => stretch.end = at + 1,
            _ => cut.push((at..at + 1, elsewhere)),
        }
    }
    cut
}
