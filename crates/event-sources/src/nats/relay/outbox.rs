//! What waits between ZMQ and NATS.
//!
//! The ZMQ side never waits: when the outbox is full its oldest messages are let go, since the newest ones show readers
//! that some are missing. Notes are not let go: a reader that misses one may take two lives of the engine for one. What
//! the last one said before the oldest message is kept, and said again.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::nats::wire::Note;

/// What a message costs beside its payload.
const PLACE: usize = 128;

/// Something to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Note(Note),
    Batch {
        seq: u64,
        topic: Bytes,
        payload: Bytes,
    },
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Self::Note(_) => PLACE,
            Self::Batch { topic, payload, .. } => PLACE + topic.len() + payload.len(),
        }
    }
}

/// A queue bounded in bytes.
#[derive(Debug)]
pub(super) struct Outbox {
    items: VecDeque<Item>,
    bytes: usize,
    max_bytes: usize,
    /// What holds in front of the first item.
    before: Note,
    /// That must be said before the first item.
    owed: bool,
    let_go: u64,
}

impl Outbox {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            items: VecDeque::new(),
            bytes: 0,
            max_bytes,
            before: Note::Disconnected,
            owed: true,
            let_go: 0,
        }
    }

    pub(super) fn push(&mut self, item: Item) {
        self.bytes += item.bytes();
        self.items.push_back(item);
        // The newest stays whatever its size: it is what tells that the others are missing.
        while self.bytes > self.max_bytes && self.items.len() > 1 {
            match self.take_first() {
                Some(Item::Note(_)) => self.owed = true,
                Some(Item::Batch { .. }) => self.let_go += 1,
                None => {}
            }
        }
    }

    /// The next to publish.
    pub(super) fn pop(&mut self) -> Option<Item> {
        if std::mem::take(&mut self.owed) {
            return Some(Item::Note(self.before));
        }
        self.take_first()
    }

    fn take_first(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        self.bytes -= item.bytes();
        if let Item::Note(note) = item {
            self.before = note;
        }
        Some(item)
    }

    /// Readers may have missed anything: before the next message they are told what holds.
    pub(super) fn owe(&mut self) {
        self.owed = true;
    }

    /// Whether the engine is connected, as readers have been told.
    pub(super) fn told(&self) -> Note {
        if self.owed {
            Note::Disconnected
        } else {
            self.before
        }
    }

    /// Messages that were let go, ever.
    pub(super) fn let_go(&self) -> u64 {
        self.let_go
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(seq: u64) -> Item {
        Item::Batch {
            seq,
            topic: Bytes::new(),
            payload: Bytes::from_static(&[0; 72]),
        }
    }

    fn popped(outbox: &mut Outbox) -> Vec<Item> {
        std::iter::from_fn(|| outbox.pop()).collect()
    }

    #[test]
    fn what_holds_is_said_first_and_then_everything_in_order() {
        let mut outbox = Outbox::new(1_000);
        outbox.push(Item::Note(Note::Connected));
        outbox.push(batch(0));
        let expected = [
            Item::Note(Note::Disconnected),
            Item::Note(Note::Connected),
            batch(0),
        ];
        assert_eq!(popped(&mut outbox), expected);
        outbox.owe();
        outbox.push(batch(1));
        assert_eq!(outbox.told(), Note::Disconnected, "nobody knows yet");
        assert_eq!(popped(&mut outbox), [Item::Note(Note::Connected), batch(1)]);
        assert_eq!((outbox.told(), outbox.let_go()), (Note::Connected, 0));
    }

    #[test]
    fn a_full_outbox_lets_the_oldest_messages_go_and_keeps_the_restart_between_them() {
        let mut outbox = Outbox::new(500);
        outbox.push(Item::Note(Note::Connected));
        popped(&mut outbox);
        outbox.push(batch(7));
        for note in [Note::Disconnected, Note::Connected] {
            outbox.push(Item::Note(note));
        }
        for seq in 0..4 {
            outbox.push(batch(seq));
        }
        // Of the old life nothing is left, and that there is a new one is said.
        assert_eq!(
            popped(&mut outbox),
            [Item::Note(Note::Connected), batch(2), batch(3)]
        );
        assert_eq!(outbox.let_go(), 3);
    }

    #[test]
    fn one_message_larger_than_the_outbox_waits_alone() {
        let mut outbox = Outbox::new(10);
        outbox.push(batch(0));
        outbox.push(batch(1));
        assert_eq!(
            popped(&mut outbox),
            [Item::Note(Note::Disconnected), batch(1)]
        );
    }
}
