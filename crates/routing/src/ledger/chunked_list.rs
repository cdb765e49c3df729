//! A list that grows without moving its entries, because the router's lock is held while it grows.

use std::ops::{Index, IndexMut};

/// Entries of one allocation.
const CHUNK: usize = 256;

/// A list of chunks of equal length.
#[derive(Debug)]
pub(super) struct ChunkedList<T>(Vec<Vec<T>>);

impl<T> Default for ChunkedList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ChunkedList<T> {
    pub(super) fn len(&self) -> usize {
        self.0
            .last()
            .map_or(0, |last| (self.0.len() - 1) * CHUNK + last.len())
    }

    /// Returns whether it has more than one allocation.
    pub(super) fn has_grown(&self) -> bool {
        self.0.len() > 1
    }

    /// Adds an entry; returns its index.
    pub(super) fn push(&mut self, entry: T) -> usize {
        match self.0.last_mut().filter(|last| last.len() < CHUNK) {
            Some(last) => last.push(entry),
            None => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(entry);
                self.0.push(chunk);
            }
        }
        self.len() - 1
    }
}

impl<T> Index<usize> for ChunkedList<T> {
    type Output = T;

    fn index(&self, position: usize) -> &T {
        &self.0[position / CHUNK][position % CHUNK]
    }
}

impl<T> IndexMut<usize> for ChunkedList<T> {
    fn index_mut(&mut self, position: usize) -> &mut T {
        &mut self.0[position / CHUNK][position % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_keeps_its_index() {
        let mut list = ChunkedList::default();
        for i in 0..3 * CHUNK {
            assert_eq!((list.len(), list.push(i)), (i, i));
        }
        list[CHUNK] += 1;
        assert_eq!(
            (list[0], list[CHUNK], list[3 * CHUNK - 1]),
            (0, CHUNK + 1, 3 * CHUNK - 1)
        );
    }
}
