//! Messages on their way to the log.

use std::{collections::VecDeque, sync::Arc};

use crate::LogMessage;

/// Most queued messages.
const MAX_MESSAGES: usize = 65_536;
/// Most bytes of queued messages.
const MAX_BYTES: usize = 64 << 20;

/// A queue that drops its oldest messages when full: the gap shows in the numbers of the rest, and
/// is filled from the engine's replay.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    messages: VecDeque<OutgoingMessage>,
    bytes: usize,
}

/// A message with the subject's last part.
#[derive(Clone, Debug)]
pub(crate) struct OutgoingMessage {
    pub(crate) token: Arc<str>,
    pub(crate) message: LogMessage,
}

impl Outbox {
    /// Appends a message; returns how many were dropped for it.
    pub(crate) fn push(&mut self, outgoing: OutgoingMessage) -> u64 {
        self.bytes += outgoing.message.bytes();
        self.messages.push_back(outgoing);
        self.trim()
    }

    pub(crate) fn pop(&mut self) -> Option<OutgoingMessage> {
        let outgoing = self.messages.pop_front()?;
        self.bytes -= outgoing.message.bytes();
        Some(outgoing)
    }

    /// Puts messages back in front, in their order; returns how many were dropped for it.
    pub(crate) fn put_back(
        &mut self,
        unsent: impl DoubleEndedIterator<Item = OutgoingMessage>,
    ) -> u64 {
        for outgoing in unsent.rev() {
            self.bytes += outgoing.message.bytes();
            self.messages.push_front(outgoing);
        }
        self.trim()
    }

    /// Removes all messages and returns their number.
    pub(crate) fn clear(&mut self) -> u64 {
        self.bytes = 0;
        let count = self.messages.len();
        self.messages.clear();
        count as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    fn trim(&mut self) -> u64 {
        let mut dropped = 0;
        while self.messages.len() > MAX_MESSAGES || self.bytes > MAX_BYTES {
            if self.pop().is_none() {
                break;
            }
            dropped += 1;
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::LogBatch;

    fn message(seq: u64, bytes: usize) -> OutgoingMessage {
        OutgoingMessage {
            token: "w.0".into(),
            message: LogMessage::Batch(LogBatch {
                seq,
                previous: None,
                payload: Bytes::from(vec![0; bytes]),
            }),
        }
    }

    fn seq(outgoing: Option<OutgoingMessage>) -> Option<u64> {
        match outgoing?.message {
            LogMessage::Batch(batch) => Some(batch.seq),
            LogMessage::Tail(_) => None,
        }
    }

    #[test]
    fn a_full_outbox_drops_and_counts_its_oldest_messages() {
        let mut outbox = Outbox::default();
        let dropped: u64 = (0..MAX_MESSAGES as u64 + 3)
            .map(|seq| outbox.push(message(seq, 0)))
            .sum();
        assert_eq!((dropped, seq(outbox.pop())), (3, Some(3)));
        let mut outbox = Outbox::default();
        let dropped: u64 = (0..70).map(|seq| outbox.push(message(seq, 1 << 20))).sum();
        assert!((6..10).contains(&dropped), "{dropped}");
        assert_eq!(outbox.push(message(100, MAX_BYTES)), 71 - dropped);
        assert_eq!((outbox.len(), outbox.bytes), (0, 0));
    }

    #[test]
    fn unsent_messages_are_sent_first_and_in_order() {
        let mut outbox = Outbox::default();
        outbox.push(message(3, 10));
        assert_eq!(
            outbox.put_back([message(1, 10), message(2, 10)].into_iter()),
            0
        );
        for expected in 1..=3 {
            assert_eq!(seq(outbox.pop()), Some(expected));
        }
        outbox.push(message(4, 10));
        assert_eq!((outbox.clear(), outbox.bytes), (1, 0));
    }
}
