//! One target's stream with blocks of one token: the credit of the index beside a set and a
//! counter.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, IndexUpdate, Moment, Namespace, PromptIdentity,
    RemovedBlocks, SequenceHash, StoredBlocks, Target, Tier, WorkerId,
};
use kv_index::{DumpCursor, IndexSettings, KvIndex, Overlap, TierBlocks, UpdateOutcome};

/// A block and everything before it, one token a block; tokens below 63.
pub(crate) type BlockPath = Vec<u32>;

pub(crate) const TARGET: Target = Target {
    worker: WorkerId(1),
    rank: DpRank(0),
};

fn size() -> BlockSize {
    BlockSize::new(1).unwrap()
}

pub(crate) fn namespace() -> Namespace {
    Namespace {
        model: Arc::from("m"),
        lora: None,
        salt: None,
        block_size: size(),
        identity: PromptIdentity::Tokens,
    }
}

pub(crate) fn chain(prefix: &[u32]) -> Vec<SequenceHash> {
    HashScheme::default().chain(None, prefix, size())
}

/// Returns the engine hash of a block.
fn name(prefix: &[u32]) -> EngineHash {
    EngineHash(
        prefix
            .iter()
            .fold(1, |number, token| number * 64 + u64::from(*token) + 1),
    )
}

/// The stream, its index, and the two plain models.
pub(crate) struct IndexStream {
    pub(crate) index: KvIndex,
    /// Blocks stored and not removed since.
    pub(crate) set: BTreeSet<BlockPath>,
    /// Blocks stored more often than removed.
    counter: BTreeMap<BlockPath, u64>,
    seen: BTreeSet<BlockPath>,
}

impl IndexStream {
    pub(crate) fn new() -> Self {
        let index = KvIndex::new(IndexSettings {
            memory_budget: 1 << 20,
            ..IndexSettings::default()
        });
        index.register(TARGET, Arc::from("m"));
        Self {
            index,
            set: BTreeSet::new(),
            counter: BTreeMap::new(),
            seen: BTreeSet::new(),
        }
    }

    /// Stores the blocks of `prefix` from number `from` on.
    pub(crate) fn store(&mut self, prefix: &[u32], from: usize) {
        // A store without a known parent waits for it, which the plain models do not cover.
        if from > 0 && !self.holds(&prefix[..from]) {
            return;
        }
        self.store_in(Tier::Device, prefix, from);
        for end in from + 1..=prefix.len() {
            self.set.insert(prefix[..end].to_vec());
            *self.counter.entry(prefix[..end].to_vec()).or_default() += 1;
        }
    }

    /// Stores blocks in any tier; the plain models do not see it.
    pub(crate) fn store_in(&mut self, tier: Tier, prefix: &[u32], from: usize) -> UpdateOutcome {
        self.seen
            .extend((from + 1..=prefix.len()).map(|end| prefix[..end].to_vec()));
        let stored = StoredBlocks {
            hashes: (from + 1..=prefix.len())
                .map(|end| name(&prefix[..end]))
                .collect(),
            parent: (from > 0).then(|| name(&prefix[..from])),
            tokens: prefix[from..].to_vec(),
            block_size: size(),
            lora: None,
            media: Vec::new(),
            salt: None,
            tier,
        };
        self.index.apply(TARGET, &IndexUpdate::Stored(stored))
    }

    pub(crate) fn remove(&mut self, prefix: &[u32]) {
        let removed = RemovedBlocks {
            hashes: vec![name(prefix)],
            tier: Tier::Device,
        };
        self.index.apply(TARGET, &IndexUpdate::Removed(removed));
        self.set.remove(prefix);
        if let Some(count) = self.counter.get_mut(prefix) {
            *count = count.saturating_sub(1);
        }
    }

    pub(crate) fn cleared(&mut self) {
        self.index.apply(TARGET, &IndexUpdate::Cleared);
        self.set.clear();
        self.counter.clear();
    }

    /// Saves the index, and goes on with one that loads the snapshot.
    pub(crate) fn moved(&mut self) {
        let mut file = Vec::new();
        self.index.save(&mut file).unwrap();
        let index = Self::new().index;
        index.load(&mut &file[..]).unwrap();
        self.index = index;
    }

    pub(crate) fn counted(&self) -> BTreeSet<BlockPath> {
        self.counter
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(prefix, _)| prefix.clone())
            .collect()
    }

    /// Returns the blocks that the index credits.
    pub(crate) fn resident(&self) -> BTreeSet<BlockPath> {
        let known: BTreeMap<_, _> = self
            .seen
            .iter()
            .map(|prefix| (*chain(prefix).last().unwrap(), prefix))
            .collect();
        let mut place = DumpCursor::default();
        let rows = std::iter::from_fn(|| self.index.dump(&mut place)).flatten();
        rows.map(|row| known[&row.hash].clone()).collect()
    }

    /// Whether the index credits a block.
    pub(crate) fn holds(&self, prefix: &[u32]) -> bool {
        self.resident().contains(prefix)
    }

    pub(crate) fn look_up(&self, prefix: &[u32]) -> Option<Overlap> {
        self.index
            .lookup(&namespace(), &chain(prefix), Moment::START)
            .pop()
    }

    /// Returns the run of leading blocks and that of announced ones.
    pub(crate) fn runs(&self, prefix: &[u32]) -> (TierBlocks, TierBlocks) {
        self.look_up(prefix)
            .map_or_else(Default::default, |overlap| {
                (overlap.blocks, overlap.announced)
            })
    }
}
