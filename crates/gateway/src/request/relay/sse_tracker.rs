//! Holds back a partial event until its rest arrives.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use dialect::{EndingTracker, SseSplitter};
use kv_blocks::Moment;

/// Longest wait for the rest of a partial event.
pub(super) const PARTIAL_EVENT_WAIT: Duration = Duration::from_millis(50);
/// Longest partial event, bytes.
pub(super) const MAX_PARTIAL_EVENT_BYTES: usize = 1024 * 1024;

/// The state of an event stream.
#[derive(Debug)]
pub(super) struct SseTracker {
    pub(super) splitter: SseSplitter,
    /// `None`: the stream has no end marker.
    pub(super) ending: Option<EndingTracker>,
    partial_event: Vec<Bytes>,
    partial_bytes: usize,
    partial_since: Option<Moment>,
    /// A part of an event is already sent.
    part_out: bool,
}

impl SseTracker {
    pub(super) fn new(ending: Option<EndingTracker>) -> Self {
        let splitter = SseSplitter::new();
        Self {
            splitter,
            ending,
            partial_event: Vec::new(),
            partial_bytes: 0,
            partial_since: None,
            part_out: false,
        }
    }

    /// Sorts `data`: its first `complete` bytes end whole events, the rest waits.
    pub(super) fn sort(
        &mut self,
        mut data: Bytes,
        complete: usize,
        now: Moment,
        ready: &mut VecDeque<Bytes>,
    ) {
        if complete > 0 {
            ready.extend(self.partial_event.drain(..));
            self.partial_bytes = 0;
            self.partial_since = None;
            self.part_out = false;
            ready.push_back(data.split_to(complete));
        }
        if data.is_empty() {
            return;
        }
        self.partial_bytes += data.len();
        self.partial_event.push(data);
        self.partial_since.get_or_insert(now);
        if self.partial_bytes > MAX_PARTIAL_EVENT_BYTES {
            self.let_go(ready);
        }
    }

    /// Returns until when the rest of an event is waited for, if a part of one is held.
    pub(super) fn waits_until(&self) -> Option<Moment> {
        self.partial_since.map(|since| since + PARTIAL_EVENT_WAIT)
    }

    /// Drops the part of an event that will never be whole. Returns what ends the event if a part
    /// of it is already sent, so that the next one is an event of its own.
    pub(super) fn drop_partial(&mut self) -> &'static [u8] {
        self.partial_event.clear();
        self.partial_since = None;
        if self.part_out { b"\n\n" } else { b"" }
    }

    /// Stops waiting for the rest of an event.
    pub(super) fn let_go(&mut self, ready: &mut VecDeque<Bytes>) {
        self.part_out |= !self.partial_event.is_empty();
        ready.extend(self.partial_event.drain(..));
        self.partial_bytes = 0;
        self.partial_since = None;
    }
}
