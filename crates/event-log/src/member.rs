//! One worker's stream, between the log and the task that applies it.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::{LogMessage, StreamRole};

/// Most queued messages of a stream.
const MAX_MESSAGES: usize = 4_096;
/// Most bytes of queued messages of a stream.
const MAX_BYTES: usize = 16 << 20;

/// What arrives for a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogDelivery {
    /// A message, in the order of the log.
    Message(LogMessage),
    /// Messages were dropped because the queue was full.
    Overflow,
}

/// The state of a stream that its reader and the log share.
#[derive(Debug)]
pub(crate) struct MemberState {
    pub(crate) token: Arc<str>,
    queue: Mutex<MemberQueue>,
    arrived: Notify,
    pub(crate) role: watch::Sender<StreamRole>,
}

#[derive(Debug, Default)]
struct MemberQueue {
    messages: VecDeque<(u64, LogMessage)>,
    bytes: usize,
    overflowed: bool,
    /// The message that the reader works on, in the log's sequence.
    in_hand: Option<u64>,
}

impl MemberState {
    pub(crate) fn new(token: Arc<str>) -> Self {
        Self {
            token,
            queue: Mutex::default(),
            arrived: Notify::new(),
            role: watch::Sender::default(),
        }
    }

    /// Queues a message of the log for a follower; other roles follow the engine. A full queue is
    /// emptied, since its reader must ask the engine in any case; returns how many were dropped.
    pub(crate) fn push(&self, log_seq: u64, message: LogMessage) -> u64 {
        if *self.role.borrow() != StreamRole::Follower {
            return 0;
        }
        let mut queue = self.queue.lock();
        let bytes = message.bytes();
        let mut dropped = 0;
        if queue.messages.len() >= MAX_MESSAGES || queue.bytes + bytes > MAX_BYTES {
            dropped = queue.messages.len() as u64;
            queue.messages.clear();
            queue.bytes = 0;
            queue.overflowed = true;
        }
        queue.bytes += bytes;
        queue.messages.push_back((log_seq, message));
        drop(queue);
        self.arrived.notify_one();
        dropped
    }

    /// Returns the next delivery, if there is one; the one before counts as applied.
    pub(crate) fn try_next(&self) -> Option<LogDelivery> {
        let mut queue = self.queue.lock();
        queue.in_hand = None;
        if std::mem::take(&mut queue.overflowed) {
            return Some(LogDelivery::Overflow);
        }
        let (log_seq, message) = queue.messages.pop_front()?;
        queue.bytes -= message.bytes();
        queue.in_hand = Some(log_seq);
        Some(LogDelivery::Message(message))
    }

    pub(crate) async fn next(&self) -> LogDelivery {
        loop {
            let arrived = self.arrived.notified();
            if let Some(delivery) = self.try_next() {
                return delivery;
            }
            arrived.await;
        }
    }

    /// Sets the message of the log that the reader works on while it reads the past.
    pub(crate) fn set_in_hand(&self, log_seq: Option<u64>) {
        self.queue.lock().in_hand = log_seq;
    }

    /// Empties the queue.
    pub(crate) fn discard(&self) {
        let mut queue = self.queue.lock();
        queue.messages.clear();
        queue.bytes = 0;
        queue.overflowed = false;
        queue.in_hand = None;
    }

    /// Returns the first message of the log that is not applied.
    pub(crate) fn first_unapplied(&self) -> Option<u64> {
        let queue = self.queue.lock();
        let waiting = queue.messages.front().map(|(log_seq, _)| *log_seq);
        queue.in_hand.into_iter().chain(waiting).min()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kv_blocks::StreamPosition;

    use super::*;
    use crate::LogBatch;

    fn follower() -> MemberState {
        let member = MemberState::new("w.0".into());
        member.role.send_replace(StreamRole::Follower);
        member
    }

    #[test]
    fn an_owner_is_not_told_what_it_published() {
        let member = MemberState::new("w.0".into());
        member.role.send_replace(StreamRole::Owner);
        member.push(5, tail(0));
        assert_eq!(member.try_next(), None);
    }

    fn tail(seq: u64) -> LogMessage {
        LogMessage::Tail(StreamPosition { seq, digest: 0 })
    }

    #[test]
    fn the_first_unapplied_message_is_the_one_in_hand_or_in_front() {
        let member = follower();
        assert_eq!(member.first_unapplied(), None);
        member.push(5, tail(0));
        member.push(9, tail(1));
        assert_eq!(member.first_unapplied(), Some(5));
        assert_eq!(member.try_next(), Some(LogDelivery::Message(tail(0))));
        assert_eq!(member.first_unapplied(), Some(5), "it is being applied");
        assert_eq!(member.try_next(), Some(LogDelivery::Message(tail(1))));
        assert_eq!(member.first_unapplied(), Some(9));
        assert_eq!(member.try_next(), None);
        assert_eq!(member.first_unapplied(), None);
    }

    #[test]
    fn a_full_queue_is_emptied_and_says_so() {
        let member = follower();
        for seq in 0..MAX_MESSAGES as u64 {
            assert_eq!(member.push(seq, tail(seq)), 0);
        }
        assert_eq!(
            member.push(MAX_MESSAGES as u64, tail(7)),
            MAX_MESSAGES as u64
        );
        assert_eq!(member.try_next(), Some(LogDelivery::Overflow));
        assert_eq!(member.try_next(), Some(LogDelivery::Message(tail(7))));
        let large = || {
            LogMessage::Batch(LogBatch {
                seq: 0,
                previous: None,
                payload: Bytes::from(vec![0; MAX_BYTES / 2]),
            })
        };
        assert_eq!((member.push(1, large()), member.push(2, large())), (0, 1));
    }
}
