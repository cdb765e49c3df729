//! The input of the indexes: a list of queries and changes over flat lists of hashes.
//!
//! A workload is created before the measurement. It is independent of any index, and every index
//! gets the same one.

mod catalogue;
mod fleet;
mod records;
mod replay;
mod synthetic;
mod toolagent;

use kv_blocks::SequenceHash;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) use catalogue::{Recipe, Size, WorkloadError};

const SEED: u64 = 1337;

/// The range of a list of blocks in the workload's hashes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// The number of a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainId(u32);

/// A change in a target's stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TargetChange {
    /// The target now holds the blocks `start..end` of the chain; it already held those before
    /// them.
    Stored {
        target: u32,
        chain: ChainId,
        start: u32,
        end: u32,
    },
    /// The target no longer holds these blocks; the span is in [`Workload::removed`].
    Removed { target: u32, blocks: Span },
}

/// One step of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkloadStep {
    Query(ChainId),
    Change(TargetChange),
}

/// A workload.
#[derive(Debug, Default)]
pub(crate) struct Workload {
    pub(crate) targets: usize,
    /// Hash of each block's content alone, chain by chain.
    content: Vec<u64>,
    /// Hash of each block and everything before it, at the same positions.
    rolling: Vec<SequenceHash>,
    chains: Vec<Span>,
    /// The blocks of all removals.
    pub(crate) removed: Vec<SequenceHash>,
    pub(crate) steps: Vec<WorkloadStep>,
    /// Steps before this one only build the initial state of the measurement.
    pub(crate) warm: usize,
    /// Whether the changes after `warm` end in their initial state, so that they can be repeated.
    pub(crate) cyclic: bool,
    /// Pairs of block and target at the end.
    pub(crate) memberships: usize,
    /// Distinct blocks held by any target at the end.
    pub(crate) distinct: usize,
}

impl Workload {
    pub(crate) fn span(&self, chain: ChainId) -> Span {
        self.chains[chain.0 as usize]
    }

    pub(crate) fn content(&self, span: Span) -> &[u64] {
        &self.content[span.start..span.start + span.len]
    }

    pub(crate) fn all_content(&self) -> &[u64] {
        &self.content
    }

    pub(crate) fn rolling(&self, span: Span) -> &[SequenceHash] {
        &self.rolling[span.start..span.start + span.len]
    }

    pub(crate) fn removed(&self, span: Span) -> &[SequenceHash] {
        &self.removed[span.start..span.start + span.len]
    }

    /// Returns the changes that build the initial state.
    pub(crate) fn warm_changes(&self) -> Vec<TargetChange> {
        changes(&self.steps[..self.warm])
    }

    /// Returns the measured changes.
    pub(crate) fn measured_changes(&self) -> Vec<TargetChange> {
        changes(&self.steps[self.warm..])
    }

    /// Returns the measured prompts, in the order of the steps.
    pub(crate) fn measured_prompts(&self) -> Vec<Span> {
        let query = |step: &WorkloadStep| match *step {
            WorkloadStep::Query(chain) => Some(self.span(chain)),
            WorkloadStep::Change(_) => None,
        };
        self.steps[self.warm..].iter().filter_map(query).collect()
    }

    /// Adds a chain given by the content of its blocks.
    fn add_chain(&mut self, content: impl IntoIterator<Item = u64>) -> ChainId {
        let start = self.content.len();
        let mut parent = None;
        for block in content {
            let hash = roll(parent, block);
            self.content.push(block);
            self.rolling.push(hash);
            parent = Some(hash);
        }
        self.chains.push(Span {
            start,
            len: self.content.len() - start,
        });
        ChainId(
            u32::try_from(self.chains.len() - 1).expect("a workload has fewer than 2^32 chains"),
        )
    }
}

impl TargetChange {
    /// Number of blocks stored or removed.
    pub(crate) fn blocks(&self) -> usize {
        match *self {
            Self::Stored { start, end, .. } => (end - start) as usize,
            Self::Removed { blocks, .. } => blocks.len,
        }
    }
}

/// Returns the hash of a block and everything before it.
fn roll(parent: Option<SequenceHash>, block: u64) -> SequenceHash {
    SequenceHash(match parent {
        None => block,
        Some(parent) => hash_pair(parent.0, block),
    })
}

fn hash_pair(first: u64, second: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    xxh3_64_with_seed(&bytes, SEED)
}

fn changes(steps: &[WorkloadStep]) -> Vec<TargetChange> {
    let change = |step: &WorkloadStep| match *step {
        WorkloadStep::Change(change) => Some(change),
        WorkloadStep::Query(_) => None,
    };
    steps.iter().filter_map(change).collect()
}
