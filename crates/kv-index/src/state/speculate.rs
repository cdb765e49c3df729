//! Speculative entries: blocks expected on a target because a request was sent there.

use std::time::Duration;

use kv_blocks::{Namespace, SequenceHash, Target};

use super::{IndexState, SpeculationId, SpeculationKind, budget::EvictionEffort};
use crate::{
    lookup::SharedIndex,
    runs::{EXPECTED, TierSpan},
    table::{BlockRef, NoFreeLines},
    writer::{RunHolder, RunNamespace},
};

/// Maximum blocks dropped under one hold of the lock.
const SLICE: u64 = 4096;

/// Progress of a speculative entry that is being made.
struct SpeculationProgress {
    stamp: u64,
    expires: u64,
    /// Earliest expiry of its blocks; renewed ones may end later than `expires`.
    ends: u64,
    /// Runs, the deepest last.
    runs: Vec<u32>,
    blocks: u64,
}

impl IndexState {
    /// Adds a speculative entry for `chain` on a target for `ttl`, or longer if a loss may prevent
    /// its confirmation.
    pub(crate) fn speculate(
        &mut self,
        core: &SharedIndex,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: u64,
        (kind, ttl): (SpeculationKind, Duration),
    ) -> SpeculationId {
        self.sweep_expired(core, now);
        let Some(slot) = self.slot(core, target) else {
            return SpeculationId::default();
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
        let stamp = self.speculative.stamp();
        let (mut last, mut done, mut room) = (None, 0, EvictionEffort::default());
        let mut entered = SpeculationProgress {
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
                    last = Some(BlockRef {
                        run: spot.run,
                        at: spot.at + count - 1,
                    });
                    done += count as usize;
                    room = EvictionEffort::default();
                    self.writer.pin(last);
                }
                Ok(None) => break,
                Err(NoFreeLines) => {
                    if self.make_room(core, Some(stamp), &mut room).is_err() {
                        break;
                    }
                }
            }
        }
        self.namespaces.leave(home.id);
        let SpeculationProgress {
            ends, runs, blocks, ..
        } = entered;
        self.speculative.add(stamp, kind, ends, runs, blocks);
        self.release_pin(core);
        self.prune_for(core, stamp, blocks);
        self.stay_within_budget(core);
        SpeculationId {
            stamp: if blocks > 0 { stamp } else { 0 },
        }
    }

    /// Adds the next stretch of a chain; `None` if the chain has another parent. Without room,
    /// nothing of the stretch is expected.
    fn promise_stretch(
        &mut self,
        core: &SharedIndex,
        (slot, home): (u32, RunNamespace),
        last: Option<BlockRef>,
        rest: &[SequenceHash],
        entered: &mut SpeculationProgress,
        room: EvictionEffort,
    ) -> Result<Option<(BlockRef, u32)>, NoFreeLines> {
        let Ok(known) = self.writer.locate(core, home.key, last, rest) else {
            return Ok(None);
        };
        let (stamp, expires) = (entered.stamp, entered.expires);
        let (spot, count, new, ends) = if let Some((spot, count)) = known {
            let span = TierSpan {
                slot,
                tier: EXPECTED,
                start: spot.at,
                end: spot.at + count,
            };
            let trusted = self.targets.get(slot).trusted;
            let (new, ends) = self
                .writer
                .add_speculative(core, spot.run, span, expires, stamp, trusted)?;
            (spot, count, new, ends)
        } else {
            let holder = RunHolder::Expected {
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

    /// Takes back the blocks of an entry that were neither renewed nor confirmed since.
    pub(crate) fn retract(&mut self, core: &SharedIndex, promised: &SpeculationId) {
        self.drop_promise(core, promised.stamp, u64::MAX, u64::MAX);
    }

    /// Frees a slice of the expired entries and of those to prune. Returns whether there may be
    /// more.
    pub(crate) fn sweep_expired(&mut self, core: &SharedIndex, now: u64) -> bool {
        let mut room = SLICE;
        while room > 0
            && let Some(stamp) = self.speculative.expired(now)
        {
            room = room.saturating_sub(self.drop_promise(core, stamp, now, room).max(1));
        }
        self.prune(core, room);
        let names = self.names.tidy();
        room == 0 || self.pruning.is_some() || names
    }

    /// Drops the oldest entry that is older than `before`; returns whether there was one.
    pub(super) fn drop_oldest_speculation(
        &mut self,
        core: &SharedIndex,
        before: Option<u64>,
    ) -> bool {
        let oldest = self
            .speculative
            .oldest()
            .filter(|oldest| before.is_none_or(|stamp| *oldest < stamp));
        oldest.is_some_and(|stamp| {
            self.drop_promise(core, stamp, u64::MAX, u64::MAX);
            true
        })
    }

    /// Drops up to `most` blocks of an entry that are expired at `now`, from the end of its chain;
    /// returns how many.
    fn drop_promise(&mut self, core: &SharedIndex, stamp: u64, now: u64, most: u64) -> u64 {
        let before = self.speculative.blocks();
        let mut ends: Option<u64> = None;
        for run in self.speculative.runs(stamp).into_iter().rev() {
            let left = most.saturating_sub(before - self.speculative.blocks());
            if left == 0 {
                break;
            }
            let gone = &mut self.freed;
            let most = u32::try_from(left).unwrap_or(u32::MAX);
            let rest = self
                .writer
                .retract(core, run, (stamp, now), most, &mut |blocks| {
                    gone.push(blocks)
                });
            ends = [ends, rest].into_iter().flatten().min();
            self.settle();
        }
        let dropped = before - self.speculative.blocks();
        if dropped < most {
            // All of its runs were visited: if no block ends later, the entry is empty despite its
            // count.
            match ends {
                Some(ends) => self.speculative.extend(stamp, ends),
                None => self.speculative.forget(stamp),
            }
        }
        dropped
    }

    /// Drops up to `most` blocks of the entries to prune.
    fn prune(&mut self, core: &SharedIndex, most: u64) {
        let Some(left) = self.pruning else { return };
        let mut room = most;
        while room > 0
            && let over = self.speculative.blocks().saturating_sub(left)
            && over > 0
            && let Some(oldest) = self.speculative.oldest()
        {
            room = room.saturating_sub(
                self.drop_promise(core, oldest, u64::MAX, over.min(room))
                    .max(1),
            );
        }
        if self.speculative.blocks() <= left {
            self.pruning = None;
        }
    }

    /// Starts a pruning of the least recently used entries down to the target ratio, if an entry
    /// with `new` blocks exceeded the limit: the first slice now, the others with the next calls.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a bound: a block more or less does not matter"
    )]
    fn prune_for(&mut self, core: &SharedIndex, stamp: u64, new: u64) {
        let max = self.settings.prediction_max_blocks;
        if self.speculative.blocks() <= max {
            return;
        }
        let left = (max as f64 * self.settings.prune_target_ratio.clamp(0.0, 1.0)) as u64;
        // The newest entry is not pruned for itself.
        self.pruning = Some(left.min(max.saturating_sub(new)) + new);
        self.prune(core, SLICE);
        while let Some(over) = self
            .speculative
            .blocks()
            .checked_sub(max)
            .filter(|over| *over > 0)
            && let Some(oldest) = self.speculative.oldest().filter(|oldest| *oldest < stamp)
        {
            self.drop_promise(core, oldest, u64::MAX, over);
        }
    }
}
