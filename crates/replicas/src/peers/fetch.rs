//! A running fetch of a peer's whole load, and the changes that arrive meanwhile.

use std::collections::VecDeque;

use kv_blocks::Moment;

use super::PeerTable;
use crate::wire::Changes;

/// Most held messages; beyond them the oldest is dropped, and the next digest starts another fetch.
pub(crate) const MOST_HELD: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct StateFetch {
    /// Earlier of two changes is first.
    held: VecDeque<Changes>,
    /// Time of the next attempt; `None`: one is running.
    retry_at: Option<Moment>,
}

impl StateFetch {
    pub(super) fn hold(&mut self, changes: Changes) {
        if self.held.len() >= MOST_HELD {
            self.held.pop_front();
        }
        self.held.push_back(changes);
    }

    pub(super) fn fail(&mut self, now: Moment) {
        self.retry_at = Some(now + PeerTable::FETCH_PAUSE);
    }

    /// Returns whether the next attempt begins now.
    pub(super) fn is_due(&mut self, now: Moment) -> bool {
        self.retry_at.take_if(|at| *at <= now).is_some()
    }

    pub(super) fn into_held(self) -> VecDeque<Changes> {
        self.held
    }
}
