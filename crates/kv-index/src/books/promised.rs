//! Blocks that are expected because a request was sent somewhere.

use std::time::Duration;

use kv_blocks::{Namespace, SequenceHash, Target};

use super::{Books, Kind, Promised, budget::Room};
use crate::{
    lookup::Core,
    runs::{EXPECTED, Span},
    table::{NoRoom, Spot},
    writer::{Holder, Home},
};

/// Blocks that go at once, under one hold of the lock, where many are over.
const SLICE: u64 = 4096;

/// What a promise that is being made has entered.
struct Entered {
    stamp: u64,
    expires: u64,
    /// When the first of its blocks ends; those renewed may end later than `expires`.
    ends: u64,
    /// The deepest last.
    runs: Vec<u32>,
    blocks: u64,
}

impl Books {
    /// Expects `chain` on a target for `ttl`, or longer where nothing may come to confirm it.
    pub(crate) fn promise(
        &mut self,
        core: &Core,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: u64,
        (kind, ttl): (Kind, Duration),
    ) -> Promised {
        self.tidy(core, now);
        let Some(slot) = self.slot(core, target) else {
            return Promised::default();
        };
        let torn = self.targets.get(slot).torn;
        let ttl = if torn {
            ttl.max(self.settings.unconfirmed_ttl)
        } else {
            ttl
        };
        let expires = now.saturating_add(u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX));
        let max = self.settings.prediction_max_blocks;
        let chain = &chain[..chain.len().min(usize::try_from(max).unwrap_or(usize::MAX))];
        let home = self.enter(namespace);
        let stamp = self.promises.stamp();
        let (mut last, mut done, mut room) = (None, 0, Room::default());
        let mut entered = Entered {
            stamp,
            expires,
            ends: u64::MAX,
            runs: Vec::new(),
            blocks: 0,
        };
        while done < chain.len() {
            match self.promise_stretch(core, (slot, home), last, &chain[done..], &mut entered, room)
            {
                Ok(Some((spot, count))) => {
                    last = Some(Spot {
                        run: spot.run,
                        at: spot.at + count - 1,
                    });
                    done += count as usize;
                    room = Room::default();
                    self.writer.pin(last);
                }
                Ok(None) => break,
                Err(NoRoom) => {
                    if self.make_room(core, Some(stamp), &mut room).is_err() {
                        break;
                    }
                }
            }
        }
        self.spaces.leave(home.id);
        let Entered {
            ends, runs, blocks, ..
        } = entered;
        self.promises.add(stamp, kind, ends, runs, blocks);
        self.release_pin(core);
        self.prune_for(core, stamp, blocks);
        self.stay_within_budget(core);
        Promised {
            stamp: if blocks > 0 { stamp } else { 0 },
        }
    }

    /// The next stretch of a chain that is promised; `None` if it hangs elsewhere. Without room nothing of it is expected yet.
    fn promise_stretch(
        &mut self,
        core: &Core,
        (slot, home): (u32, Home),
        last: Option<Spot>,
        rest: &[SequenceHash],
        entered: &mut Entered,
        room: Room,
    ) -> Result<Option<(Spot, u32)>, NoRoom> {
        let Ok(known) = self.writer.locate(core, home.key, last, rest) else {
            return Ok(None);
        };
        let (stamp, expires) = (entered.stamp, entered.expires);
        let (spot, count, new, ends) = if let Some((spot, count)) = known {
            let span = Span {
                slot,
                tier: EXPECTED,
                start: spot.at,
                end: spot.at + count,
            };
            let trusted = self.targets.get(slot).trusted;
            let (new, ends) = self
                .writer
                .expect(core, spot.run, span, expires, stamp, trusted)?;
            (spot, count, new, ends)
        } else {
            let holder = Holder::Expected {
                slot,
                expires,
                stamp,
            };
            let (spot, count) = self.make(core, home, last, room.part(rest), holder)?;
            (spot, count, count, expires)
        };
        if new > 0 {
            entered.blocks += u64::from(new);
            entered.runs.push(spot.run);
            entered.ends = entered.ends.min(ends);
        }
        Ok(Some((spot, count)))
    }

    /// Takes back what a promise entered and nobody has renewed or confirmed since.
    pub(crate) fn retract(&mut self, core: &Core, promised: &Promised) {
        self.drop_promise(core, promised.stamp, u64::MAX, u64::MAX);
    }

    /// Frees a slice of what is over: expired entries, and those to be pruned. Returns whether there may be more.
    pub(crate) fn tidy(&mut self, core: &Core, now: u64) -> bool {
        let mut room = SLICE;
        while room > 0
            && let Some(stamp) = self.promises.expired(now)
        {
            room = room.saturating_sub(self.drop_promise(core, stamp, now, room).max(1));
        }
        self.prune(core, room);
        let names = self.names.tidy();
        room == 0 || self.pruning.is_some() || names
    }

    /// Drops the oldest promise, but none as young as `before`; returns whether there was one.
    pub(super) fn drop_oldest_promise(&mut self, core: &Core, before: Option<u64>) -> bool {
        let oldest = self
            .promises
            .oldest()
            .filter(|oldest| before.is_none_or(|stamp| *oldest < stamp));
        oldest.is_some_and(|stamp| {
            self.drop_promise(core, stamp, u64::MAX, u64::MAX);
            true
        })
    }

    /// Drops up to `most` blocks of a promise whose time is over at `now`, from the end of its chain; returns how many.
    fn drop_promise(&mut self, core: &Core, stamp: u64, now: u64, most: u64) -> u64 {
        let before = self.promises.blocks();
        let mut ends: Option<u64> = None;
        for run in self.promises.runs(stamp).into_iter().rev() {
            let left = most.saturating_sub(before - self.promises.blocks());
            if left == 0 {
                break;
            }
            let gone = &mut self.gone;
            let most = u32::try_from(left).unwrap_or(u32::MAX);
            let rest = self
                .writer
                .retract(core, run, (stamp, now), most, &mut |blocks| {
                    gone.push(blocks)
                });
            ends = [ends, rest].into_iter().flatten().min();
            self.settle();
        }
        let dropped = before - self.promises.blocks();
        if dropped < most {
            // All of its runs were seen: without blocks that end later, whatever it still counts is not there.
            match ends {
                Some(ends) => self.promises.postpone(stamp, ends),
                None => self.promises.forget(stamp),
            }
        }
        dropped
    }

    /// Drops up to `most` blocks of the promises that are to be pruned.
    fn prune(&mut self, core: &Core, most: u64) {
        let Some(left) = self.pruning else { return };
        let mut room = most;
        while room > 0
            && let over = self.promises.blocks().saturating_sub(left)
            && over > 0
            && let Some(oldest) = self.promises.oldest()
        {
            room = room.saturating_sub(
                self.drop_promise(core, oldest, u64::MAX, over.min(room))
                    .max(1),
            );
        }
        if self.promises.blocks() <= left {
            self.pruning = None;
        }
    }

    /// When a promise of `new` blocks made them too many, has the least recently used ones pruned down to the target ratio:
    /// the first slice now, the others with the next calls.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a bound: a block more or less does not matter"
    )]
    fn prune_for(&mut self, core: &Core, stamp: u64, new: u64) {
        let max = self.settings.prediction_max_blocks;
        if self.promises.blocks() <= max {
            return;
        }
        let left = (max as f64 * self.settings.prune_target_ratio.clamp(0.0, 1.0)) as u64;
        // The newest does not go for itself.
        self.pruning = Some(left.min(max.saturating_sub(new)) + new);
        self.prune(core, SLICE);
        while let Some(over) = self
            .promises
            .blocks()
            .checked_sub(max)
            .filter(|over| *over > 0)
            && let Some(oldest) = self.promises.oldest().filter(|oldest| *oldest < stamp)
        {
            self.drop_promise(core, oldest, u64::MAX, over);
        }
    }
}
