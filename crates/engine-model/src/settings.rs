//! What an engine is made of.

use std::sync::Arc;

use kv_blocks::BlockSize;

use crate::EngineTiming;

/// What one engine is made of.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Blocks on the device.
    pub device_blocks: u32,
    /// Blocks in host memory; 0: no host tier.
    pub host_blocks: u32,
    /// Whether blocks are kept for later requests; without it nothing is ever found, named or announced.
    pub prefix_caching: bool,
    /// Most sequences in a batch.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// How blocks are given to sequences.
    pub allocation: Allocation,
    /// Who of those that wait goes first.
    pub scheduling: Scheduling,
    /// How long things take.
    pub timing: EngineTiming,
    /// Changes every reply.
    pub seed: u64,
    /// Tokens that replies are made of.
    pub alphabet: Arc<[u32]>,
}

/// How blocks are given to sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// As vLLM does it: a block when it is needed, and the youngest sequence gives way when there are none left. A block
    /// can be found from the step on that computes it, and a block computed twice is held twice.
    #[default]
    Growing,
    /// All that a sequence can come to need, its reply included, when it is admitted; nobody ever gives way. A block can
    /// be found after the step that computed it, and is never held twice under its name. Blocks with nothing in them are
    /// taken before those that hold something. This is how simulations of routing are usually published.
    Reserved,
}

/// Who of those that wait goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// Who came first.
    #[default]
    Arrival,
    /// Who has the lowest priority number, and among equals who came first; where blocks are short, the highest number
    /// gives way. vLLM's `--scheduling-policy priority`.
    Priority,
}
