//! Depths at which prompts diverge most often: lookups probe there first.

use crate::{
    atomic::Ordering,
    lookup::{KNOWN_ENDS, SharedIndex},
};

/// The most frequent depths of new branches, by counters that decay (Misra and Gries, 1982).
#[derive(Debug, Default)]
pub(super) struct Forks {
    counts: [(u32, u32); KNOWN_ENDS],
}

impl Forks {
    /// Counts a new run at `depth` that has siblings.
    pub(super) fn record(&mut self, core: &SharedIndex, depth: u32) {
        if let Some((_, count)) = self
            .counts
            .iter_mut()
            .find(|(known, count)| *known == depth && *count > 0)
        {
            *count = count.saturating_add(1);
        } else if let Some(at) = self.counts.iter().position(|(_, count)| *count == 0) {
            self.counts[at] = (depth, 1);
            core.ends[at].store(depth, Ordering::Relaxed);
        } else {
            self.counts.iter_mut().for_each(|(_, count)| *count -= 1);
        }
    }
}
