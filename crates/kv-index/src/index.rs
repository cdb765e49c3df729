//! The shared face of the index.

use std::{sync::Arc, time::Duration};

use kv_blocks::{HashScheme, IndexUpdate, Moment, Namespace, SequenceHash, Target, Tier, WorkerId};
use parking_lot::RwLock;

use crate::{
    Applied, DumpRow, IndexStats, Overlap, TargetDigest,
    predictions::{Kind, Promise},
    state::State,
};

/// How an index is built.
#[derive(Clone, Debug)]
pub struct IndexSettings {
    /// How tokens become hashes.
    pub scheme: HashScheme,
    /// Bytes the index may take, estimated; beyond it unconfirmed entries go first, then new blocks are refused and
    /// counted as shed.
    pub memory_budget: u64,
    /// Speculative and predicted entries at most; beyond it the least recently used are pruned.
    pub prediction_max_blocks: u64,
    /// Share of `prediction_max_blocks` that pruning leaves, 0 to 1.
    pub prune_target_ratio: f64,
}

impl Default for IndexSettings {
    fn default() -> Self {
        Self {
            scheme: HashScheme::default(),
            memory_budget: 512 << 20,
            prediction_max_blocks: 1 << 20,
            prune_target_ratio: 0.8,
        }
    }
}

/// Who holds which block.
///
/// ```
/// use std::sync::Arc;
///
/// use kv_blocks::{BlockSize, DpRank, EngineHash, HashScheme, Identity, IndexUpdate, Moment, Namespace, Stored, Target, Tier, WorkerId};
/// use kv_index::{IndexSettings, KvIndex};
///
/// let index = KvIndex::new(IndexSettings::default());
/// let target = Target { worker: WorkerId(1), rank: DpRank(0) };
/// let block_size = BlockSize::new(2).unwrap();
/// index.register(target, Arc::from("qwen"));
/// index.apply(target, &IndexUpdate::Stored(Stored {
///     hashes: vec![EngineHash(7)], parent: None, tokens: vec![1, 2], block_size, lora: None, salt: None, tier: Tier::Device,
/// }));
///
/// let namespace = Namespace { model: Arc::from("qwen"), lora: None, salt: None, block_size, identity: Identity::Tokens };
/// let chain = HashScheme::default().chain(None, &[1, 2, 3, 4], block_size);
/// let overlaps = index.lookup(&namespace, &chain, Moment::START);
/// assert_eq!((overlaps[0].target, overlaps[0].blocks.device), (target, 1));
/// ```
#[derive(Debug)]
pub struct KvIndex {
    // One lock: exact and simple. Lookups share it, updates hold it for one event.
    state: RwLock<State>,
}

impl KvIndex {
    /// An empty index.
    pub fn new(settings: IndexSettings) -> Self {
        Self { state: RwLock::new(State::new(settings)) }
    }

    /// Says which model a target serves; stores of targets without one are ignored. A target that changes its model
    /// forgets what it held.
    pub fn register(&self, target: Target, model: Arc<str>) {
        self.state.write().register(target, model);
    }

    /// Applies one update of a target's stream.
    pub fn apply(&self, target: Target, update: &IndexUpdate) -> Applied {
        let mut state = self.state.write();
        match update {
            IndexUpdate::Stored(stored) => state.store(target, stored),
            IndexUpdate::Removed(removed) => state.remove(target, removed),
            IndexUpdate::Cleared => state.clear_tier(target, Tier::Device),
        }
    }

    /// Forgets everything a target holds or is expected to hold; its registration stays.
    pub fn clear(&self, target: Target) {
        self.state.write().clear(target);
    }

    /// Forgets a worker with all its ranks and their registrations.
    pub fn remove_worker(&self, worker: WorkerId) {
        self.state.write().remove_worker(worker);
    }

    /// Every target that holds at least the first block of `chain`, in the order of targets.
    pub fn lookup(&self, namespace: &Namespace, chain: &[SequenceHash], now: Moment) -> Vec<Overlap> {
        self.state.read().lookup(namespace, chain, now)
    }

    /// Expects `chain` on `target` until `now + ttl`, because a request was just sent there whose events will confirm
    /// it. Blocks the target is known to hold are left alone.
    pub fn speculate(&self, target: Target, namespace: &Namespace, chain: &[SequenceHash], now: Moment, ttl: Duration) {
        let promise = Promise { kind: Kind::Speculative, expires: now + ttl };
        self.state.write().promise(target, namespace, chain, now, promise);
    }

    /// The same for a target without trustworthy events: nothing will confirm it, so `ttl` is longer. Only the statistics
    /// tell the two apart.
    pub fn predict(&self, target: Target, namespace: &Namespace, chain: &[SequenceHash], now: Moment, ttl: Duration) {
        let promise = Promise { kind: Kind::Predicted, expires: now + ttl };
        self.state.write().promise(target, namespace, chain, now, promise);
    }

    /// Forgets unconfirmed entries whose time is over. Lookups do not count them in any case: this is for the memory, and
    /// for [`KvIndex::stats`].
    pub fn expire(&self, now: Moment) {
        self.state.write().expire(now);
    }

    /// Confirmed blocks of a target per tier, in the order of [`Tier::ALL`]; a block in two tiers counts in both.
    pub fn blocks_per_tier(&self, target: Target) -> [u64; 4] {
        self.state.read().blocks_per_tier(target)
    }

    /// Totals.
    pub fn stats(&self) -> IndexStats {
        self.state.read().stats()
    }

    /// Digests of every target and tier that holds something, in the order of targets and tiers.
    pub fn digest(&self) -> Vec<TargetDigest> {
        self.state.read().digest()
    }

    /// Hands every confirmed membership to `row`, in no particular order. Updates wait meanwhile.
    pub fn dump(&self, row: &mut dyn FnMut(DumpRow<'_>)) {
        self.state.read().dump(row);
    }
}
