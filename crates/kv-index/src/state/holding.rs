//! Stores a chain of blocks for a target: known blocks, and new ones.

use kv_blocks::{BlockSize, EngineHash, SequenceHash, Tier};

use super::{IndexState, budget::EvictionEffort, events::count, number};
use crate::{
    UpdateOutcome,
    copies::Copies,
    lookup::SharedIndex,
    runs::TierSpan,
    table::{BlockRef, NoFreeLines},
    writer::{CoverChange, RunHolder, RunNamespace},
};

/// Blocks with known hashes from one event.
pub(super) struct BlockChain<'a> {
    pub(super) slot: u32,
    pub(super) tier: Tier,
    pub(super) namespace: RunNamespace,
    /// The block before the first one.
    pub(super) parent: Option<BlockRef>,
    pub(super) hashes: &'a [SequenceHash],
    /// Their engine hashes, if different from the block hashes.
    pub(super) names: Option<(&'a [EngineHash], BlockSize)>,
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
        let BlockChain {
            slot,
            tier,
            parent,
            hashes,
            ..
        } = *chain;
        let mut next = ChainProgress {
            last: parent,
            done: 0,
            repeats: parent.is_none(),
            effort: EvictionEffort::default(),
        };
        if tier == Tier::Device
            && let Some(parent) = parent
        {
            self.targets.copies(slot, |copies| copies.confirm(parent));
        }
        self.writer.pin(parent);
        while next.done < hashes.len() {
            match self.hold_stretch(core, chain, &mut next) {
                Ok(Some((spot, count))) => {
                    next.last = Some(BlockRef {
                        run: spot.run,
                        at: spot.at + count - 1,
                    });
                    next.done += count as usize;
                    next.effort = EvictionEffort::default();
                    // The pin protects the next block's parent from evictions.
                    self.writer.pin(next.last);
                }
                Ok(None) => break,
                Err(NoFreeLines) => {
                    if self.make_room(core, None, &mut next.effort).is_err() {
                        self.shed += (hashes.len() - next.done) as u64;
                        break;
                    }
                }
            }
        }
        self.release_pin(core);
        self.resolve_orphans(chain, next.done);
        self.stay_within_budget(core);
        let applied = count(next.done);
        UpdateOutcome {
            applied,
            orphans: 0,
            ignored: count(hashes.len()) - applied,
        }
    }

    /// Stores the next stretch of a chain; `None` if the chain has another parent. Without room,
    /// nothing of the stretch is stored.
    fn hold_stretch(
        &mut self,
        core: &SharedIndex,
        chain: &BlockChain<'_>,
        next: &mut ChainProgress,
    ) -> Result<Option<(BlockRef, u32)>, NoFreeLines> {
        let BlockChain {
            slot,
            tier,
            namespace: home,
            hashes,
            ..
        } = *chain;
        let rest = &hashes[next.done..];
        let Ok(known) = self.writer.locate(core, home.key, next.last, rest) else {
            return Ok(None);
        };
        if let Some((spot, count)) = known {
            if chain.names.is_some() {
                self.disown(core, slot, spot, count);
            }
            // Names come first: a contradiction splits the hash group, and the names of earlier
            // blocks move too.
            let moved = self.name(core, chain, next.done, spot, count);
            let held = self.hold_known(core, chain, spot, count, &mut next.repeats);
            self.leave_renamed(core, slot, &moved, spot, count);
            return held.map(|()| Some((spot, count)));
        }
        let rest = next.effort.part(rest);
        let holder = RunHolder::Confirmed {
            slot,
            tier: number(tier),
        };
        let (spot, count) = self.make(core, home, next.last, rest, holder)?;
        self.publish_new_blocks(core, slot, tier, spot, count);
        self.count(slot, tier.index(), i64::from(count), i64::from(count));
        let moved = self.name(core, chain, next.done, spot, count);
        self.leave_renamed(core, slot, &moved, spot, count);
        next.repeats = false;
        Ok(Some((spot, count)))
    }

    /// Makes new blocks, with a use of their namespace for a new run.
    pub(super) fn make(
        &mut self,
        core: &SharedIndex,
        home: RunNamespace,
        last: Option<BlockRef>,
        rest: &[SequenceHash],
        holder: RunHolder,
    ) -> Result<(BlockRef, u32), NoFreeLines> {
        let (spot, count) = self.writer.make(core, home, last, rest, holder)?;
        if spot.at == 0 {
            self.namespaces.keep(home.id);
        }
        Ok((spot, count))
    }

    /// Stores a stretch of blocks that exist already.
    fn hold_known(
        &mut self,
        core: &SharedIndex,
        chain: &BlockChain<'_>,
        spot: BlockRef,
        count: u32,
        repeats: &mut bool,
    ) -> Result<(), NoFreeLines> {
        let BlockChain { slot, tier, .. } = *chain;
        let span = TierSpan {
            slot,
            tier: number(tier),
            start: spot.at,
            end: spot.at + count,
        };
        let trusted = self.targets.get(slot).trusted;
        let before = self.capture(core, spot.run, slot);
        let CoverChange { in_tier, at_all } =
            self.writer
                .cover(core, spot.run, span, trusted, &mut self.held)?;
        self.count(slot, tier.index(), i64::from(in_tier), i64::from(at_all));
        self.publish_changes(core, before);
        if tier == Tier::Device {
            let held = std::mem::take(&mut self.held);
            self.targets.copies(slot, |copies| {
                note_copies(copies, span, spot.run, &held, repeats)
            });
            self.held = held;
        }
        Ok(())
    }

    /// Unlinks old names when a target with names of its own stores blocks that it did not hold:
    /// earlier names do not count.
    fn disown(&mut self, core: &SharedIndex, slot: u32, spot: BlockRef, count: u32) {
        if !self.names.may_unlink(slot, spot.run) {
            return;
        }
        let mut held = Vec::new();
        self.writer.stretches(core, spot.run, slot, |span| {
            held.push((span.start, span.end))
        });
        held.sort_unstable();
        held.push((spot.at + count, u32::MAX));
        let mut from = spot.at;
        for (start, end) in held {
            let gap = from..start.min(spot.at + count);
            if !gap.is_empty() {
                self.names.unlink(slot, spot.run, &gap);
            }
            from = from.max(end);
        }
    }

    /// Records the engine hashes of a stretch; returns the blocks that had one of these names
    /// before.
    fn name(
        &mut self,
        core: &SharedIndex,
        chain: &BlockChain<'_>,
        from: usize,
        spot: BlockRef,
        count: u32,
    ) -> Vec<BlockRef> {
        let Some((names, size)) = chain.names else {
            return Vec::new();
        };
        let names = &names[from..from + count as usize];
        // A member splits twice at most: from the initial group, and from one that it joined
        // instead.
        for _ in 0..3 {
            match self.names.announce(chain.slot, size, names, spot) {
                Ok(announced) => return announced.moved,
                Err(contradiction) => {
                    let held = self.stretches_of(core, chain.slot);
                    self.names.split_group(chain.slot, held, contradiction);
                }
            }
        }
        Vec::new()
    }

    /// Removes blocks from a target whose names have just been given to other blocks: no event
    /// could remove them any more.
    fn leave_renamed(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        renamed: &[BlockRef],
        spot: BlockRef,
        count: u32,
    ) {
        for old in renamed {
            if old.run != spot.run || old.at < spot.at || old.at >= spot.at + count {
                for tier in Tier::ALL {
                    self.remove_from_tier(core, slot, tier, old.run, old.at, old.at + 1);
                }
            }
        }
        self.settle();
    }
}

/// Counts copies for blocks `span` of a run that were stored; those in `held` were held before, so
/// they are copies or repetitions.
fn note_copies(
    copies: &mut Copies,
    span: TierSpan,
    run: u32,
    held: &[(u32, u32)],
    repeats: &mut bool,
) {
    let mut next = span.start;
    for (start, end) in held.iter().copied() {
        *repeats &= start == next;
        next = end;
        if *repeats && copies.is_empty() {
            continue;
        }
        for at in start..end {
            let spot = BlockRef { run, at };
            if *repeats {
                copies.confirm(spot)
            } else {
                copies.add(spot)
            }
        }
    }
    *repeats &= next == span.end;
}
