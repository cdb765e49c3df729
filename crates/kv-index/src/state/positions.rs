//! Positions of targets in their streams, and blocks that wait for the proof of one.

use kv_blocks::{BlockSize, StreamPosition, Target};

use super::{
    IndexState,
    targets::{NextBatch, OwnBlockSize},
};
use crate::{lookup::SharedIndex, snapshot::PositionRecord};

impl IndexState {
    /// Records the batch up to which all updates of a target are applied. A batch that repeated
    /// updates of an earlier process is a loss: their copies are counted once.
    pub(crate) fn note_position(
        &mut self,
        core: &SharedIndex,
        target: Target,
        position: Option<StreamPosition>,
    ) {
        let Some(slot) = self.targets.find(target) else {
            return;
        };
        let state = &mut self.targets.get_mut(slot).resumption;
        state.position = position;
        let NextBatch::Repeats(saved) = state.next_batch else {
            state.next_batch = NextBatch::Ahead;
            return;
        };
        // A resync may go back behind the saved position.
        if position.is_some_and(|position| position.seq > saved.seq) {
            state.next_batch = NextBatch::Ahead;
            self.mark_loss(core, target);
        }
    }

    /// Records that an update of a target is applied.
    pub(super) fn note_update(&mut self, slot: u32) {
        let next = &mut self.targets.get_mut(slot).resumption.next_batch;
        if *next == NextBatch::Ahead {
            *next = NextBatch::Begun;
        }
    }

    /// Records that other publishers than the engine have a part in a target's content.
    pub(crate) fn note_shared(&mut self, target: Target) {
        if let Some(slot) = self.targets.find(target) {
            self.targets.get_mut(slot).resumption.shared = true;
        }
    }

    /// Returns the position at which a target's unproven blocks must be continued.
    pub(crate) fn resume_position(&self, target: Target) -> Option<StreamPosition> {
        let owner = self.targets.get(self.targets.find(target)?);
        owner
            .resumption
            .position
            .filter(|_| owner.resumption.unproven)
    }

    /// Returns the targets whose blocks are not proven.
    pub(crate) fn unproven(&self) -> Vec<Target> {
        let slots = self.targets.iter();
        let unproven = slots.filter(|(_, slot)| self.targets.get(*slot).resumption.unproven);
        unproven.map(|(target, _)| target).collect()
    }

    /// Withholds the credit for a target's blocks until [`IndexState::confirm`].
    pub(super) fn await_proof(&mut self, core: &SharedIndex, slot: u32, at: PositionRecord) {
        let owner = self.targets.get_mut(slot);
        owner.resumption.position = Some(at.batch);
        if at.within_next {
            owner.resumption.next_batch = NextBatch::Repeats(at.batch);
        }
        if owner.is_credited() {
            core.set_untrusted(slot, true);
        }
        owner.resumption.unproven = true;
    }

    /// Credits a target's unproven blocks. Returns whether predictions may stand beside them.
    pub(crate) fn confirm(&mut self, core: &SharedIndex, target: Target) -> bool {
        let Some(slot) = self.targets.find(target) else {
            return false;
        };
        let owner = self.targets.get_mut(slot);
        let was_unproven = std::mem::take(&mut owner.resumption.unproven);
        if was_unproven && owner.trusted {
            core.set_untrusted(slot, false);
        }
        was_unproven && self.speculative.blocks() > 0
    }

    /// Ends the wait for a proof, since the blocks that wait for it are being cleared.
    pub(crate) fn end_resumption(&mut self, core: &SharedIndex, target: Target) {
        self.confirm(core, target);
        if let Some(slot) = self.targets.find(target) {
            let state = &mut self.targets.get_mut(slot).resumption;
            (state.position, state.next_batch) = (None, NextBatch::Ahead);
        }
    }

    /// Returns the size of a target's own blocks, if it is known.
    pub(crate) fn own_block_size(&self, target: Target) -> Option<BlockSize> {
        let owner = self.targets.get(self.targets.find(target)?);
        owner.block_size.map(OwnBlockSize::size)
    }

    /// Returns the position to save for a target. `None`: another process could not continue its
    /// content from the engine's stream, because other publishers have a part in it, or because it
    /// has chunks, which are not saved.
    pub(super) fn position_to_save(&self, slot: u32) -> Option<PositionRecord> {
        let state = self.targets.get(slot).resumption;
        let continues = !state.shared && !self.chunks.has_any(slot);
        let batch = state.position.filter(|_| continues)?;
        Some(PositionRecord {
            batch,
            within_next: state.next_batch != NextBatch::Ahead,
        })
    }
}
