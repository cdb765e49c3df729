//! The shared face of the index.

use std::{sync::Arc, time::Duration};

use kv_blocks::{HashScheme, IndexUpdate, Moment, Namespace, SequenceHash, Target, Tier, WorkerId};
use parking_lot::RwLock;

use crate::{
    Applied, DumpPlace, DumpRow, IndexStats, Overlap, Promised, TargetDigest,
    predictions::{Kind, Promise},
    state::{Clearing, State},
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
    // One lock: exact and simple. Lookups share it, updates hold it for one event; whatever goes through many entries
    // takes it again for every few thousand of them.
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
        // While it is being cleared it serves no model, so that no store of the old one comes in between.
        if self.state.write().unregister_other(target, &model) {
            self.clear(target);
        }
        self.state.write().register(target, model);
    }

    /// Applies one update of a target's stream.
    pub fn apply(&self, target: Target, update: &IndexUpdate) -> Applied {
        match update {
            IndexUpdate::Stored(stored) => self.state.write().store(target, stored),
            IndexUpdate::Removed(removed) => self.state.write().remove(target, removed),
            IndexUpdate::Cleared => {
                self.step_by_step(|state, step| state.clear_tier(target, Tier::Device, step));
                Applied { applied: 1, ..Applied::default() }
            }
        }
    }

    /// Says that a target's stream may have lost removals: what it holds more than once counts as held once, and what is
    /// on trust is over.
    pub fn hole(&self, target: Target) {
        self.state.write().hole(target);
    }

    /// Whether a target is credited with what its stream announces; it is until somebody says otherwise.
    ///
    /// One that is not goes by our own decisions alone: by what [`KvIndex::predict`] and [`KvIndex::speculate`] entered.
    /// What it announces is still kept, so that it can be compared ([`Overlap::announced`]) and counts again once the
    /// target is trusted again. What was predicted is forgotten then, as it is when the target is cleared: a cache said to
    /// be empty is not expected to hold anything.
    pub fn trust(&self, target: Target, trusted: bool) {
        if self.state.write().trust(target, trusted) {
            // Beside what is announced it would outlast the removals.
            self.step_by_step(|state, step| state.clear_promises(target, step));
        }
    }

    /// Forgets everything a target holds or is expected to hold; its registration stays.
    ///
    /// Lookups and updates get in between, and see a target that holds less and less. What is stored there meanwhile may
    /// be forgotten too.
    pub fn clear(&self, target: Target) {
        self.step_by_step(|state, step| state.clear(target, step));
    }

    /// Forgets a worker with all its ranks and their registrations.
    pub fn remove_worker(&self, worker: WorkerId) {
        let ranks = self.state.read().ranks(worker);
        for target in ranks {
            self.clear(target);
            self.state.write().forget(target);
        }
    }

    /// Forgets in steps, with the lock free between two of them.
    fn step_by_step(&self, step: impl Fn(&mut State, Clearing) -> Option<Clearing>) {
        let mut next = Some(Clearing::Begin);
        while let Some(now) = next {
            next = step(&mut self.state.write(), now);
        }
    }

    /// Every target that holds at least the first block of `chain`, in the order of targets.
    pub fn lookup(&self, namespace: &Namespace, chain: &[SequenceHash], now: Moment) -> Vec<Overlap> {
        self.state.read().lookup(namespace, chain, now)
    }

    /// Expects `chain` on `target` until `now + ttl`, because a request was just sent there whose events will confirm
    /// it. Blocks the target is known to hold are left alone, unless the target is not trusted ([`KvIndex::trust`]).
    pub fn speculate(
        &self,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
        ttl: Duration,
    ) -> Promised {
        let promise = Promise { kind: Kind::Speculative, expires: now + ttl };
        self.state.write().promise(target, namespace, chain, now, promise)
    }

    /// The same for a target without trustworthy events: nothing will confirm it, so `ttl` is longer. Only the statistics
    /// tell the two apart.
    pub fn predict(
        &self,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
        ttl: Duration,
    ) -> Promised {
        let promise = Promise { kind: Kind::Predicted, expires: now + ttl };
        self.state.write().promise(target, namespace, chain, now, promise)
    }

    /// Takes back what [`KvIndex::speculate`] or [`KvIndex::predict`] entered, because the request was not taken there.
    /// What was confirmed since, or renewed for another request, stays.
    pub fn retract(&self, promised: Promised) {
        let mut stamps = promised.stamps;
        while !stamps.is_empty() {
            stamps = self.state.write().retract(stamps);
        }
    }

    /// Forgets unconfirmed entries whose time is over. Lookups do not count them in any case: this is for the memory, and
    /// for [`KvIndex::stats`]. Also ends a pruning that is under way.
    pub fn expire(&self, now: Moment) {
        while self.state.write().tidy(now) {}
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

    /// The next of the confirmed memberships, in no particular order; `None` after the last. Begin with
    /// `DumpPlace::default()` and go on until then.
    ///
    /// Each call takes the lock for about a thousand blocks and gives it back, so a dump in pieces is not one instant:
    /// what is there from beginning to end comes exactly once, what changes meanwhile may come or not.
    pub fn dump(&self, place: &mut DumpPlace) -> Option<Vec<DumpRow>> {
        loop {
            let rows = self.state.read().dump(place.part)?;
            place.part += 1;
            if !rows.is_empty() {
                return Some(rows);
            }
        }
    }
}
