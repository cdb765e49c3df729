//! Numbers of events, as one subscriber gets to see them.

use std::{collections::HashMap, hash::Hash};

/// Numbers of the envelopes of a stream: consecutive, from 0.
///
/// Salts are chosen by clients, so there may be any number of streams. Beyond [`MOST`] all are forgotten, and go on above
/// every number that was used: then readers see a gap, which says that something may be missing, and never a number again,
/// which would say that the router was restarted.
#[derive(Debug)]
pub(super) struct StreamNumbering<K> {
    next: HashMap<K, u64>,
    /// What a stream that is not known begins with.
    first: u64,
}

/// Streams whose numbers are known at once.
const MOST: usize = 16_384;

impl<K: Eq + Hash> StreamNumbering<K> {
    pub(super) fn new() -> Self {
        Self {
            next: HashMap::new(),
            first: 0,
        }
    }

    /// The next number of a stream.
    pub(super) fn next(&mut self, stream: K) -> u64 {
        if self.next.len() >= MOST && !self.next.contains_key(&stream) {
            self.first = self
                .next
                .values()
                .copied()
                .max()
                .unwrap_or(self.first)
                .max(self.first)
                + 1;
            self.next.clear();
        }
        let next = self.next.entry(stream).or_insert(self.first);
        let number = *next;
        *next += 1;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_counts_for_itself_from_0() {
        let mut numbers = StreamNumbering::new();
        assert_eq!(
            ["a", "a", "b", "a"].map(|stream| numbers.next(stream)),
            [0, 1, 0, 2]
        );
    }

    #[test]
    fn with_too_many_streams_numbers_jump_and_are_never_used_again() {
        let mut numbers = StreamNumbering::new();
        for _ in 0..5 {
            numbers.next(0);
        }
        for stream in 1..=MOST {
            numbers.next(stream);
        }
        assert!(numbers.next.len() <= MOST);
        assert!(numbers.next(0) >= 5);
        assert!(numbers.next(1) >= 1);
    }
}
