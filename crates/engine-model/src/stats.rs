//! Counters of one engine.

/// Totals since the start, and current values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Sequences in the batch.
    pub running: usize,
    /// Requests not yet scheduled, or preempted.
    pub waiting: usize,
    /// Occupancy of the cache.
    pub blocks: BlockStats,
    /// Prompt tokens looked up, once per request.
    pub queried_tokens: u64,
    /// Prompt tokens found on the device.
    pub device_hit_tokens: u64,
    /// Prompt tokens found in the host tier.
    pub host_hit_tokens: u64,
    /// Prompt tokens that another engine sent, beyond those found here.
    pub fetched_tokens: u64,
    /// Prompt tokens of the requests whose prefill is done.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens run through prefill, recomputation included.
    pub computed_tokens: u64,
    /// Sequences preempted because of missing blocks.
    pub preemptions: u64,
    /// Requests that completed.
    pub finished: u64,
    /// Requests that the caller aborted.
    pub aborted: u64,
    /// Steps run.
    pub steps: u64,
}

/// Occupancy of one engine's cache, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockStats {
    /// Device blocks that a sequence refers to.
    pub used: usize,
    /// Total device blocks.
    pub total: usize,
    /// Device blocks that can be found by hash, copies included.
    pub cached: usize,
    /// Host blocks in use.
    pub host: usize,
}
