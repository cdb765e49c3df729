//! Sizes of the memory areas.

use crate::{arena::LINE_BYTES, runs::MAX_RUNS};

/// Sizes of the memory areas for a budget.
pub(crate) struct MemorySizes {
    pub(crate) body_log2: u32,
    pub(crate) body_chunks: usize,
    pub(crate) slabs_log2: u32,
    pub(crate) slabs: usize,
    pub(crate) segments_log2: u32,
}

impl MemorySizes {
    pub(crate) fn of(budget: u64) -> Self {
        // Chunks of huge pages; smaller ones for a small budget, so that it can be used up.
        let body_log2 = (budget / LINE_BYTES / 64).max(1).ilog2().clamp(4, 15);
        let slabs_log2 = body_log2.saturating_sub(6).max(2);
        let lines = usize::try_from(budget / LINE_BYTES).unwrap_or(usize::MAX);
        Self {
            body_log2,
            body_chunks: (lines >> body_log2).clamp(1, (u32::MAX >> body_log2) as usize),
            slabs_log2,
            // A run has at least a head and a line of hashes.
            slabs: (lines / 2).min(MAX_RUNS as usize).div_ceil(1 << slabs_log2),
            // Few, so that the directory stays in the first-level cache; but enough that a segment
            // of a full table takes at most half a chunk.
            segments_log2: {
                let few = (budget >> 11).max(1).ilog2().clamp(4, 7);
                (budget >> 19)
                    .max(1)
                    .ilog2()
                    .clamp(few, 10)
                    .max((budget >> 21).max(1).ilog2())
                    .min(16)
            },
        }
    }
}
