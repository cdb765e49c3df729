//! The settings of an engine.

use std::sync::Arc;

use kv_blocks::BlockSize;

use crate::EngineTiming;

/// The settings of one engine.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Blocks on the device.
    pub device_blocks: u32,
    /// Blocks in host memory; 0: no host tier.
    pub host_blocks: u32,
    /// Whether blocks are cached for later requests; if not, no block is ever found, named or
    /// announced.
    pub prefix_caching: bool,
    /// Maximum sequences in a batch.
    pub max_num_seqs: u32,
    /// Maximum tokens in a step.
    pub max_num_batched_tokens: u32,
    /// How sequences get their blocks.
    pub allocation: Allocation,
    /// The order of waiting requests.
    pub scheduling: Scheduling,
    /// The timing of steps.
    pub timing: EngineTiming,
    /// The seed of all replies.
    pub seed: u64,
    /// Tokens that replies consist of.
    pub alphabet: Arc<[u32]>,
}

/// How sequences get their blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// As in vLLM: a block when it is needed, and the youngest sequence is preempted when there are
    /// none left. A block can be found from the step that computes it, and a block computed twice
    /// has two copies.
    #[default]
    Growing,
    /// At admission, all blocks that a sequence can need, its reply included; no sequence is ever
    /// preempted. A block can be found after the step that computed it, and never has two copies
    /// under its name. Empty blocks are taken before filled ones. Published simulations of routing
    /// usually do this.
    Reserved,
}

/// The order of waiting requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// First come, first served.
    #[default]
    Arrival,
    /// The lowest priority number first, and among equals first come; if blocks are missing, the
    /// highest number is preempted. vLLM's `--scheduling-policy priority`.
    Priority,
}
