//! What happened to messages of the log.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// Published and stored.
    pub published: u64,
    /// Published, but the log had them: another replica was faster.
    pub duplicates: u64,
    /// Not published: the server was away, slow or full, or the message larger than it accepts.
    pub dropped: u64,
    /// Taken from the log.
    pub received: u64,
    /// Delivered a second time, or older than what was delivered before.
    pub repeated: u64,
    /// Not from a router.
    pub unreadable: u64,
    /// Received, but dropped because the stream's reader was behind.
    pub overflowed: u64,
    /// Times that a stream was repaired from the engine's replay, because a message of the log did
    /// not continue what the replica had.
    pub repairs: u64,
}

#[derive(Debug, Default)]
pub(crate) struct LogCounters {
    pub(crate) published: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) repeated: AtomicU64,
    pub(crate) unreadable: AtomicU64,
    pub(crate) overflowed: AtomicU64,
    pub(crate) repairs: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl LogCounters {
    pub(crate) fn counts(&self) -> LogCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogCounts {
            published: read(&self.published),
            duplicates: read(&self.duplicates),
            dropped: read(&self.dropped),
            received: read(&self.received),
            repeated: read(&self.repeated),
            unreadable: read(&self.unreadable),
            overflowed: read(&self.overflowed),
            repairs: read(&self.repairs),
        }
    }
}
