//! Workers in cooldown: they sent a 429 with `Retry-After`.
//!
//! A cooldown is a request of the worker, not a verdict on it: other workers are preferred while it
//! lasts, but the only worker left gets requests all the same.
//!
//! **Invariant**: at most one entry for each worker, and each expires a minute after it was made at
//! the latest.

use std::{collections::HashMap, time::Duration};

use kv_blocks::{Moment, WorkerId};
use parking_lot::RwLock;
use replicas::{NoteQueue, SharedNote};

/// Longest cooldown.
const LONGEST: Duration = Duration::from_secs(60);

/// The end of each worker's cooldown.
#[derive(Debug, Default)]
pub(crate) struct Cooldowns {
    ends: RwLock<HashMap<WorkerId, Moment>>,
    peers: NoteQueue,
}

impl Cooldowns {
    /// Creates a table that tells the peers of each cooldown.
    pub(crate) fn shared(peers: NoteQueue) -> Self {
        let ends = RwLock::default();
        Self { ends, peers }
    }

    /// Records the `Retry-After` of the worker with this name, received at `now`. The latest value
    /// counts.
    pub(crate) fn record(&self, worker: WorkerId, name: &str, now: Moment, wait: Duration) {
        self.put(worker, now, wait);
        if self.peers.is_open() {
            let worker = name.into();
            self.peers.push(SharedNote::Cooldown { worker, wait });
        }
    }

    /// Records a cooldown that begins at `now`, without telling the peers.
    pub(crate) fn put(&self, worker: WorkerId, now: Moment, wait: Duration) {
        self.ends.write().insert(worker, now + wait.min(LONGEST));
    }

    /// Returns whether there is no cooldown at all: a fast path before the check of each worker.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.read().is_empty()
    }

    /// Returns whether this worker is in cooldown.
    pub(crate) fn is_cooling_down(&self, worker: WorkerId, now: Moment) -> bool {
        self.ends
            .read()
            .get(&worker)
            .is_some_and(|until| now < *until)
    }

    /// Removes expired cooldowns.
    pub(crate) fn tick(&self, now: Moment) {
        if !self.is_empty() {
            self.ends.write().retain(|_, until| now < *until);
        }
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const A: WorkerId = WorkerId(1);

    fn at(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(seconds)
    }

    #[test]
    #[contract("F14", "F15")]
    fn a_cooldown_lasts_for_retry_after_and_at_most_a_minute() {
        let cooldowns = Cooldowns::default();
        cooldowns.put(A, at(0), Duration::from_secs(7));
        assert!(
            cooldowns.is_cooling_down(A, at(6))
                && !cooldowns.is_cooling_down(A, at(7))
                && !cooldowns.is_cooling_down(WorkerId(2), at(0))
        );
        cooldowns.put(A, at(10), Duration::from_secs(86_400));
        assert!(cooldowns.is_cooling_down(A, at(69)) && !cooldowns.is_cooling_down(A, at(70)));
        cooldowns.put(A, at(10), Duration::from_secs(1));
        assert!(
            !cooldowns.is_cooling_down(A, at(11)),
            "the latest value applies"
        );
    }

    #[test]
    #[contract("I7")]
    fn an_expired_cooldown_is_removed() {
        let cooldowns = Cooldowns::default();
        cooldowns.put(A, at(0), Duration::from_secs(7));
        cooldowns.tick(at(6));
        assert!(!cooldowns.is_empty());
        cooldowns.tick(at(7));
        assert!(cooldowns.is_empty());
    }
}
