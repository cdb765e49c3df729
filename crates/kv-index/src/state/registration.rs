//! Registration of targets: their slots, models and trust.

use std::sync::Arc;

use kv_blocks::{SequenceHash, Target, WorkerId};

use super::{IndexState, targets::hash_group};
use crate::lookup::SharedIndex;

impl IndexState {
    /// Registers the model that a target serves.
    pub(crate) fn register(&mut self, core: &SharedIndex, target: Target, model: Arc<str>) {
        let Some(slot) = self.slot(core, target) else {
            return;
        };
        let owner = self.targets.get_mut(slot);
        if owner.model.as_ref() != Some(&model) {
            self.names.join(slot, hash_group(&model));
            owner.model = Some(model);
            self.stay_within_budget(core);
        }
    }

    /// Ends the registration of a target that serves another model; returns whether it did.
    pub(crate) fn unregister_other(&mut self, target: Target, model: &str) -> bool {
        let Some(slot) = self.targets.find(target) else {
            return false;
        };
        self.targets
            .get_mut(slot)
            .model
            .take_if(|known| **known != *model)
            .is_some()
    }

    pub(crate) fn serves_model(&self, target: Target) -> bool {
        let slot = self.targets.find(target);
        slot.is_some_and(|slot| self.targets.get(slot).model.is_some())
    }

    pub(crate) fn depth_of(
        &self,
        core: &SharedIndex,
        space: u64,
        hash: SequenceHash,
    ) -> Option<u32> {
        let block_ref = self.writer.find(core, space, hash.0)?;
        Some(core.heads.get(&core.body, block_ref.run).depth() + block_ref.at)
    }

    pub(crate) fn find(&self, target: Target) -> Option<u32> {
        self.targets.find(target)
    }

    pub(crate) fn ranks(&self, worker: WorkerId) -> Vec<Target> {
        self.targets.ranks(worker)
    }

    /// Returns the slot of a target; adds a new one if it has none.
    pub(super) fn slot(&mut self, core: &SharedIndex, target: Target) -> Option<u32> {
        if let Some(slot) = self.targets.find(target) {
            return Some(slot);
        }
        let slot = self.targets.find_or_add(target)?;
        core.assign(slot, target);
        Some(slot)
    }

    /// Sets whether lookups credit a target's announcements; returns whether the target became
    /// trusted.
    pub(crate) fn trust(&mut self, core: &SharedIndex, target: Target, trusted: bool) -> bool {
        let slot = if trusted {
            self.targets.find(target)
        } else {
            self.slot(core, target)
        };
        let Some(slot) = slot else { return false };
        let before = std::mem::replace(&mut self.targets.get_mut(slot).trusted, trusted);
        if before != trusted && !self.targets.get(slot).resumption.unproven {
            core.set_untrusted(slot, !trusted);
        }
        trusted && !before
    }
}
