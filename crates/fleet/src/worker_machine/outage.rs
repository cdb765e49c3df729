//! Ends of the worker's process, and the cache that is lost with it.

use super::event::StreamSummary;
use crate::WorkerState;

/// What is known of a worker's last outage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outage {
    /// Whether the last contact was a refused connection: the process has ended, and its cache with
    /// it.
    pub(super) refused: bool,
    /// Whether the cache was forgotten for this outage.
    cache_forgotten: bool,
    /// How often the process ended.
    pub(super) ended: u64,
}

impl Outage {
    /// Records that nothing listens at the worker's address. Returns whether that is news: one
    /// outage counts once, however often it is reported.
    pub(super) fn record_process_end(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.refused, true);
        self.ended += u64::from(is_new);
        is_new
    }

    /// Records that the worker serves again.
    pub(super) fn end(&mut self) {
        self.cache_forgotten = false;
    }

    /// Returns, once per outage, whether the cache of an ended process is to be forgotten. A stream
    /// that is still connected is evidence against the end and wins; a stream that reconnects
    /// announces the new process's blocks only after this.
    pub(super) fn take_lost_cache(&mut self, health: WorkerState, streams: StreamSummary) -> bool {
        let lost = self.refused
            && !self.cache_forgotten
            && health == WorkerState::Down
            && !streams.any_connected;
        self.cache_forgotten |= lost;
        lost
    }
}
