//! The live stream of one rank, and what tests made of it.

use std::collections::VecDeque;

use zmtp::NumberedBatch;

/// State of the live stream.
#[derive(Debug, Default)]
pub(super) struct LiveStream {
    pub(super) next_seq: u64,
    pub(super) published: u64,
    pub(super) paused: bool,
    /// Batches paused by `pause`; at most `buffer_steps`, the oldest is lost when full.
    pub(super) paused_batches: VecDeque<NumberedBatch>,
    pub(super) drop: u64,
    pub(super) duplicate: u64,
    pub(super) corrupt: u64,
    /// The number of batches to collect, and the collected ones.
    pub(super) reorder: u64,
    pub(super) reordered: Vec<NumberedBatch>,
}
