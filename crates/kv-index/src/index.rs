//! The public interface of the index.

mod content;
mod lookups;
mod positions;
mod streams;

use std::sync::Arc;

use kv_blocks::{
    BlockSize, HashScheme, IndexUpdate, Moment, Namespace, SequenceHash, Target, Tier, WorkerId,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    IndexSettings, MediumStream, Publisher, UpdateOutcome,
    arena::LineChunks,
    atomic::Mutex,
    index_lock::IndexLock,
    lookup::SharedIndex,
    medium_streams::MediumStreams,
    memory_sizes::MemorySizes,
    runs::RunHeads,
    state::{ClearScope, IndexState},
    table::BlockTable,
};

/// Index of the blocks that each target holds.
///
/// ```
/// use std::sync::Arc;
///
/// use kv_blocks::{
///     BlockSize, DpRank, EngineHash, HashScheme, IndexUpdate, Moment, Namespace, PromptIdentity,
///     StoredBlocks, Target, Tier, WorkerId,
/// };
/// use kv_index::{IndexSettings, KvIndex};
///
/// let index = KvIndex::new(IndexSettings::default());
/// let target = Target { worker: WorkerId(1), rank: DpRank(0) };
/// let block_size = BlockSize::new(2).unwrap();
/// index.register(target, Arc::from("qwen"));
/// index.apply(target, &IndexUpdate::Stored(StoredBlocks {
///     hashes: vec![EngineHash(7)], parent: None, tokens: vec![1, 2], block_size, lora: None,
///     media: Vec::new(), salt: None, tier: Tier::Device,
/// }));
///
/// let namespace = Namespace {
///     model: Arc::from("qwen"), lora: None, salt: None, block_size,
///     identity: PromptIdentity::Tokens,
/// };
/// let chain = HashScheme::default().chain(None, &[1, 2, 3, 4], block_size);
/// let overlaps = index.lookup(&namespace, &chain, Moment::START);
/// assert_eq!((overlaps[0].target, overlaps[0].blocks.device), (target, 1));
/// ```
#[derive(Debug)]
pub struct KvIndex {
    core: SharedIndex,
    state: IndexLock,
    streams: MediumStreams,
    scheme: HashScheme,
    /// Held by a save: a second one waits.
    saving: Mutex<()>,
    /// Makes the keys of namespaces unpredictable for clients, which choose salts.
    secret: u64,
}

/// The key of a namespace inside one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamespaceKey(u64);

impl KvIndex {
    /// Creates an empty index.
    pub fn new(settings: IndexSettings) -> Self {
        let secret = |number: u64| xxh3_64_with_seed(&number.to_le_bytes(), settings.secret);
        let sizes = MemorySizes::of(settings.memory_budget);
        let core = SharedIndex::new(
            RunHeads::new(sizes.slabs, sizes.slabs_log2),
            LineChunks::new(sizes.body_chunks, sizes.body_log2),
            BlockTable::new(sizes.segments_log2, [secret(0), secret(1)]),
            // A run itself takes so much memory that these fill up much later.
            BlockTable::new(sizes.segments_log2 - 2, [secret(0), secret(1)]),
        );
        let (scheme, secret) = (settings.scheme, secret(2));
        Self {
            state: IndexLock::new(IndexState::new(settings, &core, secret)),
            core,
            streams: MediumStreams::default(),
            scheme,
            saving: Mutex::new(()),
            secret,
        }
    }

    /// Runs a function on the writer's state: see [`IndexLock::with`].
    pub(crate) fn with<R: Default>(
        &self,
        act: impl FnOnce(&mut IndexState, &SharedIndex) -> R,
    ) -> R {
        self.state.with(&self.core, act)
    }

    /// Registers the model that a target serves; stores of targets without one are ignored. A
    /// target that changes its model loses its blocks.
    pub fn register(&self, target: Target, model: Arc<str>) {
        // During the clear it serves no model, so that no store of the old one comes in between.
        if self.with(|state, _| state.unregister_other(target, &model)) {
            self.clear(target);
        }
        self.with(|state, core| state.register(core, target, model));
    }

    /// Sets the size of a target's own blocks, as long as its events have not shown it. Blocks of
    /// another size in other tiers than the device are cut into blocks of this size.
    pub fn expect_block_size(&self, target: Target, size: BlockSize) {
        self.with(|state, core| state.expect_block_size(core, target, size));
    }

    /// Applies one update of the engine's own stream, for which all media of a tier are one.
    pub fn apply(&self, target: Target, update: &IndexUpdate) -> UpdateOutcome {
        let stream = MediumStream::of_tier(Publisher::Engine, update.tier());
        self.apply_from(target, update, &stream)
    }

    /// Stores blocks named by their plain rolling hashes, the first one behind `parent` (`None`: it
    /// begins a sequence). Source: contract MC13.
    pub fn store_hashes(
        &self,
        target: Target,
        namespace: &Namespace,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        tier: Tier,
    ) -> UpdateOutcome {
        let stream = MediumStream::of_tier(Publisher::Engine, tier);
        self.store_hashes_from(target, namespace, (parent, hashes), &stream)
    }

    /// Removes blocks named by their plain rolling hashes from one tier.
    pub fn remove_hashes(
        &self,
        target: Target,
        namespace: &Namespace,
        hashes: &[SequenceHash],
        tier: Tier,
    ) -> UpdateOutcome {
        let stream = MediumStream::of_tier(Publisher::Engine, tier);
        self.remove_hashes_from(target, namespace, hashes, &stream)
    }

    /// Clears one tier of one namespace of a target, whichever streams filled it.
    pub fn clear_stream(&self, target: Target, namespace: &Namespace, tier: Tier) {
        self.clear_all_streams(target, Some(namespace), tier);
    }

    /// Records a loss in a target's stream that no replay can fill: every block counts as held
    /// once, credit without backing ends, and until the target is cleared its speculative entries
    /// live for [`IndexSettings::unconfirmed_ttl`].
    pub fn mark_loss(&self, target: Target) {
        self.with(|state, core| state.mark_loss(core, target));
    }

    /// Sets whether a target is credited with its announced blocks; by default it is.
    ///
    /// An untrusted target is credited only with our own predictions: the entries of
    /// [`KvIndex::predict`] and [`KvIndex::speculate`]. Its announcements are still applied, so
    /// that they can be compared ([`crate::Overlap::announced`]) and count again once the target is
    /// trusted again. At that moment the predictions are dropped, as they are when the target is
    /// cleared: a cache reported as empty is not expected to hold anything.
    pub fn trust(&self, target: Target, trusted: bool) {
        if self.with(|state, core| state.trust(core, target, trusted)) {
            // Beside the announced blocks, they would outlast the removals.
            self.step_by_step(target, &ClearScope::Promises);
        }
    }

    /// Clears the held and expected blocks of a target; its registration stays. None of them is
    /// credited from the start of the call, and blocks stored meanwhile stay.
    pub fn clear(&self, target: Target) {
        self.retire(target);
        while self.sweep() {}
    }

    /// Starts to clear the held and expected blocks of a target: none of them is credited any more,
    /// and blocks stored from now on stay. The time does not grow with the content.
    /// [`KvIndex::sweep`] frees the memory.
    ///
    /// If the index has its maximum number of targets, the call clears everything before it
    /// returns.
    pub fn retire(&self, target: Target) {
        let retired = self.with(|state, core| {
            self.streams.clear_target(target);
            state.retire(core, target)
        });
        if !retired {
            self.step_by_step(target, &ClearScope::All);
            self.with(|state, _| {
                for tier in Tier::ALL {
                    let in_use = state.uses_tier(target, tier);
                    self.streams.end_clear((target, tier), None, in_use);
                }
            });
        }
    }

    /// Starts to remove a worker with all its ranks and their registrations, as
    /// [`KvIndex::retire`].
    pub fn retire_worker(&self, worker: WorkerId) {
        self.with(|state, core| {
            self.streams.remove_worker(worker);
            state
                .ranks(worker)
                .into_iter()
                .for_each(|target| state.forget(core, target))
        });
    }

    /// Frees a slice of the content that [`KvIndex::retire`] left, some thousand blocks. Returns
    /// whether there may be more.
    pub fn sweep(&self) -> bool {
        self.with(IndexState::sweep)
    }

    /// Removes a worker with all its ranks and their registrations.
    pub fn remove_worker(&self, worker: WorkerId) {
        self.retire_worker(worker);
        while self.sweep() {}
    }

    /// Clears in steps, with the lock free between two of them.
    fn step_by_step(&self, target: Target, what: &ClearScope) {
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.with(|state, core| state.clear(core, target, what, from));
        }
    }
}

#[cfg(test)]
impl KvIndex {
    /// Panics if the writer's state contradicts itself or the structure.
    pub(crate) fn check(&self) {
        self.with(|state, core| state.check(core));
    }
}

/// Returns a moment in the unit of runs, nanoseconds.
fn nanoseconds(moment: Moment) -> u64 {
    u64::try_from(moment.since_start().as_nanos()).unwrap_or(u64::MAX)
}
