//! Stores a chain of blocks for a target: known blocks, and new ones.

use kv_blocks::{BlockSize, EngineHash, Tier};

use super::{IndexState, budget::EvictionEffort};
use crate::{
    UpdateOutcome,
    lookup::SharedIndex,
    report::count,
    runs::{BlockRange, TierSpan, tier_number},
    table::{BlockRef, NoFreeLines},
    writer::{ChainPart, CoverChange, RunHolder},
};

/// Blocks with known hashes from one event.
pub(super) struct BlockChain<'a> {
    pub(super) slot: u32,
    pub(super) tier: Tier,
    pub(super) part: ChainPart<'a>,
    /// Their engine hashes, if different from the block hashes.
    pub(super) names: Option<(&'a [EngineHash], BlockSize)>,
}

impl BlockChain<'_> {
    /// Returns whether a block stored again may be a further copy. A standard hash stands for the
    /// block, whatever the number of its copies.
    fn counts_copies(&self) -> bool {
        self.tier == Tier::Device && self.names.is_some()
    }
}

/// Progress of storing a chain.
struct ChainProgress {
    last: Option<BlockRef>,
    done: usize,
    /// Whether the next blocks may still be a repetition of reused blocks.
    repeats: bool,
    effort: EvictionEffort,
}

impl IndexState {
    /// Stores the blocks of a chain for a target, stretch by stretch, the known ones first.
    pub(super) fn store_chain(
        &mut self,
        core: &SharedIndex,
        chain: &BlockChain<'_>,
    ) -> UpdateOutcome {
        let ChainPart { parent, hashes, .. } = chain.part;
        let moved_before = self.counts.moved;
        let mut next = ChainProgress {
            last: parent,
            done: 0,
            repeats: parent.is_none(),
            effort: EvictionEffort::default(),
        };
        if chain.counts_copies()
            && let Some(parent) = parent
        {
            self.targets
                .copies(chain.slot, |copies| copies.confirm(parent));
        }
        self.writer.pin(parent);
        while next.done < hashes.len() {
            match self.store_stretch(core, chain, &mut next) {
                Ok(Some(stored)) => {
                    next.last = Some(stored.last());
                    next.done += stored.count() as usize;
                    next.effort = EvictionEffort::default();
                    // The pin protects the next block's parent from evictions.
                    self.writer.pin(next.last);
                }
                Ok(None) => break,
                Err(NoFreeLines) => {
                    if self.make_room(core, None, &mut next.effort).is_err() {
                        self.counts.shed += (hashes.len() - next.done) as u64;
                        break;
                    }
                }
            }
        }
        self.release_pin(core);
        let moved = self.moved_since(moved_before);
        self.resolve_orphans(chain, next.done);
        self.stay_within_budget(core);
        UpdateOutcome {
            moved,
            ..UpdateOutcome::applied(count(next.done), hashes.len())
        }
    }

    /// Stores the next stretch of a chain; `None` if the chain has another parent. Without room,
    /// nothing of the stretch is stored.
    fn store_stretch(
        &mut self,
        core: &SharedIndex,
        chain: &BlockChain<'_>,
        next: &mut ChainProgress,
    ) -> Result<Option<BlockRange>, NoFreeLines> {
        let (slot, tier) = (chain.slot, tier_number(chain.tier));
        let rest = ChainPart {
            parent: next.last,
            hashes: &chain.part.hashes[next.done..],
            ..chain.part
        };
        let Ok(known) = self.writer.locate(core, rest) else {
            return Ok(None);
        };
        if let Some(blocks) = known {
            if chain.names.is_some() {
                self.disown(core, slot, blocks);
            }
            // Names come first: a contradiction splits the hash group, and the names of earlier
            // blocks move too.
            let moved = self.name(core, chain, next.done, blocks);
            let resident = self.store_known(core, chain, blocks, &mut next.repeats);
            self.remove_renamed(core, slot, &moved, blocks);
            return resident.map(|()| Some(blocks));
        }
        let part = ChainPart {
            hashes: next.effort.part(rest.hashes),
            ..rest
        };
        let blocks = self.make(core, part, RunHolder::Confirmed { slot, tier })?;
        self.publish_new_blocks(core, blocks.run, blocks.span_of(slot, tier));
        let made = i64::from(blocks.count());
        self.count(slot, tier, made, made);
        let moved = self.name(core, chain, next.done, blocks);
        self.remove_renamed(core, slot, &moved, blocks);
        next.repeats = false;
        Ok(Some(blocks))
    }

    /// Makes new blocks, with a use of their namespace for a new run.
    pub(super) fn make(
        &mut self,
        core: &SharedIndex,
        part: ChainPart<'_>,
        holder: RunHolder,
    ) -> Result<BlockRange, NoFreeLines> {
        let made = self.writer.make(core, part, holder)?;
        if made.start == 0 {
            self.namespaces.add_use(part.namespace.id);
        }
        Ok(made)
    }

    /// Stores a stretch of blocks that exist already.
    fn store_known(
        &mut self,
        core: &SharedIndex,
        chain: &BlockChain<'_>,
        blocks: BlockRange,
        repeats: &mut bool,
    ) -> Result<(), NoFreeLines> {
        let span = blocks.span_of(chain.slot, tier_number(chain.tier));
        self.add_holder(core, blocks.run, span)?;
        if chain.counts_copies() {
            let resident = &self.writer.effects.resident_ranges;
            self.targets
                .copies(chain.slot, |copies| copies.store(blocks, resident, repeats));
        }
        Ok(())
    }

    /// Records that a slot holds existing blocks of a run in a tier.
    pub(super) fn add_holder(
        &mut self,
        core: &SharedIndex,
        run: u32,
        span: TierSpan,
    ) -> Result<(), NoFreeLines> {
        let trusted = self.targets.get(span.slot).is_credited();
        let before = self.capture(core, run, span.slot);
        let CoverChange { in_tier, at_all } = self.writer.cover(core, run, span, trusted)?;
        self.count(span.slot, span.tier, i64::from(in_tier), i64::from(at_all));
        self.counts.moved += u64::from(in_tier.saturating_sub(at_all));
        self.publish_changes(core, before);
        Ok(())
    }

    /// Returns how many blocks moved since [`Self::counts`] had this figure.
    pub(super) fn moved_since(&self, before: u64) -> u32 {
        u32::try_from(self.counts.moved - before).unwrap_or(u32::MAX)
    }

    /// Unlinks old names when a target with names of its own stores blocks that it did not hold:
    /// earlier names do not count.
    fn disown(&mut self, core: &SharedIndex, slot: u32, blocks: BlockRange) {
        let BlockRange { run, start, end } = blocks;
        if !self.names.may_unlink(slot, run) {
            return;
        }
        let mut resident = Vec::new();
        self.writer.stretches(core, run, slot, |span| {
            resident.push((span.start, span.end))
        });
        resident.sort_unstable();
        resident.push((end, u32::MAX));
        let mut from = start;
        for (resident_from, resident_to) in resident {
            let gap = from..resident_from.min(end);
            if !gap.is_empty() {
                self.names.unlink(slot, run, &gap);
            }
            from = from.max(resident_to);
        }
    }

    /// Records the engine hashes of a stretch; returns the blocks that had one of these names
    /// before.
    fn name(
        &mut self,
        core: &SharedIndex,
        chain: &BlockChain<'_>,
        from: usize,
        blocks: BlockRange,
    ) -> Vec<BlockRef> {
        let Some((names, size)) = chain.names else {
            return Vec::new();
        };
        let names = &names[from..from + blocks.count() as usize];
        // A member splits twice at most: from the initial group, and from one that it joined
        // instead.
        for _ in 0..3 {
            match self.names.announce(chain.slot, size, names, blocks.first()) {
                Ok(announced) => return announced.moved,
                Err(contradiction) => {
                    let resident = self.stretches_of(core, chain.slot);
                    self.names.split_group(chain.slot, resident, contradiction);
                }
            }
        }
        Vec::new()
    }

    /// Removes blocks from a target whose names have just been given to other blocks: no event
    /// could remove them any more.
    fn remove_renamed(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        renamed: &[BlockRef],
        blocks: BlockRange,
    ) {
        for old in renamed.iter().filter(|old| !blocks.contains(**old)) {
            for tier in Tier::ALL {
                self.remove_from_tier(core, old.run, TierSpan::of_block(slot, tier, old.at));
            }
        }
        self.apply_effects();
    }
}
