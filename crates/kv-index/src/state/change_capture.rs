//! Captures the effect of a change on one target's blocks, and publishes it to subscribers.

use std::sync::Arc;

use kv_blocks::{Namespace, SequenceHash, Target, Tier};

use super::IndexState;
use crate::{
    changes::{BlockChange, ChangeKind},
    lookup::SharedIndex,
    runs::{NO_RUN, TierSpan, tier_number},
    table::BlockRef,
};

/// Blocks of a run that a target held before a change.
pub(super) struct PriorHolding {
    target: Target,
    /// Whether the change clears everything.
    clearing: bool,
    run: RunCopy,
    /// Bits of tiers, per block.
    tiers: Vec<u8>,
}

/// Copy of a run before a change.
pub(super) struct RunCopy {
    pub(super) number: u32,
    namespace: Arc<Namespace>,
    depth: u32,
    parent: Option<SequenceHash>,
    pub(super) hashes: Vec<SequenceHash>,
}

impl IndexState {
    /// Captures the blocks that a slot holds of a run, if there are subscribers, for
    /// [`IndexState::publish_changes`].
    pub(super) fn capture(
        &mut self,
        core: &SharedIndex,
        run: u32,
        slot: u32,
    ) -> Option<PriorHolding> {
        if !self.feed.has_subscribers() {
            return None;
        }
        let run = self.run(core, run)?;
        let target = self.targets.get(slot).target;
        let tiers = self.tiers(core, run.number, target, run.hashes.len());
        Some(PriorHolding {
            target,
            clearing: false,
            run,
            tiers,
        })
    }

    /// Captures a run before the whole slot is cleared. The clear visits all runs, and in most of
    /// them there is nothing to publish.
    pub(super) fn capture_slot(
        &mut self,
        core: &SharedIndex,
        run: u32,
        slot: u32,
    ) -> Option<PriorHolding> {
        let mut is_holder = false;
        if self.feed.has_subscribers() && self.writer.space(run).is_some() {
            self.writer.stretches(core, run, slot, |_| is_holder = true);
        }
        let before = if is_holder {
            self.capture(core, run, slot)
        } else {
            None
        };
        before.map(|before| PriorHolding {
            clearing: true,
            ..before
        })
    }

    /// Publishes the difference between a captured state and the current one.
    pub(super) fn publish_changes(&mut self, core: &SharedIndex, before: Option<PriorHolding>) {
        let Some(PriorHolding {
            target,
            clearing,
            run,
            tiers,
        }) = before
        else {
            return;
        };
        let now = self.tiers(core, run.number, target, tiers.len());
        for tier in Tier::ALL {
            let bit = 1 << tier_number(tier);
            let kind = |at: usize| match (tiers[at] & bit != 0, now[at] & bit != 0) {
                (false, true) => Some(ChangeKind::Stored {
                    elsewhere: tiers[at] & !bit != 0,
                }),
                (true, false) => Some(ChangeKind::Removed {
                    elsewhere: now[at] != 0,
                }),
                _ => None,
            };
            let mut from = 0;
            while from < tiers.len() {
                let to = (from + 1..tiers.len())
                    .find(|at| kind(*at) != kind(from))
                    .unwrap_or(tiers.len());
                if let Some(kind) = kind(from) {
                    self.feed.push(BlockChange {
                        cleared: clearing,
                        ..run.change(target, tier, kind, from..to)
                    });
                }
                from = to;
            }
        }
    }

    /// Publishes blocks that were made for a slot.
    pub(super) fn publish_new_blocks(&mut self, core: &SharedIndex, run: u32, span: TierSpan) {
        if !self.feed.has_subscribers() {
            return;
        }
        if let Some(run) = self.run(core, run) {
            let target = self.targets.get(span.slot).target;
            let tier = Tier::ALL[span.tier as usize];
            let blocks = span.start as usize..span.end as usize;
            self.feed.push(run.change(
                target,
                tier,
                ChangeKind::Stored { elsewhere: false },
                blocks,
            ));
        }
    }

    /// Captures all holders of a run that is to be shed.
    pub(super) fn capture_all(&mut self, core: &SharedIndex, run: u32) -> Vec<PriorHolding> {
        let mut slots = Vec::new();
        if self.feed.has_subscribers() {
            self.writer
                .each_holder(core, run, |span| slots.push(span.slot));
        }
        slots.sort_unstable_by_key(|slot| self.targets.get(*slot).target);
        slots.dedup_by_key(|slot| self.targets.get(*slot).target);
        slots
            .into_iter()
            .filter_map(|slot| self.capture(core, run, slot))
            .collect()
    }

    pub(super) fn run(&self, core: &SharedIndex, number: u32) -> Option<RunCopy> {
        let space = self.writer.space(number)?;
        let head = core.heads.get(&core.body, number);
        let parent = (head.parent() != NO_RUN).then(|| {
            SequenceHash(self.writer.hash(
                core,
                BlockRef {
                    run: head.parent(),
                    at: head.attach() - 1,
                },
            ))
        });
        Some(RunCopy {
            number,
            namespace: Arc::clone(&self.namespaces.get(space).namespace),
            depth: head.depth(),
            parent,
            hashes: self
                .writer
                .hashes_of(core, number)
                .map(SequenceHash)
                .collect(),
        })
    }

    /// Returns the bits of the tiers in which a target holds the first `blocks` blocks of a run.
    /// Blocks of its retired slots count until they are swept, so that no removal is published for
    /// a block that the target has stored again.
    fn tiers(&mut self, core: &SharedIndex, run: u32, target: Target, blocks: usize) -> Vec<u8> {
        let mut tiers = vec![0; blocks];
        if self.writer.space(run).is_none() {
            return tiers;
        }
        for slot in self.targets.slots_of(target) {
            self.writer.stretches(core, run, slot, |span| {
                let (from, to) = (span.start as usize, (span.end as usize).min(blocks));
                tiers[from.min(to)..to]
                    .iter_mut()
                    .for_each(|bits| *bits |= 1 << span.tier);
            });
        }
        tiers
    }
}

impl RunCopy {
    pub(super) fn change(
        &self,
        target: Target,
        tier: Tier,
        kind: ChangeKind,
        blocks: std::ops::Range<usize>,
    ) -> BlockChange {
        let parent = blocks
            .start
            .checked_sub(1)
            .map_or(self.parent, |before| Some(self.hashes[before]));
        BlockChange {
            target,
            tier,
            kind,
            namespace: Arc::clone(&self.namespace),
            depth: self.depth + u32::try_from(blocks.start).unwrap_or(u32::MAX),
            parent,
            hashes: self.hashes[blocks].to_vec(),
            cleared: false,
        }
    }
}
