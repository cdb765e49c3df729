//! The sequence of tokens 0, 1, 2 and so on, the engine hashes of its blocks, and an index for it.

use std::sync::Arc;

use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, IndexUpdate, Moment, Namespace, PromptIdentity,
    RemovedBlocks, SequenceHash, StoredBlocks, Target, Tier, WorkerId,
};
use kv_index::{DumpCursor, DumpRow, IndexSettings, KvIndex, TierBlocks, UpdateOutcome};

pub(crate) const NOW: Moment = Moment::START;

pub(crate) fn target(worker: u32) -> Target {
    Target {
        worker: WorkerId(worker),
        rank: DpRank(0),
    }
}

pub(crate) fn size() -> BlockSize {
    BlockSize::new(4).unwrap()
}

pub(crate) fn tokens(blocks: std::ops::Range<u32>) -> Vec<u32> {
    (blocks.start * 4..blocks.end * 4).collect()
}

pub(crate) fn chain(blocks: u32) -> Vec<SequenceHash> {
    HashScheme::default().chain(None, &tokens(0..blocks), size())
}

pub(crate) fn plain() -> Namespace {
    Namespace {
        model: Arc::from("m"),
        lora: None,
        salt: None,
        block_size: size(),
        identity: PromptIdentity::Tokens,
    }
}

pub(crate) fn salted(salt: &str) -> Namespace {
    Namespace {
        salt: Some(Arc::from(salt)),
        ..plain()
    }
}

/// Returns blocks of the sequence; the engine hash of block n is `n + 1`.
pub(crate) fn store(blocks: std::ops::Range<u32>) -> StoredBlocks {
    StoredBlocks {
        hashes: blocks
            .clone()
            .map(|block| EngineHash(u64::from(block) + 1))
            .collect(),
        parent: (blocks.start > 0).then(|| EngineHash(blocks.start.into())),
        tokens: tokens(blocks),
        block_size: size(),
        lora: None,
        media: Vec::new(),
        salt: None,
        tier: Tier::Device,
    }
}

pub(crate) fn remove(names: &[u64], tier: Tier) -> IndexUpdate {
    IndexUpdate::Removed(RemovedBlocks {
        hashes: names.iter().map(|name| EngineHash(*name)).collect(),
        tier,
    })
}

pub(crate) fn index_of(settings: IndexSettings) -> KvIndex {
    let index = KvIndex::new(settings);
    for worker in 0..3 {
        index.register(target(worker), Arc::from("m"));
    }
    index
}

pub(crate) fn index() -> KvIndex {
    index_of(IndexSettings::default())
}

pub(crate) fn put(index: &KvIndex, worker: u32, stored: StoredBlocks) -> UpdateOutcome {
    index.apply(target(worker), &IndexUpdate::Stored(stored))
}

pub(crate) fn resident(
    index: &KvIndex,
    worker: u32,
    namespace: &Namespace,
    blocks: u32,
) -> TierBlocks {
    let overlaps = index.lookup(namespace, &chain(blocks), NOW);
    overlaps
        .iter()
        .find(|overlap| overlap.target == target(worker))
        .map_or(TierBlocks::default(), |found| found.blocks)
}

pub(crate) fn dump(index: &KvIndex) -> Vec<DumpRow> {
    let mut place = DumpCursor::default();
    std::iter::from_fn(|| index.dump(&mut place))
        .flatten()
        .collect()
}
