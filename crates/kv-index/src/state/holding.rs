//! A target holds a chain of blocks: those that are known, and those that are made for it.

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

/// What an event says about blocks whose hashes are known.
pub(super) struct BlockChain<'a> {
    pub(super) slot: u32,
    pub(super) tier: Tier,
    pub(super) namespace: RunNamespace,
    /// The block before the first one.
    pub(super) parent: Option<BlockRef>,
    pub(super) hashes: &'a [SequenceHash],
    /// What the engine calls them, if that is something else.
    pub(super) names: Option<(&'a [EngineHash], BlockSize)>,
}

/// How far a chain has been taken.
struct ChainProgress {
    last: Option<BlockRef>,
    done: usize,
    /// Whether it may still repeat what is reused.
    repeats: bool,
    effort: EvictionEffort,
}

impl IndexState {
    /// A target holds the blocks of a chain; stretch by stretch, the known ones first.
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
                    // Whatever goes from now on to make room, the next block finds its parent.
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

    /// The next stretch of a chain; `None` if it hangs elsewhere. Without room nothing of it is held yet.
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
            // Named first: what contradicts its family takes the names of what it held before along.
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

    /// A stretch of blocks that were there before.
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

    /// A target that goes by names of its own takes blocks that it does not hold yet: earlier names do not count.
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

    /// Notes what the engine calls a stretch of blocks; returns the blocks that bore one of these names before.
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
        // It parts twice at most: from the common family, and from one it joined instead.
        for _ in 0..3 {
            match self
                .names
                .announce(chain.slot, size, names, spot.run, spot.at)
            {
                Ok(announced) => return announced.moved,
                Err(contradiction) => {
                    let held = self.stretches_of(core, chain.slot);
                    self.names.split_group(chain.slot, held, contradiction);
                }
            }
        }
        Vec::new()
    }

    /// Takes blocks from a target that it calls by another name now than in the stretch just announced: nothing could remove
    /// them any more.
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

/// Blocks `span` of a run were stored; those of them in `held` were held before, so they are copies, or repetitions.
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
