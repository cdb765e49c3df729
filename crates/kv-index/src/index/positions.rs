//! Positions of targets in their streams, for a later process to continue there.

use kv_blocks::{BlockSize, StreamPosition, Target};

use super::KvIndex;
use crate::state::ClearScope;

impl KvIndex {
    /// Records the batch up to which all updates of a target's stream are applied; a snapshot
    /// contains it. `None`: another process could not continue there. Updates of the next batch may
    /// be applied already: a process that continues applies that one as a whole, and the index of
    /// that process counts repeated blocks once.
    ///
    /// A target that is cleared has no position until the next call.
    pub fn note_position(&self, target: Target, position: Option<StreamPosition>) {
        self.with(|state, core| state.note_position(core, target, position));
    }

    /// Returns the position at which a target's stream must continue for its restored blocks to be
    /// valid. `None`: it has none that wait for a proof.
    pub fn resume_position(&self, target: Target) -> Option<StreamPosition> {
        self.with(|state, _| state.resume_position(target))
    }

    /// Credits a target's restored blocks: its stream continues at their position. Of no effect
    /// for a target without such blocks. Returns the size of its own blocks, if it is known: the
    /// events that have shown it are not repeated.
    pub fn confirm(&self, target: Target) -> Option<BlockSize> {
        if self.with(|state, core| state.confirm(core, target)) {
            // Beside the announced blocks, they would outlast the removals.
            self.step_by_step(target, &ClearScope::Promises);
        }
        self.with(|state, _| state.own_block_size(target))
    }

    /// Returns the targets with restored blocks that wait for a proof.
    pub fn unproven_targets(&self) -> Vec<Target> {
        self.with(|state, _| state.unproven())
    }
}
