//! Streams outside the device: which of them holds which block of a tier.
//!
//! A block is in a tier of a target as long as one stream holds it there. Source: contract MC8, MC9.
//! Nearly always a single stream fills a tier. So the first one whose medium has a known name is kept
//! by its name alone, the tier's *first stream*: what no other stream is known to hold is its. Blocks
//! of further streams, and of media with unknown names, are in one set for each stream, beside the
//! index. Lookups do not read them; reports and changes of their tier do.
//!
//! The sets are not in the index's memory budget: at the bound they take some 72 MB, and at most 164
//! MB if many blocks were removed since (a set shrinks when less than a quarter of it is used). A block beyond
//! a bound counts as the first stream's, and the tier as incomplete: there a block leaves with the
//! first removal, and a clear of a further stream empties the tier. A block too few costs less than
//! one too many.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kv_blocks::{SequenceHash, Target, Tier, WorkerId};
use parking_lot::RwLock;

mod stream;
mod tier;

pub use self::stream::{MediumStream, Publisher};
pub(crate) use self::stream::{StreamName, StreamRole};
use self::tier::{TierStreams, is_in};

/// Most blocks of streams beside the first one of their tier; those of them that the first one holds,
/// too, are kept once more.
const MAX_BLOCKS: usize = 1 << 20;
/// A block: key of its namespace, and its hash.
pub(crate) type StreamBlock = (u64, u64);

/// A tier of a target.
type TargetTier = (Target, Tier);

/// The effect of a stream's removals.
#[derive(Debug, Default)]
pub(crate) struct Departure {
    /// Blocks that stay in the tier.
    pub(crate) staying: HashSet<StreamBlock>,
    /// Those of them that the stream held.
    pub(crate) released: HashSet<StreamBlock>,
}

/// How much of a prefix is on media with unknown names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelledPrefix {
    /// Blocks on each medium, by its name as first sent.
    pub labels: BTreeMap<Arc<str>, u32>,
    /// Blocks of the disk tier that are on no other medium.
    pub blocks: u32,
}

/// All tiers with streams that have names.
#[derive(Debug, Default)]
struct StreamTable {
    tiers: BTreeMap<TargetTier, TierStreams>,
    /// Blocks in the sets of streams.
    blocks: usize,
    /// Tiers with blocks from a snapshot, which has no streams, until the tier is emptied.
    loaded: BTreeSet<TargetTier>,
}

impl StreamTable {
    /// Returns whether a tier may have blocks of a stream that are in no set of it.
    fn is_incomplete(&self, key: &TargetTier) -> bool {
        match self.tiers.get(key) {
            Some(streams) => streams.incomplete,
            None => self.loaded.contains(key),
        }
    }
}

/// The known streams of a tier.
#[derive(Debug, Default)]
pub(crate) struct KnownStreams {
    pub(crate) names: Vec<StreamName>,
    /// Whether it may have blocks of others.
    pub(crate) incomplete: bool,
}

/// The streams of all targets.
#[derive(Debug, Default)]
pub(crate) struct MediumStreams {
    /// Whether any stream ever had a name.
    used: AtomicBool,
    /// Changed under the index's lock only, together with the tier.
    table: RwLock<StreamTable>,
}

impl MediumStreams {
    /// Notes tiers with blocks from a snapshot: their streams are unknown.
    pub(crate) fn note_load(&self, tiers: &[TargetTier]) {
        let mut table = self.table.write();
        for key in tiers {
            table.loaded.insert(*key);
            if let Some(streams) = table.tiers.get_mut(key) {
                streams.incomplete = true;
            }
        }
    }

    /// Returns the part of a stream in its tier.
    pub(crate) fn role(&self, target: Target, stream: &MediumStream<'_>) -> StreamRole {
        if stream.is_engine_tier() && !self.used.load(Ordering::Relaxed) {
            return StreamRole::Alone;
        }
        let table = self.table.read();
        let Some(streams) = table.tiers.get(&(target, stream.tier)) else {
            return if stream.is_engine_tier() {
                StreamRole::Alone
            } else {
                StreamRole::Further
            };
        };
        streams.role(stream)
    }

    /// Returns the part of a stream that is about to store blocks. `is_in_use`: whether its tier has
    /// any; they are the engine's if no stream with a name stored before.
    pub(crate) fn enter(
        &self,
        target: Target,
        stream: &MediumStream<'_>,
        is_in_use: impl FnOnce() -> bool,
    ) -> StreamRole {
        if stream.is_engine_tier() && !self.used.load(Ordering::Relaxed) {
            return StreamRole::Alone;
        }
        let key = (target, stream.tier);
        let table = self.table.read();
        let known = table.tiers.get(&key).map(|streams| {
            let becomes_first = streams.first.is_none() && !stream.unlisted;
            (!becomes_first).then(|| streams.role(stream))
        });
        let loaded = table.loaded.contains(&key);
        drop(table);
        match known {
            Some(Some(role)) => return role,
            None if stream.is_engine_tier() => return StreamRole::Alone,
            _ => {}
        }
        let in_use = is_in_use();
        let engines = known.is_none() && in_use && !loaded;
        self.used.store(true, Ordering::Relaxed);
        let mut table = self.table.write();
        let streams = table.tiers.entry(key).or_insert_with(|| TierStreams {
            incomplete: loaded && in_use,
            ..TierStreams::default()
        });
        if streams.first.is_none() && (engines || !stream.unlisted) {
            let engine = MediumStream::of_tier(Publisher::Engine, stream.tier);
            streams.first = Some(StreamName::of(if engines { &engine } else { stream }));
        }
        streams.role(stream)
    }

    /// Returns those of the blocks in a tier that only other streams than this one are known to hold.
    pub(crate) fn foreign(
        &self,
        target: Target,
        stream: &MediumStream<'_>,
        held: &HashSet<StreamBlock>,
    ) -> HashSet<StreamBlock> {
        let table = self.table.read();
        let Some(streams) = table.tiers.get(&(target, stream.tier)) else {
            return HashSet::new();
        };
        let foreign = held.iter().filter(|block| !streams.holds(stream, block));
        foreign.copied().collect()
    }

    /// Notes blocks that a stream beside others has stored. `held`: those that were in the tier
    /// before.
    pub(crate) fn stored(
        &self,
        target: Target,
        stream: &MediumStream<'_>,
        blocks: &[StreamBlock],
        held: &HashSet<StreamBlock>,
    ) {
        self.change((target, stream.tier), |streams, room| {
            if streams.is_first(stream) {
                let shared = blocks.iter().filter(|block| streams.is_in_a_set(block));
                let shared: Vec<_> = shared.copied().collect();
                streams.with_first.extend(shared);
            } else {
                streams.add_further(stream, blocks, held, room);
            }
        });
    }

    /// Notes that a stream may have stored blocks that are in no set.
    pub(crate) fn note_unknown_blocks(&self, target: Target, stream: &MediumStream<'_>) {
        self.change((target, stream.tier), |streams, _| {
            streams.incomplete |= !streams.is_first(stream);
        });
    }

    /// Notes that blocks left the medium of a stream beside others.
    pub(crate) fn removed(
        &self,
        target: Target,
        stream: &MediumStream<'_>,
        blocks: &[StreamBlock],
    ) -> Departure {
        let mut table = self.table.write();
        let key = (target, stream.tier);
        let loaded = table.loaded.contains(&key);
        let Some(streams) = table.tiers.get_mut(&key) else {
            // It has stored nothing, unless before the snapshot.
            let staying = blocks.iter().filter(|_| !loaded);
            return Departure {
                staying: staying.copied().collect(),
                released: HashSet::new(),
            };
        };
        let before = streams.len();
        let mut departure = Departure::default();
        for block in blocks {
            let (held, held_by_others) = streams.leave(stream, block);
            let stays = held_by_others || !held && !streams.incomplete && !streams.is_first(stream);
            if stays {
                departure.staying.insert(*block);
                departure.released.extend(held.then_some(*block));
            }
        }
        let freed = before - streams.tidy();
        table.blocks -= freed;
        departure
    }

    /// Notes that a chunk with these blocks left the medium of a stream; returns those that stay in
    /// the tier. The index knows the blocks of a chunk: what no other stream holds leaves.
    pub(crate) fn removed_chunk(
        &self,
        target: Target,
        stream: &MediumStream<'_>,
        blocks: &[StreamBlock],
    ) -> HashSet<StreamBlock> {
        self.change((target, stream.tier), |streams, _| {
            let mut staying = HashSet::new();
            for block in blocks {
                let (_, stays) = streams.leave(stream, block);
                staying.extend(stays.then_some(*block));
            }
            streams.tidy();
            staying
        })
    }

    /// Returns all blocks of a further stream, or those of one namespace. `None`: there may be others.
    pub(crate) fn blocks_of(
        &self,
        target: Target,
        space: Option<u64>,
        stream: &MediumStream<'_>,
    ) -> Option<Vec<StreamBlock>> {
        let (table, key) = (self.table.read(), (target, stream.tier));
        let known = table.tiers.get(&key);
        (!table.is_incomplete(&key))
            .then(|| known.map_or_else(Vec::new, |streams| streams.blocks_of(stream, space)))
    }

    /// Takes the first stream's mark from all blocks of a tier, or from those of one namespace.
    pub(crate) fn clear_marks(&self, key: TargetTier, space: Option<u64>) {
        self.change(key, |streams, _| streams.clear_marks(space));
    }

    /// Forgets the blocks of all streams of a tier that is about to be emptied, or only those of one
    /// namespace.
    pub(crate) fn clear(&self, key: TargetTier, space: Option<u64>) {
        if !self.used.load(Ordering::Relaxed) {
            return;
        }
        self.change(key, |streams, _| {
            for further in &mut streams.further {
                further.blocks.retain(|block| !is_in(space, block));
            }
            streams.clear_marks(space);
            streams.tidy();
        });
    }

    /// Notes that a tier was emptied in steps, or one namespace of it. `in_use`: whether it has
    /// blocks. What streams stored between the steps may have been cleared, too.
    pub(crate) fn end_clear(&self, key: TargetTier, space: Option<u64>, in_use: bool) {
        if !in_use {
            let mut table = self.table.write();
            table.loaded.remove(&key);
            let emptied = table.tiers.remove(&key);
            table.blocks -= emptied.map_or(0, |streams| streams.len());
            return;
        }
        self.change(key, |streams, _| {
            streams.clear_marks(space);
            streams.incomplete |= streams.any_in(space);
        });
    }

    /// Forgets all streams of a target.
    pub(crate) fn clear_target(&self, target: Target) {
        for tier in Tier::ALL {
            self.end_clear((target, tier), None, false);
        }
    }

    /// Forgets all streams of a worker's targets.
    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        let mut table = self.table.write();
        table.tiers.retain(|(target, _), _| target.worker != worker);
        table.loaded.retain(|(target, _)| target.worker != worker);
        table.blocks = table.tiers.values().map(TierStreams::len).sum();
    }

    /// Returns the known streams of a tier.
    pub(crate) fn known(&self, key: TargetTier) -> KnownStreams {
        let table = self.table.read();
        let incomplete = table.is_incomplete(&key);
        let names = table.tiers.get(&key).map(|streams| {
            let further = streams.further.iter().map(|further| &further.name);
            streams.first.iter().chain(further).cloned().collect()
        });
        KnownStreams {
            names: names.unwrap_or_default(),
            incomplete,
        }
    }

    /// Notes that a store announces blocks by names of its own: it has a hasher of its own.
    pub(crate) fn note_names(&self, target: Target, stream: &MediumStream<'_>) {
        self.change((target, stream.tier), |streams, _| {
            streams.note_names(stream)
        });
    }

    /// Returns whether all chunks of a tier are its first stream's.
    pub(crate) fn first_has_all_chunks(&self, key: TargetTier) -> bool {
        let table = self.table.read();
        let streams = table.tiers.get(&key);
        streams.is_some_and(TierStreams::first_has_all_chunks)
    }

    pub(crate) fn of_prefix(
        &self,
        target: Target,
        space: u64,
        prefix: &[SequenceHash],
    ) -> LabelledPrefix {
        let mut found = LabelledPrefix::default();
        if !self.used.load(Ordering::Relaxed) {
            return found;
        }
        let table = self.table.read();
        if let Some(streams) = table.tiers.get(&(target, Tier::Disk)) {
            for hash in prefix {
                streams.count_labels(&(space, hash.0), &mut found);
            }
        }
        found
    }

    /// Changes the streams of a tier, if it has any; `act` gets the number of blocks for which there
    /// is room.
    fn change<R: Default>(
        &self,
        key: TargetTier,
        act: impl FnOnce(&mut TierStreams, usize) -> R,
    ) -> R {
        let mut table = self.table.write();
        let room = MAX_BLOCKS.saturating_sub(table.blocks);
        let Some(streams) = table.tiers.get_mut(&key) else {
            return R::default();
        };
        let before = streams.len();
        let done = act(streams, room);
        let after = streams.len();
        table.blocks = table.blocks - before + after;
        done
    }
}

/// Returns blocks of one namespace.
pub(crate) fn in_space(space: u64, hashes: &[SequenceHash]) -> Vec<StreamBlock> {
    hashes.iter().map(|hash| (space, hash.0)).collect()
}

#[cfg(test)]
mod tests;
