//! The public interface of the index.

use std::{
    io::{self, Read, Write},
    sync::Arc,
    time::Duration,
};

use kv_blocks::{IndexUpdate, Moment, Namespace, SequenceHash, Target, Tier, WorkerId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    ChangeFeed, DumpCursor, DumpRow, ExportCursor, ExportedBlocks, IndexSettings, IndexStats,
    LoadSummary, Matches, Overlap, SaveSummary, SnapshotError, SpeculationId, TargetDigest,
    TargetSlot, UpdateOutcome,
    arena::LineChunks,
    index_lock::IndexLock,
    lookup::{ChainQuery, CreditSource, SharedIndex},
    memory_sizes::MemorySizes,
    namespaces,
    orphans::HashKeyedBlocks,
    overlaps::overlaps,
    runs::RunHeads,
    snapshot,
    state::{ClearScope, ExpectedChain, IndexState, SpeculationKind},
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
///     salt: None, tier: Tier::Device,
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
        let secret = secret(2);
        Self {
            state: IndexLock::new(IndexState::new(settings, &core, secret)),
            core,
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
        if self.with(|books, _| books.unregister_other(target, &model)) {
            self.clear(target);
        }
        self.with(|books, core| books.register(core, target, model));
    }

    /// Applies one update of a target's stream.
    pub fn apply(&self, target: Target, update: &IndexUpdate) -> UpdateOutcome {
        match update {
            IndexUpdate::Stored(stored) => {
                self.with(|books, core| books.store(core, target, stored))
            }
            IndexUpdate::Removed(removed) => {
                self.with(|books, core| books.remove(core, target, removed))
            }
            IndexUpdate::Named(named) => {
                self.with(|books, core| books.store_named(core, target, named))
            }
            IndexUpdate::Cleared => {
                self.step_by_step(target, &ClearScope::Tier(Tier::Device));
                UpdateOutcome {
                    applied: 1,
                    ..UpdateOutcome::default()
                }
            }
        }
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
        let blocks = HashKeyedBlocks {
            namespace: namespace.clone(),
            space: self.namespace_key(namespace).0,
            parent,
            hashes: hashes.to_vec(),
            tier,
        };
        self.with(|books, core| books.store_hashes(core, target, blocks))
    }

    /// Removes blocks named by their plain rolling hashes from one tier.
    pub fn remove_hashes(
        &self,
        target: Target,
        namespace: &Namespace,
        hashes: &[SequenceHash],
        tier: Tier,
    ) -> UpdateOutcome {
        self.with(|books, core| {
            books.remove_hashes(core, target, self.namespace_key(namespace).0, hashes, tier)
        })
    }

    /// Clears one tier of one namespace of a target. Source: contract MC9.
    pub fn clear_stream(&self, target: Target, namespace: &Namespace, tier: Tier) {
        self.step_by_step(target, &ClearScope::Stream(tier, namespace.clone()));
    }

    /// Records a loss in a target's stream that no replay can fill: every block counts as held
    /// once, credit without backing ends, and until the target is cleared its speculative entries
    /// live for [`IndexSettings::unconfirmed_ttl`].
    pub fn mark_loss(&self, target: Target) {
        self.with(|books, core| books.mark_loss(core, target));
    }

    /// Sets whether a target is credited with its announced blocks; by default it is.
    ///
    /// An untrusted target is credited only with our own predictions: the entries of
    /// [`KvIndex::predict`] and [`KvIndex::speculate`]. Its announcements are still applied, so
    /// that they can be compared ([`Overlap::announced`]) and count again once the target is
    /// trusted again. At that moment the predictions are dropped, as they are when the target is
    /// cleared: a cache reported as empty is not expected to hold anything.
    pub fn trust(&self, target: Target, trusted: bool) {
        if self.with(|books, core| books.trust(core, target, trusted)) {
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
        if !self.with(|books, core| books.retire(core, target)) {
            self.step_by_step(target, &ClearScope::All);
        }
    }

    /// Starts to remove a worker with all its ranks and their registrations, as
    /// [`KvIndex::retire`].
    pub fn retire_worker(&self, worker: WorkerId) {
        self.with(|books, core| {
            books
                .ranks(worker)
                .into_iter()
                .for_each(|target| books.forget(core, target))
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
            next = self.with(|books, core| books.clear(core, target, what, from));
        }
    }

    /// Returns the key of a namespace, for lookups. Creates no state.
    pub fn namespace_key(&self, namespace: &Namespace) -> NamespaceKey {
        NamespaceKey(namespaces::key(namespace, self.secret))
    }

    /// Returns the slot of a target, if the target has one.
    pub fn slot(&self, target: Target) -> Option<TargetSlot> {
        self.with(|books, _| books.find(target)).map(TargetSlot)
    }

    /// Returns the target of a slot; `None` once its worker was removed.
    pub fn target(&self, slot: TargetSlot) -> Option<Target> {
        self.core.target(slot.0)
    }

    /// Looks up how much of `chain` each target holds. Replaces the content of `matches`, whose
    /// buffers are reused.
    ///
    /// Takes no lock and writes nothing but `matches`. Untrusted targets are left out.
    pub fn lookup_into(
        &self,
        space: NamespaceKey,
        chain: &[SequenceHash],
        now: Moment,
        matches: &mut Matches,
    ) {
        let query = ChainQuery {
            space: space.0,
            hashes: chain,
            now: nanoseconds(now),
        };
        self.core.lookup(query, CreditSource::Trusted, matches);
    }

    /// Does several lookups at once, so that their cache misses overlap.
    ///
    /// # Panics
    ///
    /// If the numbers of answers and chains differ.
    pub fn lookup_batch(
        &self,
        space: NamespaceKey,
        chains: &[&[SequenceHash]],
        now: Moment,
        matches: &mut [Matches],
    ) {
        self.core
            .lookup_batch(space.0, chains, nanoseconds(now), matches);
    }

    /// Returns every target that holds at least the first block of `chain`, in the order of
    /// targets.
    pub fn lookup(
        &self,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
    ) -> Vec<Overlap> {
        let query = ChainQuery {
            space: self.namespace_key(namespace).0,
            hashes: chain,
            now: nanoseconds(now),
        };
        overlaps(&self.core, query)
    }

    /// Adds speculative entries for `chain` on `target` until `now + ttl`, because a request was
    /// just sent there whose events will confirm them. Blocks that the target is known to hold are
    /// left alone, unless the target is untrusted ([`KvIndex::trust`]).
    pub fn speculate(
        &self,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
        ttl: Duration,
    ) -> SpeculationId {
        let expected = ExpectedChain {
            kind: SpeculationKind::Speculative,
            namespace,
            hashes: chain,
            since: nanoseconds(now),
            ttl,
        };
        self.with(|books, core| books.speculate(core, target, expected))
    }

    /// Adds predicted entries, for a target without trustworthy events: nothing will confirm them,
    /// so `ttl` is longer. Only the statistics tell the two kinds apart.
    pub fn predict(
        &self,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
        ttl: Duration,
    ) -> SpeculationId {
        let expected = ExpectedChain {
            kind: SpeculationKind::Predicted,
            namespace,
            hashes: chain,
            since: nanoseconds(now),
            ttl,
        };
        self.with(|books, core| books.speculate(core, target, expected))
    }

    /// Takes back the entries of [`KvIndex::speculate`] or [`KvIndex::predict`], because the target
    /// did not take the request. Entries confirmed since, or renewed for another request, stay.
    pub fn retract(&self, promised: SpeculationId) {
        self.with(|books, core| books.retract(core, &promised));
    }

    /// Removes expired unconfirmed entries. Lookups never count them: this call frees their memory
    /// and corrects [`KvIndex::stats`]. Also finishes a pruning that is under way.
    pub fn expire(&self, now: Moment) {
        while self.with(|books, core| books.sweep_expired(core, nanoseconds(now))) {}
    }

    /// Returns the confirmed blocks of a target per tier, in the order of [`Tier::ALL`]; a block in
    /// two tiers counts in both.
    pub fn blocks_per_tier(&self, target: Target) -> [u64; 4] {
        self.with(|books, _| books.blocks_per_tier(target))
    }

    /// Subscribes to the changes from now on; `None` after the index was abandoned. While there is
    /// a subscriber, each change takes some microseconds more. [`KvIndex::load`] publishes no
    /// changes.
    pub fn subscribe(&self) -> Option<ChangeFeed> {
        self.with(|books, _| Some(books.subscribe()))
    }

    /// Returns the next stretches that `wanted` targets hold, each after the blocks in front of it;
    /// `None` after the last. Begin with `ExportCursor::default()` and go on until then.
    ///
    /// Each call takes the lock for about four thousand blocks, plus the blocks in front of them
    /// that no wanted target holds; the lock is free in between. To build another index that ends
    /// with the same content, also while this one changes: [`KvIndex::subscribe`] first; after each
    /// piece take all pending changes, and leave out of the piece every block of a target and tier
    /// that any change so far was about, except for the position that it gives to other blocks;
    /// then apply the piece, then the changes, and remove the blocks that were added for their
    /// position alone.
    pub fn export(
        &self,
        place: &mut ExportCursor,
        wanted: &dyn Fn(Target) -> bool,
    ) -> Option<Vec<ExportedBlocks>> {
        loop {
            let told = self.with(|books, core| books.export(core, place, wanted))?;
            if !told.is_empty() {
                return Some(told);
            }
        }
    }

    /// Returns totals.
    pub fn stats(&self) -> IndexStats {
        self.with(|books, _| books.stats())
    }

    /// Returns digests of every target and tier that holds a block, in the order of targets and
    /// tiers.
    ///
    /// Reads every block once, under the lock: updates wait, about 5 ns a block; lookups do not.
    pub fn digest(&self) -> Vec<TargetDigest> {
        self.with(|books, core| books.digest(core))
    }

    /// Writes the confirmed content, for [`KvIndex::load`]; `docs/snapshot-format.md` has the
    /// format. Contains cache salts in clear, so `to` must be readable by its owner only (mode
    /// 0600).
    ///
    /// The lock is held while the content is assembled in memory, about as many bytes as are
    /// written: updates wait for some 40 ns a block, lookups do not. It is free again before the
    /// first write to `to`.
    ///
    /// # Errors
    ///
    /// The errors of `to`; the bytes written so far are no snapshot then.
    pub fn save(&self, to: &mut dyn Write) -> io::Result<SaveSummary> {
        let mut file = Vec::new();
        let saved = self
            .with(|books, core| Some(books.save(core, &mut file)))
            .ok_or_else(given_up)??;
        to.write_all(&file)?;
        to.flush()?;
        Ok(saved)
    }

    /// Loads the content that [`KvIndex::save`] wrote, and registers its targets; a target that is
    /// already registered for another model gets none of it. Content without room is left out and
    /// counted as shed.
    ///
    /// Everything is read and checked before the lock is taken; meanwhile the content takes memory
    /// of its own, bounded by the memory budget as the bytes read are. Then updates wait for some
    /// 300 to 700 ns a block, lookups do not.
    ///
    /// # Errors
    ///
    /// A snapshot is loaded as a whole or refused: see [`SnapshotError`]. An index with blocks in
    /// it refuses every snapshot.
    pub fn load(&self, from: &mut dyn Read) -> Result<LoadSummary, SnapshotError> {
        let (scheme, limit) = self
            .with(|books, _| Some(books.loadable()))
            .ok_or_else(given_up)??;
        let content = snapshot::read(from, scheme, limit)?;
        self.with(|books, core| Some(books.load(core, &content)))
            .ok_or_else(given_up)?
    }

    /// Returns the next confirmed memberships, in no particular order; `None` after the last. Begin
    /// with `DumpCursor::default()` and go on until then.
    ///
    /// Each call takes the lock for about a thousand rows (all of one block come together) and
    /// releases it, so a dump in pieces is not one instant: a membership that exists from beginning
    /// to end comes exactly once, one that changes meanwhile may come or not.
    pub fn dump(&self, place: &mut DumpCursor) -> Option<Vec<DumpRow>> {
        loop {
            let rows = self.with(|books, core| books.dump(core, place))?;
            if !rows.is_empty() {
                return Some(rows);
            }
        }
    }
}

#[cfg(test)]
impl KvIndex {
    /// Panics if the writer's state contradicts itself or the structure.
    pub(crate) fn check(&self) {
        self.with(|books, core| books.check(core));
    }
}

/// Returns the error of an abandoned index.
fn given_up() -> io::Error {
    io::Error::other(
        "the index was given up after a panic in it, which was logged: start the router again",
    )
}

/// Returns a moment in the unit of runs, nanoseconds.
fn nanoseconds(moment: Moment) -> u64 {
    u64::try_from(moment.since_start().as_nanos()).unwrap_or(u64::MAX)
}
