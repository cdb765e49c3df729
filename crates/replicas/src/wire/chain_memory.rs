//! The latest long chains of one sender, so that a message names a known beginning by one hash.
//!
//! Sender and receiver insert the same chains in the same order with the same bounds, so both know
//! the same ones while no message is lost. Where the receiver has lost one, it counts the beginning
//! as blocks that nobody shares: the number of blocks stays right.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use kv_blocks::SequenceHash;

/// Shortest chain that is remembered; shorter ones are sent whole.
const MIN_BLOCKS: usize = 64;
/// Most blocks of all chains together, 8 bytes each: 2 MiB a sender.
const MOST_BLOCKS: usize = 1 << 18;

/// The latest long chains of one sender, by their last hash.
#[derive(Debug, Default)]
pub(crate) struct ChainMemory {
    by_end: HashMap<SequenceHash, Arc<[SequenceHash]>>,
    /// Oldest first.
    order: VecDeque<SequenceHash>,
    blocks: usize,
}

impl ChainMemory {
    /// Remembers a chain; drops the oldest ones beyond the bound.
    pub(crate) fn insert(&mut self, chain: &Arc<[SequenceHash]>) {
        let Some(end) = chain.last().filter(|_| is_long(chain.len())) else {
            return;
        };
        if self.by_end.contains_key(end) {
            return;
        }
        self.by_end.insert(*end, Arc::clone(chain));
        self.order.push_back(*end);
        self.blocks += chain.len();
        while self.blocks > MOST_BLOCKS {
            let Some(dropped) = self.order.pop_front() else {
                break;
            };
            let dropped = self.by_end.remove(&dropped);
            self.blocks -= dropped.map_or(0, |chain| chain.len());
        }
    }

    /// Returns the number of leading blocks of `chain` that are a remembered chain: the longest
    /// such beginning, or 0.
    pub(crate) fn known_blocks(&self, chain: &[SequenceHash]) -> usize {
        if self.by_end.is_empty() {
            return 0;
        }
        (MIN_BLOCKS..=chain.len())
            .rev()
            .find(|blocks| self.find(chain[blocks - 1], *blocks).is_some())
            .unwrap_or(0)
    }

    /// Returns the remembered chain of this many blocks that ends with `end`.
    pub(crate) fn find(&self, end: SequenceHash, blocks: usize) -> Option<&Arc<[SequenceHash]>> {
        let chain = self.by_end.get(&end)?;
        (chain.len() == blocks).then_some(chain)
    }
}

fn is_long(blocks: usize) -> bool {
    (MIN_BLOCKS..=MOST_BLOCKS / 4).contains(&blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(conversation: u64, blocks: u64) -> Arc<[SequenceHash]> {
        (0..blocks)
            .map(|block| SequenceHash(conversation << 32 | block))
            .collect()
    }

    #[test]
    fn the_longest_remembered_beginning_is_found() {
        let mut memory = ChainMemory::default();
        assert_eq!(memory.known_blocks(&chain(1, 500)), 0);
        for blocks in [100, 200] {
            memory.insert(&chain(1, blocks));
        }
        assert_eq!(memory.known_blocks(&chain(1, 500)), 200);
        assert_eq!(memory.known_blocks(&chain(1, 150)), 100);
        assert_eq!(memory.known_blocks(&chain(1, 99)), 0);
        assert_eq!(memory.known_blocks(&chain(2, 500)), 0);
    }

    #[test]
    fn short_chains_are_not_remembered() {
        let mut memory = ChainMemory::default();
        memory.insert(&chain(1, MIN_BLOCKS as u64 - 1));
        assert_eq!(memory.known_blocks(&chain(1, 500)), 0);
    }

    #[test]
    fn the_oldest_chains_are_dropped_beyond_the_bound() {
        let mut memory = ChainMemory::default();
        for conversation in 0..100 {
            memory.insert(&chain(conversation, 10_000));
        }
        assert!(memory.blocks <= MOST_BLOCKS);
        assert_eq!(memory.order.len(), memory.by_end.len());
        assert_eq!(memory.known_blocks(&chain(99, 10_001)), 10_000);
        assert_eq!(memory.known_blocks(&chain(0, 10_001)), 0);
    }
}
