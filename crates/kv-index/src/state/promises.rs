//! Blocks that are expected because a request was sent somewhere.

use std::ops::Range;

use kv_blocks::{Moment, Namespace, SequenceHash, Target};

use super::{SLICE, State};
use crate::{Promised, blocks::BlockKey, owner::OwnerId, predictions::Promise};

impl State {
    pub(crate) fn promise(
        &mut self,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
        promise: Promise,
    ) -> Promised {
        self.tidy(now);
        let owner = self.owners.find_or_add(target);
        let space = self.spaces.enter(namespace.clone());
        let mut keys: Vec<_> = chain.iter().map(|hash| BlockKey { space, hash: *hash }).collect();
        keys.retain(|key| !self.holds(owner, *key));
        let new = keys.iter().filter(|key| !self.predictions.contains(**key, owner)).count();
        self.prune_for(new);
        let stamps = self.predictions.stamps(keys.len());
        for (key, stamp) in keys.into_iter().zip(stamps.clone().rev()) {
            let renews = self.predictions.contains(key, owner);
            if !renews && self.predictions.len() >= self.settings.prediction_max_blocks {
                break;
            }
            self.predictions.insert(key, owner, promise, stamp);
            if !renews {
                self.spaces.keep(space);
            }
        }
        self.spaces.leave(space);
        while self.bytes() > self.settings.memory_budget && self.drop_oldest_prediction() {}
        Promised { stamps }
    }

    /// Takes back a slice of what a promise entered and nobody has renewed or confirmed since; returns the stamps that
    /// are left.
    pub(crate) fn retract(&mut self, stamps: Range<u64>) -> Range<u64> {
        let end = stamps.end.min(stamps.start.saturating_add(SLICE as u64));
        for stamp in stamps.start..end {
            if let Some(key) = self.predictions.remove_stamped(stamp) {
                self.spaces.leave(key.space);
            }
        }
        end..stamps.end
    }

    /// Frees a slice of what is over: expired entries, and those to be pruned. Returns whether there may be more.
    pub(crate) fn tidy(&mut self, now: Moment) -> bool {
        let mut room = SLICE;
        while room > 0
            && let Some(key) = self.predictions.remove_expired(now)
        {
            self.spaces.leave(key.space);
            room -= 1;
        }
        self.prune(room);
        room == 0 || self.pruning.is_some()
    }

    /// Drops at most `most` of the entries that are to be pruned.
    fn prune(&mut self, most: usize) {
        let Some(left) = self.pruning else { return };
        for _ in 0..most {
            if self.predictions.len() <= left || !self.drop_oldest_prediction() {
                break;
            }
        }
        if self.predictions.len() <= left {
            self.pruning = None;
        }
    }

    /// Drops a slice of what `owner` is expected to hold; returns the stamps still to be looked through.
    pub(super) fn drop_predictions(&mut self, owner: OwnerId, stamps: Range<u64>) -> Option<Range<u64>> {
        if !self.predictions.any_of(owner) {
            return None;
        }
        let seen = self.predictions.stamped(stamps.clone(), SLICE);
        let (last, _) = *seen.last()?;
        for (stamp, _) in seen.into_iter().filter(|(_, holder)| *holder == owner) {
            if let Some(key) = self.predictions.remove_stamped(stamp) {
                self.spaces.leave(key.space);
            }
        }
        Some(last + 1..stamps.end)
    }

    pub(super) fn drop_oldest_prediction(&mut self) -> bool {
        let oldest = self.predictions.remove_oldest();
        if let Some(key) = oldest {
            self.spaces.leave(key.space);
        }
        oldest.is_some()
    }

    /// When `new` entries would be too many, makes room for them and has the least recently used pruned down to the target
    /// ratio: the first slice now, the others with the next calls.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a bound: a block more or less does not matter"
    )]
    fn prune_for(&mut self, new: usize) {
        let max = self.settings.prediction_max_blocks;
        if self.predictions.len().saturating_add(new as u64) <= max {
            return;
        }
        let left = (max as f64 * self.settings.prune_target_ratio.clamp(0.0, 1.0)) as u64;
        self.pruning = Some(left.min(max.saturating_sub(new as u64)));
        self.prune(SLICE);
        let room = max.saturating_sub(new as u64);
        while self.predictions.len() > room && self.drop_oldest_prediction() {}
    }
}
