//! Blocks that are expected because a request was sent somewhere.

use std::ops::Range;

use kv_blocks::{Moment, Namespace, SequenceHash, Target};

use super::{Clearing, SLICE, State};
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
        if self.owners.get(owner).trusted {
            keys.retain(|key| !self.holds(owner, *key));
        }
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

    /// Whether lookups go by what a target announces; returns whether they did not before and do now.
    pub(crate) fn trust(&mut self, target: Target, trusted: bool) -> bool {
        let owner = if trusted { self.owners.find(target) } else { Some(self.owners.find_or_add(target)) };
        let Some(owner) = owner else { return false };
        let before = std::mem::replace(&mut self.owners.get_mut(owner).trusted, trusted);
        trusted && !before
    }

    /// One step of forgetting what a target is expected to hold; returns the next one.
    pub(crate) fn clear_promises(&mut self, target: Target, step: Clearing) -> Option<Clearing> {
        let owner = self.owners.find(target)?;
        Some(Clearing::Promises(match step {
            Clearing::Promises(end) => self.drop_predictions(owner, end).then_some(end)?,
            Clearing::Begin | Clearing::Names(_) => self.predictions.next_stamp(),
        }))
    }

    /// Drops a slice of what `owner` is expected to hold, of stamps below `end`; returns whether there may be more.
    fn drop_predictions(&mut self, owner: OwnerId, end: u64) -> bool {
        for _ in 0..SLICE {
            let Some(key) = self.predictions.remove_oldest_of(owner, end) else { return false };
            self.spaces.leave(key.space);
        }
        true
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
