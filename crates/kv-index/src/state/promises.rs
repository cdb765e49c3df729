//! Blocks that are expected because a request was sent somewhere.

use kv_blocks::{Moment, Namespace, SequenceHash, Target};

use super::State;
use crate::{blocks::BlockKey, owner::OwnerId, predictions::Promise};

impl State {
    pub(crate) fn promise(
        &mut self,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
        promise: Promise,
    ) {
        self.expire(now);
        let owner = self.owners.find_or_add(target);
        let space = self.spaces.enter(namespace.clone());
        let mut keys: Vec<_> = chain.iter().map(|hash| BlockKey { space, hash: *hash }).collect();
        keys.retain(|key| !self.holds(owner, *key));
        let new = keys.iter().filter(|key| !self.predictions.contains(**key, owner)).count();
        self.prune_for(new);
        let stamps = self.predictions.stamps(keys.len());
        for (key, stamp) in keys.into_iter().zip(stamps) {
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
    }

    pub(crate) fn expire(&mut self, now: Moment) {
        while let Some(key) = self.predictions.remove_expired(now) {
            self.spaces.leave(key.space);
        }
    }

    pub(super) fn drop_predictions(&mut self, owner: OwnerId) {
        for key in self.predictions.of(owner) {
            self.predictions.remove(key, owner);
            self.spaces.leave(key.space);
        }
    }

    pub(super) fn drop_oldest_prediction(&mut self) -> bool {
        let oldest = self.predictions.remove_oldest();
        if let Some(key) = oldest {
            self.spaces.leave(key.space);
        }
        oldest.is_some()
    }

    /// When `new` entries would be too many, prunes the least recently used down to the target ratio, or further if they
    /// need more room than that.
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
        let left = left.min(max.saturating_sub(new as u64));
        while self.predictions.len() > left && self.drop_oldest_prediction() {}
    }
}
