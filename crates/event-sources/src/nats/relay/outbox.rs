//! The queue between ZMQ and NATS.
//!
//! The ZMQ side never waits: a full outbox drops its oldest messages, since the newest ones show
//! readers that some are missing. A dropped note is never lost: a reader that misses one may take
//! two lives of the engine for one. So the state of the last note in front of the oldest message is
//! retained and announced again.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::nats::wire::EngineLinkNote;

/// Cost of a message besides its payload.
const ENTRY_BYTES: usize = 128;

/// Something to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OutboxItem {
    Note(EngineLinkNote),
    Batch {
        seq: u64,
        topic: Bytes,
        payload: Bytes,
    },
}

impl OutboxItem {
    fn bytes(&self) -> usize {
        match self {
            Self::Note(_) => ENTRY_BYTES,
            Self::Batch { topic, payload, .. } => ENTRY_BYTES + topic.len() + payload.len(),
        }
    }
}

/// A queue bounded in bytes.
#[derive(Debug)]
pub(super) struct Outbox {
    items: VecDeque<OutboxItem>,
    bytes: usize,
    max_bytes: usize,
    /// The engine's connection state in front of the first item.
    before: EngineLinkNote,
    /// Whether that state must be announced before the first item.
    gap_pending: bool,
    dropped: u64,
}

impl Outbox {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            items: VecDeque::new(),
            bytes: 0,
            max_bytes,
            before: EngineLinkNote::Disconnected,
            gap_pending: true,
            dropped: 0,
        }
    }

    pub(super) fn push(&mut self, item: OutboxItem) {
        self.bytes += item.bytes();
        self.items.push_back(item);
        // The newest message stays whatever its size: it shows that the others are missing.
        while self.bytes > self.max_bytes && self.items.len() > 1 {
            match self.take_first() {
                Some(OutboxItem::Note(_)) => self.gap_pending = true,
                Some(OutboxItem::Batch { .. }) => self.dropped += 1,
                None => {}
            }
        }
    }

    /// Removes the next item to publish.
    pub(super) fn pop(&mut self) -> Option<OutboxItem> {
        if std::mem::take(&mut self.gap_pending) {
            return Some(OutboxItem::Note(self.before));
        }
        self.take_first()
    }

    fn take_first(&mut self) -> Option<OutboxItem> {
        let item = self.items.pop_front()?;
        self.bytes -= item.bytes();
        if let OutboxItem::Note(note) = item {
            self.before = note;
        }
        Some(item)
    }

    /// Records that readers may have missed messages: the current state is announced before the
    /// next one.
    pub(super) fn mark_gap(&mut self) {
        self.gap_pending = true;
    }

    /// Returns the engine's connection state as announced to readers.
    pub(super) fn announced_state(&self) -> EngineLinkNote {
        if self.gap_pending {
            EngineLinkNote::Disconnected
        } else {
            self.before
        }
    }

    /// Returns the total of dropped messages.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(seq: u64) -> OutboxItem {
        OutboxItem::Batch {
            seq,
            topic: Bytes::new(),
            payload: Bytes::from_static(&[0; 72]),
        }
    }

    fn popped(outbox: &mut Outbox) -> Vec<OutboxItem> {
        std::iter::from_fn(|| outbox.pop()).collect()
    }

    #[test]
    fn state_messages_come_first_then_batches_in_order() {
        let mut outbox = Outbox::new(1_000);
        outbox.push(OutboxItem::Note(EngineLinkNote::Connected));
        outbox.push(batch(0));
        let expected = [
            OutboxItem::Note(EngineLinkNote::Disconnected),
            OutboxItem::Note(EngineLinkNote::Connected),
            batch(0),
        ];
        assert_eq!(popped(&mut outbox), expected);
        outbox.mark_gap();
        outbox.push(batch(1));
        assert_eq!(
            outbox.announced_state(),
            EngineLinkNote::Disconnected,
            "the state is not known yet"
        );
        assert_eq!(
            popped(&mut outbox),
            [OutboxItem::Note(EngineLinkNote::Connected), batch(1)]
        );
        assert_eq!(
            (outbox.announced_state(), outbox.dropped()),
            (EngineLinkNote::Connected, 0)
        );
    }

    #[test]
    fn a_full_outbox_drops_the_oldest_messages_and_keeps_the_restart_marker() {
        let mut outbox = Outbox::new(500);
        outbox.push(OutboxItem::Note(EngineLinkNote::Connected));
        popped(&mut outbox);
        outbox.push(batch(7));
        for note in [EngineLinkNote::Disconnected, EngineLinkNote::Connected] {
            outbox.push(OutboxItem::Note(note));
        }
        for seq in 0..4 {
            outbox.push(batch(seq));
        }
        // The messages from before the restart are dropped; the restart is announced.
        assert_eq!(
            popped(&mut outbox),
            [
                OutboxItem::Note(EngineLinkNote::Connected),
                batch(2),
                batch(3)
            ]
        );
        assert_eq!(outbox.dropped(), 3);
    }

    #[test]
    fn one_message_larger_than_the_outbox_waits_alone() {
        let mut outbox = Outbox::new(10);
        outbox.push(batch(0));
        outbox.push(batch(1));
        assert_eq!(
            popped(&mut outbox),
            [OutboxItem::Note(EngineLinkNote::Disconnected), batch(1)]
        );
    }
}
