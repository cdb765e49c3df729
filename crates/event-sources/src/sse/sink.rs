//! Who is told of a stream's messages.

use std::fmt;

use bytes::Bytes;
use kv_blocks::Moment;

use crate::StreamCounts;

/// One message of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamMessage {
    /// The `event:` field; `None` where the stream has none.
    pub name: Option<String>,
    /// The data, at most 1 MiB. Not necessarily UTF-8.
    pub data: Bytes,
}

impl StreamMessage {
    /// Bytes it keeps.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len() + self.name.as_ref().map_or(0, String::len)
    }
}

/// Takes the messages of one stream, in order.
///
/// Never waits for anything but a short lock: messages that come meanwhile are queued, and there is an end to that.
pub trait EventSink: fmt::Debug + Send + 'static {
    /// A connection was made; what follows was said on it.
    fn connected(&mut self);

    /// Takes one message and counts what came of it.
    fn take(&mut self, message: &StreamMessage, now: Moment, tally: &mut SinkCounts);

    /// Time passed; several times a second.
    fn tick(&mut self, now: Moment, tally: &mut SinkCounts) {
        let _ = (now, tally);
    }

    /// Drops everything this stream said: some of it may be no longer true.
    fn forget(&mut self);
}

/// Totals that a sink keeps of its stream's life. It counts events and what became of each: applied, ignored, orphan or
/// decode error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkCounts {
    /// As reports show them.
    pub counts: StreamCounts,
    /// Events that said something was stored.
    pub stored: u64,
    /// Events that said something was removed.
    pub removed: u64,
    /// Events that said everything was cleared.
    pub cleared: u64,
    /// The last number, where events are numbered.
    pub last_seq: Option<u64>,
    /// Tokens per block, as events last said.
    pub block_size: Option<u32>,
    /// What was last wrong with an event.
    pub last_error: Option<String>,
}

impl SinkCounts {
    /// An event that means nothing.
    pub fn unreadable(&mut self, error: String) {
        self.counts.decode_errors += 1;
        self.last_error = Some(error);
    }
}
