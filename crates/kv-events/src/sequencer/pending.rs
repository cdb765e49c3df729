//! Live batches that wait for a replay.

use std::collections::VecDeque;

/// One queued live batch.
#[derive(Debug)]
pub(super) struct PendingBatch {
    /// Ordinal of its arrival in the queue; the first is 1.
    pub(super) arrival: u64,
    pub(super) seq: Option<u64>,
    pub(super) payload: Vec<u8>,
}

/// A queue bounded by batches and bytes; when full, the oldest are dropped, because a replay can
/// bring them back.
#[derive(Debug)]
pub(super) struct PendingQueue {
    batches: VecDeque<PendingBatch>,
    bytes: usize,
    arrivals: u64,
    max_batches: usize,
    max_bytes: usize,
}

impl PendingQueue {
    pub(super) fn new(max_batches: usize, max_bytes: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            bytes: 0,
            arrivals: 0,
            max_batches: max_batches.max(1),
            max_bytes,
        }
    }

    /// Appends a batch; returns how many were dropped for it.
    pub(super) fn push(&mut self, seq: Option<u64>, payload: &[u8]) -> u64 {
        self.bytes += payload.len();
        self.arrivals += 1;
        self.batches.push_back(PendingBatch {
            arrival: self.arrivals,
            seq,
            payload: payload.to_vec(),
        });
        let mut dropped = 0;
        // The newest stays whatever its size: it shows that the others are missing.
        while self.batches.len() > 1
            && (self.batches.len() > self.max_batches || self.bytes > self.max_bytes)
        {
            self.pop();
            dropped += 1;
        }
        dropped
    }

    pub(super) fn pop(&mut self) -> Option<PendingBatch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.payload.len();
        Some(batch)
    }

    /// Undoes a [`PendingQueue::pop`].
    pub(super) fn return_batch(&mut self, waiting: PendingBatch) {
        self.bytes += waiting.payload.len();
        self.batches.push_front(waiting);
    }

    /// Returns the total of arrivals so far.
    pub(super) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn newest(&self) -> Option<u64> {
        self.batches.back()?.seq
    }
}
