//! A stream's memory of delivered events: enough to distinguish a repetition from another life of
//! the publisher.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::super::event::{StandardChange, StandardEvent};

/// Remembered events, and remembered ends of events.
const REMEMBERED: usize = 64;

/// Length of a sequence of unknown low numbers, each one more than the one before, that counts as a
/// restarted stream.
const STRAYS: u32 = 32;

/// Publishers number from 0 or from 1.
const LAST_OF_FIRST: u64 = 1;

#[derive(Debug, Default)]
pub(super) struct SeenEvents {
    /// Numbers and digests of the last events, oldest first.
    events: VecDeque<(u64, u64)>,
    /// Numbers and digests of the events with the first possible numbers.
    first: Vec<(u64, u64)>,
    /// Ends of the last stored events: depth in blocks, and hash of the last block. Oldest first.
    ends: VecDeque<(u64, u64)>,
    /// The low number that would continue the current sequence, and the sequence's length.
    strays: (u64, u32),
}

/// Classification of an event with a low number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LowNumber {
    Repeated,
    Late,
    Reborn,
}

impl SeenEvents {
    pub(super) fn low(&mut self, event: &StandardEvent) -> LowNumber {
        let id = event.event_id;
        if let Some((_, digest)) = self
            .events
            .iter()
            .chain(&self.first)
            .find(|(known, _)| *known == id)
        {
            return if *digest == self::digest(event) {
                LowNumber::Repeated
            } else {
                LowNumber::Reborn
            };
        }
        let (expected, row) = self.strays;
        let row = if id == expected { row + 1 } else { 1 };
        self.strays = (id.saturating_add(1), row);
        if id <= LAST_OF_FIRST || row >= STRAYS {
            LowNumber::Reborn
        } else {
            LowNumber::Late
        }
    }

    /// Records a delivered event, and fills in its parent if only its depth is known.
    pub(super) fn note(&mut self, event: &mut StandardEvent) {
        let digest = digest(event);
        remember(&mut self.events, (event.event_id, digest));
        if event.event_id <= LAST_OF_FIRST {
            self.first.push((event.event_id, digest));
        }
        self.strays = (0, 0);
        let StandardChange::Stored {
            seq_hashes,
            base_block_idx,
            parent_hash,
            ..
        } = &mut event.change
        else {
            return;
        };
        if let (Some(base @ 1..), None) = (*base_block_idx, *parent_hash) {
            // Of several ends of this depth the latest is the likeliest. A wrong one gives no false
            // credit: a rolling hash is found behind its own prefix only.
            *parent_hash = self
                .ends
                .iter()
                .rev()
                .find(|(depth, _)| *depth == base)
                .map(|(_, hash)| *hash);
        }
        let depth_of = |hash: u64| {
            self.ends
                .iter()
                .rev()
                .find(|(_, end)| *end == hash)
                .map(|(depth, _)| *depth)
        };
        let base = base_block_idx.or_else(|| parent_hash.and_then(depth_of));
        if let (Some(base), Some(last)) = (base, seq_hashes.last()) {
            remember(
                &mut self.ends,
                (base.saturating_add(seq_hashes.len() as u64), *last),
            );
        }
    }
}

fn remember(list: &mut VecDeque<(u64, u64)>, entry: (u64, u64)) {
    if list.len() == REMEMBERED {
        list.pop_front();
    }
    list.push_back(entry);
}

fn digest(event: &StandardEvent) -> u64 {
    let mut hasher = DefaultHasher::new();
    (event.timestamp_ms, &event.change, &event.object_key).hash(&mut hasher);
    hasher.finish()
}
