//! The continuation of blocks that an earlier process saved.

use super::{
    Action, Sequencer,
    phase::{Purpose, ResumeState},
};

impl Sequencer {
    /// Takes the first conclusive batch of the answer to the request for the batch at the saved
    /// position. Returns whether it proves that the stream continues there.
    pub(super) fn prove_resumption(
        &mut self,
        seq: u64,
        payload: &[u8],
        actions: &mut Vec<Action>,
    ) -> bool {
        let proven = self.last.is_some_and(|last| last.is_at(seq, payload));
        if proven {
            self.resumption = ResumeState::Proven;
        } else {
            self.drop_resumption(actions);
        }
        proven
    }

    /// Clears blocks that are not proven, and fetches the history as a new process does.
    pub(super) fn drop_resumption(&mut self, actions: &mut Vec<Action>) {
        self.forget(actions);
        self.returning = false;
        self.request_replay(0, Purpose::History, actions);
    }

    /// Confirms proven blocks once the batches behind their position are applied.
    pub(super) fn confirm_resumption(&mut self, actions: &mut Vec<Action>) {
        if self.resumption == ResumeState::Proven {
            self.resumption = ResumeState::Ended;
            actions.push(Action::Confirm);
        }
    }
}
