//! A target holds a chain of blocks: those that are known, and those that are made for it.

use kv_blocks::{BlockSize, EngineHash, SequenceHash, Tier};

use super::{Books, budget::Room, events::count, number};
use crate::{
    Applied,
    copies::Copies,
    lookup::Core,
    runs::Span,
    table::{NoRoom, Spot},
    writer::{Covered, Holder, Home},
};

/// What an event says about blocks whose hashes are known.
pub(super) struct Chain<'a> {
    pub(super) slot: u32,
    pub(super) tier: Tier,
    pub(super) home: Home,
    /// The block before the first one.
    pub(super) parent: Option<Spot>,
    pub(super) hashes: &'a [SequenceHash],
    /// What the engine calls them, if that is something else.
    pub(super) names: Option<(&'a [EngineHash], BlockSize)>,
}

/// How far a chain has been taken.
struct Next {
    last: Option<Spot>,
    done: usize,
    /// Whether it may still repeat what is reused.
    repeats: bool,
    room: Room,
}

impl Books {
    /// A target holds the blocks of a chain; stretch by stretch, the known ones first.
    pub(super) fn hold(&mut self, core: &Core, chain: &Chain<'_>) -> Applied {
        let Chain {
            slot,
            tier,
            parent,
            hashes,
            ..
        } = *chain;
        let mut next = Next {
            last: parent,
            done: 0,
            repeats: parent.is_none(),
            room: Room::default(),
        };
        if tier == Tier::Device
            && let Some(parent) = parent
        {
            self.targets.copies(slot, |copies| copies.believe(parent));
        }
        self.writer.pin(parent);
        while next.done < hashes.len() {
            match self.hold_stretch(core, chain, &mut next) {
                Ok(Some((spot, count))) => {
                    next.last = Some(Spot {
                        run: spot.run,
                        at: spot.at + count - 1,
                    });
                    next.done += count as usize;
                    next.room = Room::default();
                    // Whatever goes from now on to make room, the next block finds its parent.
                    self.writer.pin(next.last);
                }
                Ok(None) => break,
                Err(NoRoom) => {
                    if self.make_room(core, None, &mut next.room).is_err() {
                        self.shed += (hashes.len() - next.done) as u64;
                        break;
                    }
                }
            }
        }
        self.release_pin(core);
        self.note_arrivals(chain, next.done);
        self.stay_within_budget(core);
        let applied = count(next.done);
        Applied {
            applied,
            orphans: 0,
            ignored: count(hashes.len()) - applied,
        }
    }

    /// The next stretch of a chain; `None` if it hangs elsewhere. Without room nothing of it is held yet.
    fn hold_stretch(
        &mut self,
        core: &Core,
        chain: &Chain<'_>,
        next: &mut Next,
    ) -> Result<Option<(Spot, u32)>, NoRoom> {
        let Chain {
            slot,
            tier,
            home,
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
        let rest = next.room.part(rest);
        let holder = Holder::Confirmed {
            slot,
            tier: number(tier),
        };
        let (spot, count) = self.make(core, home, next.last, rest, holder)?;
        self.made(core, slot, tier, spot, count);
        self.count(slot, tier.index(), i64::from(count), i64::from(count));
        let moved = self.name(core, chain, next.done, spot, count);
        self.leave_renamed(core, slot, &moved, spot, count);
        next.repeats = false;
        Ok(Some((spot, count)))
    }

    /// Makes new blocks, with a use of their namespace for a new run.
    pub(super) fn make(
        &mut self,
        core: &Core,
        home: Home,
        last: Option<Spot>,
        rest: &[SequenceHash],
        holder: Holder,
    ) -> Result<(Spot, u32), NoRoom> {
        let (spot, count) = self.writer.make(core, home, last, rest, holder)?;
        if spot.at == 0 {
            self.spaces.keep(home.id);
        }
        Ok((spot, count))
    }

    /// A stretch of blocks that were there before.
    fn hold_known(
        &mut self,
        core: &Core,
        chain: &Chain<'_>,
        spot: Spot,
        count: u32,
        repeats: &mut bool,
    ) -> Result<(), NoRoom> {
        let Chain { slot, tier, .. } = *chain;
        let span = Span {
            slot,
            tier: number(tier),
            start: spot.at,
            end: spot.at + count,
        };
        let trusted = self.targets.get(slot).trusted;
        let before = self.before(core, spot.run, slot);
        let Covered { in_tier, at_all } =
            self.writer
                .cover(core, spot.run, span, trusted, &mut self.held)?;
        self.count(slot, tier.index(), i64::from(in_tier), i64::from(at_all));
        self.after(core, before);
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
    fn disown(&mut self, core: &Core, slot: u32, spot: Spot, count: u32) {
        if !self.names.may_disown(slot, spot.run) {
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
                self.names.disown(slot, spot.run, &gap);
            }
            from = from.max(end);
        }
    }

    /// Notes what the engine calls a stretch of blocks; returns the blocks that bore one of these names before.
    fn name(
        &mut self,
        core: &Core,
        chain: &Chain<'_>,
        from: usize,
        spot: Spot,
        count: u32,
    ) -> Vec<Spot> {
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
                    self.names.part(chain.slot, held, contradiction);
                }
            }
        }
        Vec::new()
    }

    /// Takes blocks from a target that it calls by another name now than in the stretch just announced: nothing could remove
    /// them any more.
    fn leave_renamed(&mut self, core: &Core, slot: u32, renamed: &[Spot], spot: Spot, count: u32) {
        for old in renamed {
            if old.run != spot.run || old.at < spot.at || old.at >= spot.at + count {
                for tier in Tier::ALL {
                    self.leave(core, slot, tier, old.run, old.at, old.at + 1);
                }
            }
        }
        self.settle();
    }
}

/// Blocks `span` of a run were stored; those of them in `held` were held before, so they are copies, or repetitions.
fn note_copies(copies: &mut Copies, span: Span, run: u32, held: &[(u32, u32)], repeats: &mut bool) {
    let mut next = span.start;
    for (start, end) in held.iter().copied() {
        *repeats &= start == next;
        next = end;
        if *repeats && copies.is_empty() {
            continue;
        }
        for at in start..end {
            let spot = Spot { run, at };
            if *repeats {
                copies.believe(spot)
            } else {
                copies.add(spot)
            }
        }
    }
    *repeats &= next == span.end;
}
