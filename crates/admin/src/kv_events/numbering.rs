//! Event numbers as one subscriber sees them.

use std::{collections::HashMap, hash::Hash};

/// Numbers of the envelopes of a stream: consecutive, from 0.
///
/// Clients choose salts, so there may be any number of streams. Beyond [`MOST`] all are forgotten,
/// and continue above every used number: then readers see a gap, which means that something may be
/// missing, and never a repeated number, which would mean that the router was restarted.
#[derive(Debug)]
pub(super) struct StreamNumbering<K> {
    next: HashMap<K, u64>,
    /// First number of an unknown stream.
    first: u64,
}

/// Limit of streams with known numbers.
const MOST: usize = 16_384;

impl<K: Eq + Hash> StreamNumbering<K> {
    pub(super) fn new() -> Self {
        Self {
            next: HashMap::new(),
            first: 0,
        }
    }

    /// Returns the next number of a stream.
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
    fn each_stream_is_numbered_separately_from_0() {
        let mut numbers = StreamNumbering::new();
        assert_eq!(
            ["a", "a", "b", "a"].map(|stream| numbers.next(stream)),
            [0, 1, 0, 2]
        );
    }

    #[test]
    fn with_too_many_streams_numbers_jump_and_are_never_reused() {
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
