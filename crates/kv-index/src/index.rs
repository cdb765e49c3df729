//! The shared face of the index.

use std::{
    io::{self, Read, Write},
    sync::Arc,
    time::Duration,
};

use kv_blocks::{HashScheme, IndexUpdate, Moment, Namespace, SequenceHash, Target, Tier, WorkerId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    ChangeFeed, DumpCursor, DumpRow, ExportCursor, ExportedBlocks, IndexStats, LoadSummary,
    Matches, Overlap, SaveSummary, SnapshotError, SpeculationId, TargetDigest, TargetSlot,
    UpdateOutcome,
    arena::{LINE_BYTES, LineChunks},
    index_lock::IndexLock,
    lookup::SharedIndex,
    namespaces,
    overlaps::overlaps,
    runs::{MAX_RUNS, RunHeads},
    snapshot,
    state::{ClearScope, IndexState, SpeculationKind},
    table::BlockTable,
};

/// How an index is built.
#[derive(Clone, Debug)]
pub struct IndexSettings {
    /// How tokens become hashes.
    pub scheme: HashScheme,
    /// Bytes the index may take; at the limit unconfirmed entries go first, then the oldest ends of chains, which are
    /// counted as shed.
    pub memory_budget: u64,
    /// Speculative and predicted entries at most; beyond it the least recently used are pruned.
    pub prediction_max_blocks: u64,
    /// Where a target's stream has a hole, a speculative entry lives at least so long: whoever lost one announcement may
    /// lose the one that would confirm it, and so much of what it computed would be forgotten.
    pub unconfirmed_ttl: Duration,
    /// Share of `prediction_max_blocks` that pruning leaves, 0 to 1.
    pub prune_target_ratio: f64,
    /// A random number. Whoever knows it can choose prompts, salts and names that all meet in one place of a table; 0 is
    /// for tests.
    pub secret: u64,
}

impl Default for IndexSettings {
    fn default() -> Self {
        Self {
            scheme: HashScheme::default(),
            memory_budget: 512 << 20,
            prediction_max_blocks: 1 << 20,
            unconfirmed_ttl: Duration::from_secs(120),
            prune_target_ratio: 0.8,
            secret: 0,
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
    core: SharedIndex,
    state: IndexLock,
    /// Keys of namespaces cannot be foreseen by those who choose salts.
    secret: u64,
}

/// The key of a namespace inside one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamespaceKey(u64);

impl KvIndex {
    /// An empty index.
    pub fn new(settings: IndexSettings) -> Self {
        let secret = |number: u64| xxh3_64_with_seed(&number.to_le_bytes(), settings.secret);
        let sizes = MemorySizes::of(settings.memory_budget);
        let core = SharedIndex::new(
            RunHeads::new(sizes.slabs, sizes.slabs_log2),
            LineChunks::new(sizes.body_chunks, sizes.body_log2),
            BlockTable::new(sizes.segments_log2, [secret(0), secret(1)]),
            // A run takes so much itself that these fill up much later.
            BlockTable::new(sizes.segments_log2 - 2, [secret(0), secret(1)]),
        );
        let secret = secret(2);
        Self {
            state: IndexLock::new(IndexState::new(settings, &core, secret)),
            core,
            secret,
        }
    }

    /// Does something with the books: see [`Guarded::with`].
    pub(crate) fn with<R: Default>(
        &self,
        act: impl FnOnce(&mut IndexState, &SharedIndex) -> R,
    ) -> R {
        self.state.with(&self.core, act)
    }

    /// Says which model a target serves; stores of targets without one are ignored. A target that changes its model
    /// forgets what it held.
    pub fn register(&self, target: Target, model: Arc<str>) {
        // While it is being cleared it serves no model, so that no store of the old one comes in between.
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

    /// Blocks became reusable that are named by their plain rolling hashes, the first one behind `parent` (`None`: it
    /// begins a sequence). Source: contract MC13.
    pub fn store_hashes(
        &self,
        target: Target,
        namespace: &Namespace,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        tier: Tier,
    ) -> UpdateOutcome {
        self.with(|books, core| books.store_hashes(core, target, namespace, parent, hashes, tier))
    }

    /// Blocks that are named by their plain rolling hashes are gone from one tier.
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

    /// Forgets what a target holds in one tier of one namespace. Source: contract MC9.
    pub fn clear_stream(&self, target: Target, namespace: &Namespace, tier: Tier) {
        self.step_by_step(target, &ClearScope::Stream(tier, namespace.clone()));
    }

    /// Says that a target's stream has a hole that nobody will fill: what it holds more than once counts as held once, what
    /// is on trust is over, and until the target is cleared its speculative entries live for
    /// [`IndexSettings::unconfirmed_ttl`].
    pub fn mark_loss(&self, target: Target) {
        self.with(|books, core| books.mark_loss(core, target));
    }

    /// Whether a target is credited with what its stream announces; it is until somebody says otherwise.
    ///
    /// One that is not goes by our own decisions alone: by what [`KvIndex::predict`] and [`KvIndex::speculate`] entered.
    /// What it announces is still kept, so that it can be compared ([`Overlap::announced`]) and counts again once the
    /// target is trusted again. What was predicted is forgotten then, as it is when the target is cleared: a cache said to
    /// be empty is not expected to hold anything.
    pub fn trust(&self, target: Target, trusted: bool) {
        if self.with(|books, core| books.trust(core, target, trusted)) {
            // Beside what is announced it would outlast the removals.
            self.step_by_step(target, &ClearScope::Promises);
        }
    }

    /// Forgets everything a target holds or is expected to hold; its registration stays. Nothing of it is credited from the
    /// beginning on, and what is stored meanwhile stays.
    pub fn clear(&self, target: Target) {
        self.retire(target);
        while self.sweep() {}
    }

    /// Begins to forget everything a target holds or is expected to hold: nothing of it is credited any more, and what is
    /// stored from now on stays. Takes no longer the more there is. The memory is freed by [`KvIndex::sweep`].
    ///
    /// With as many targets as an index can have, it forgets all of it before it returns.
    pub fn retire(&self, target: Target) {
        if !self.with(|books, core| books.retire(core, target)) {
            self.step_by_step(target, &ClearScope::All);
        }
    }

    /// Begins to forget a worker with all its ranks and their registrations, as [`KvIndex::retire`] does.
    pub fn retire_worker(&self, worker: WorkerId) {
        self.with(|books, core| {
            books
                .ranks(worker)
                .into_iter()
                .for_each(|target| books.forget(core, target))
        });
    }

    /// Frees a slice of what [`KvIndex::retire`] left, some thousand blocks. Returns whether there may be more.
    pub fn sweep(&self) -> bool {
        self.with(IndexState::sweep)
    }

    /// Forgets a worker with all its ranks and their registrations.
    pub fn remove_worker(&self, worker: WorkerId) {
        self.retire_worker(worker);
        while self.sweep() {}
    }

    /// Forgets in steps, with the lock free between two of them.
    fn step_by_step(&self, target: Target, what: &ClearScope) {
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.with(|books, core| books.clear(core, target, what, from));
        }
    }

    /// The key of a namespace, for lookups. Creates no state.
    pub fn namespace_key(&self, namespace: &Namespace) -> NamespaceKey {
        NamespaceKey(namespaces::key(namespace, self.secret))
    }

    /// The slot of a target, if the index has heard of it.
    pub fn slot(&self, target: Target) -> Option<TargetSlot> {
        self.with(|books, _| books.find(target)).map(TargetSlot)
    }

    /// Whose slot it is; nobody's once its worker was removed.
    pub fn target(&self, slot: TargetSlot) -> Option<Target> {
        self.core.target(slot.0)
    }

    /// Who holds how much of `chain`. Replaces what is in `matches`, whose buffers are reused.
    ///
    /// Takes no lock and writes nothing but `matches`. Targets that are not trusted are left out.
    pub fn lookup_into(
        &self,
        space: NamespaceKey,
        chain: &[SequenceHash],
        now: Moment,
        matches: &mut Matches,
    ) {
        self.core.lookup(space.0, chain, nanoseconds(now), matches);
    }

    /// Several lookups at once, so that their cache misses overlap.
    ///
    /// # Panics
    ///
    /// If there are not as many answers as chains.
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

    /// Every target that holds at least the first block of `chain`, in the order of targets.
    pub fn lookup(
        &self,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
    ) -> Vec<Overlap> {
        overlaps(
            &self.core,
            self.namespace_key(namespace).0,
            chain,
            nanoseconds(now),
        )
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
    ) -> SpeculationId {
        self.promise(
            target,
            namespace,
            chain,
            now,
            (SpeculationKind::Speculative, ttl),
        )
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
    ) -> SpeculationId {
        self.promise(
            target,
            namespace,
            chain,
            now,
            (SpeculationKind::Predicted, ttl),
        )
    }

    fn promise(
        &self,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
        (kind, ttl): (SpeculationKind, Duration),
    ) -> SpeculationId {
        let now = nanoseconds(now);
        self.with(|books, core| books.speculate(core, target, namespace, chain, now, (kind, ttl)))
    }

    /// Takes back what [`KvIndex::speculate`] or [`KvIndex::predict`] entered, because the request was not taken there.
    /// What was confirmed since, or renewed for another request, stays.
    pub fn retract(&self, promised: SpeculationId) {
        self.with(|books, core| books.retract(core, &promised));
    }

    /// Forgets unconfirmed entries whose time is over. Lookups do not count them in any case: this is for the memory, and
    /// for [`KvIndex::stats`]. Also ends a pruning that is under way.
    pub fn expire(&self, now: Moment) {
        while self.with(|books, core| books.sweep_expired(core, nanoseconds(now))) {}
    }

    /// Confirmed blocks of a target per tier, in the order of [`Tier::ALL`]; a block in two tiers counts in both.
    pub fn blocks_per_tier(&self, target: Target) -> [u64; 4] {
        self.with(|books, _| books.blocks_per_tier(target))
    }

    /// Follows what changes from now on; `None` after the index was given up. Until the last one of those is dropped each
    /// change takes some microseconds more. What [`KvIndex::load`] takes over is not told of.
    pub fn subscribe(&self) -> Option<ChangeFeed> {
        self.with(|books, _| Some(books.subscribe()))
    }

    /// The next stretches of what targets that are `wanted` hold, each after what is in front of it; `None` after the last.
    /// Begin with `StandingPlace::default()` and go on until then.
    ///
    /// Each call takes the lock for about four thousand blocks, and what is in front of them where nobody wanted holds that;
    /// it is free in between. To build up another index that ends with the same content, also while this one changes:
    /// [`KvIndex::follow`] first; after each piece take all changes there are, and leave out of the piece whatever block of a
    /// target and tier any of them so far was about, but for the place that it gives to others; then apply the piece, then the
    /// changes, and take back what was there for the place alone.
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

    /// Totals.
    pub fn stats(&self) -> IndexStats {
        self.with(|books, _| books.stats())
    }

    /// Digests of every target and tier that holds something, in the order of targets and tiers.
    ///
    /// Reads every block once, under the lock: updates wait, about 5 ns a block; lookups do not.
    pub fn digest(&self) -> Vec<TargetDigest> {
        self.with(|books, core| books.digest(core))
    }

    /// Writes what is confirmed, for [`KvIndex::load`]; `docs/snapshot-format.md` says what that is. Contains cache salts in
    /// clear, so `to` must be readable by its owner only (mode 0600).
    ///
    /// The lock is held while the content is put together in memory, about as many bytes as are written: updates wait for
    /// some 40 ns a block, lookups do not. It is free again before anything is written to `to`.
    ///
    /// # Errors
    ///
    /// What `to` answers; then what it got is no snapshot.
    pub fn save(&self, to: &mut dyn Write) -> io::Result<SaveSummary> {
        let mut file = Vec::new();
        let saved = self
            .with(|books, core| Some(books.save(core, &mut file)))
            .ok_or_else(given_up)??;
        to.write_all(&file)?;
        to.flush()?;
        Ok(saved)
    }

    /// Takes over what [`KvIndex::save`] wrote, and registers its targets; those that are registered for another model
    /// already hold nothing of it. What has no room is left out, and counted as shed.
    ///
    /// Everything is read and checked before the lock is taken; the content takes memory of its own meanwhile, which is
    /// bounded by the memory budget as the bytes read are. Then updates wait for some 300 to 700 ns a block, lookups
    /// do not.
    ///
    /// # Errors
    ///
    /// A snapshot is taken over as a whole or refused: see [`SnapshotError`]. An index with blocks in it takes none.
    pub fn load(&self, from: &mut dyn Read) -> Result<LoadSummary, SnapshotError> {
        let (scheme, limit) = self
            .with(|books, _| Some(books.loadable()))
            .ok_or_else(given_up)??;
        let content = snapshot::read(from, scheme, limit)?;
        self.with(|books, core| Some(books.load(core, &content)))
            .ok_or_else(given_up)?
    }

    /// The next of the confirmed memberships, in no particular order; `None` after the last. Begin with
    /// `DumpPlace::default()` and go on until then.
    ///
    /// Each call takes the lock for about a thousand rows (all of one block come together) and gives it back, so a dump in
    /// pieces is not one instant: what is there from beginning to end comes exactly once, what changes meanwhile may come
    /// or not.
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
    /// Panics where the books contradict each other or the structure.
    pub(crate) fn check(&self) {
        self.with(|books, core| books.check(core));
    }
}

/// Why there is nothing to save or load.
fn given_up() -> io::Error {
    io::Error::other(
        "the index was given up after a panic in it, which was logged: start the router again",
    )
}

/// A moment as runs know it.
fn nanoseconds(moment: Moment) -> u64 {
    u64::try_from(moment.since_start().as_nanos()).unwrap_or(u64::MAX)
}

/// How memory is cut for a budget.
struct MemorySizes {
    body_log2: u32,
    body_chunks: usize,
    slabs_log2: u32,
    slabs: usize,
    segments_log2: u32,
}

impl MemorySizes {
    fn of(budget: u64) -> Self {
        // Chunks of huge pages; of less where the budget is small, so that it can be used up.
        let body_log2 = (budget / LINE_BYTES / 64).max(1).ilog2().clamp(4, 15);
        let slabs_log2 = body_log2.saturating_sub(6).max(2);
        let lines = usize::try_from(budget / LINE_BYTES).unwrap_or(usize::MAX);
        Self {
            body_log2,
            body_chunks: (lines >> body_log2).clamp(1, (u32::MAX >> body_log2) as usize),
            slabs_log2,
            // Of a run there are at least a head and a line of hashes.
            slabs: (lines / 2).min(MAX_RUNS as usize).div_ceil(1 << slabs_log2),
            // Few, so that the directory stays in the cache nearest to the processor; but so many that a segment of a full
            // table takes no more than half a chunk.
            segments_log2: {
                let few = (budget >> 11).max(1).ilog2().clamp(4, 7);
                (budget >> 19)
                    .max(1)
                    .ilog2()
                    .clamp(few, 10)
                    .max((budget >> 21).max(1).ilog2())
                    .min(16)
            },
        }
    }
}
