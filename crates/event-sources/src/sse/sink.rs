//! Sinks for a stream's messages.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use kv_blocks::Moment;

use crate::{StreamCounts, TierMoves};

/// One message of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamMessage {
    /// The `event:` field; `None` where the stream has none.
    pub name: Option<String>,
    /// The data, at most 1 MiB. Not necessarily UTF-8.
    pub data: Bytes,
}

impl StreamMessage {
    /// Returns the bytes that the message occupies.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len() + self.name.as_ref().map_or(0, String::len)
    }
}

/// Takes the messages of one stream, in order.
///
/// Never blocks longer than for a short lock: messages queue up meanwhile, in a bounded queue.
pub trait EventSink: fmt::Debug + Send + 'static {
    /// Records a new connection; it carries the messages that follow.
    fn connected(&mut self);

    /// Takes one message and counts its outcome.
    fn take(&mut self, message: &StreamMessage, now: Moment, sink_counts: &mut SinkCounts);

    /// Advances time; called several times a second.
    fn tick(&mut self, now: Moment, sink_counts: &mut SinkCounts) {
        let _ = (now, sink_counts);
    }

    /// Drops all state from this stream: some of it may no longer be true.
    fn forget(&mut self);
}

/// A sink's totals over its stream's life. It counts events and their outcomes: applied, ignored,
/// orphan or decode error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkCounts {
    /// The counts in reports.
    pub counts: StreamCounts,
    /// Store events.
    pub stored: u64,
    /// Those of them that moved blocks between tiers.
    pub moves: TierMoves,
    /// Remove events.
    pub removed: u64,
    /// Clear events.
    pub cleared: u64,
    /// Rejected envelopes by the label of the reason.
    pub rejected: BTreeMap<&'static str, u64>,
    /// The last event number, where events are numbered.
    pub last_seq: Option<u64>,
    /// Tokens per block in the last event that names them.
    pub block_size: Option<u32>,
    /// The last error in an event.
    pub last_error: Option<String>,
}

impl SinkCounts {
    /// Counts an undecodable event.
    pub fn unreadable(&mut self, error: String) {
        self.counts.decode_errors += 1;
        self.last_error = Some(error);
    }
}
