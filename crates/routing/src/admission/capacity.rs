//! The number of blocks that a cache holds: as the engine reports it, else as far as it was seen to
//! be filled.

/// Most of its blocks that a cache loses between two looks if it evicts: more was a reset.
const MOST_EVICTED: f64 = 0.1;

/// What is known of the size of one cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capacity {
    reported: Option<u64>,
    /// The most blocks that it held when it lost some.
    full_at: Option<u64>,
    held: u64,
}

impl Capacity {
    /// Records the size that the engine reports.
    pub(super) fn report(&mut self, blocks: Option<u32>) {
        let blocks = blocks.filter(|blocks| *blocks > 0).map(u64::from);
        self.reported = blocks.or(self.reported);
    }

    /// Records how many blocks the cache holds now.
    pub(super) fn observe(&mut self, held: u64) {
        let lost = self.held.saturating_sub(held);
        if lost > 0 && lost as f64 <= MOST_EVICTED * self.held as f64 {
            self.full_at = self.full_at.max(Some(self.held));
        }
        // What is held fits.
        self.full_at = self.full_at.map(|full| full.max(held));
        self.held = held;
    }

    /// Returns the size; `None`: it is not known.
    pub(super) fn blocks(&self) -> Option<u64> {
        self.reported.or(self.full_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reported_size_comes_before_an_observed_one() {
        let mut capacity = Capacity::default();
        assert_eq!(capacity.blocks(), None);
        for held in [100, 500, 480] {
            capacity.observe(held);
        }
        assert_eq!(capacity.blocks(), Some(500));
        capacity.report(Some(900));
        capacity.report(None);
        capacity.report(Some(0));
        assert_eq!(capacity.blocks(), Some(900));
    }

    #[test]
    fn the_size_is_the_most_that_was_held_when_blocks_were_evicted() {
        let mut capacity = Capacity::default();
        for (held, known) in [
            (100, None),
            (900, None),
            // A reset tells nothing.
            (0, None),
            (800, None),
            (790, Some(800)),
            (820, Some(820)),
            (10, Some(820)),
            (9, Some(820)),
        ] {
            capacity.observe(held);
            assert_eq!(capacity.blocks(), known, "{held}");
        }
    }
}
