//! The batches that were applied last.

use std::collections::VecDeque;

use kv_blocks::StreamPosition;

/// Most remembered batches: those that the log may deliver again behind a change of the way.
const MAX: usize = 1_024;

/// The positions of the batches that were applied last.
#[derive(Debug, Default)]
pub(crate) struct RecentPositions(VecDeque<StreamPosition>);

impl RecentPositions {
    pub(crate) fn add(&mut self, position: StreamPosition) {
        if self.0.len() == MAX {
            self.0.pop_front();
        }
        self.0.push_back(position);
    }

    /// Returns whether the batch at this position was applied.
    pub(crate) fn contains(&self, position: StreamPosition) -> bool {
        // What is delivered again is usually young.
        self.0.iter().rev().any(|known| *known == position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_position_is_forgotten_first() {
        let at = |seq| StreamPosition { seq, digest: seq };
        let mut recent = RecentPositions::default();
        for seq in 0..=MAX as u64 {
            recent.add(at(seq));
        }
        assert!(!recent.contains(at(0)) && recent.contains(at(1)));
        assert!(recent.contains(at(MAX as u64)));
        assert!(!recent.contains(StreamPosition { seq: 1, digest: 2 }));
    }
}
