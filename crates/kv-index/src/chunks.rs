//! Chunks: blocks of another size than the target's own, held outside its device.
//!
//! A store inside an engine, such as LMCache, announces chunks of some hundred tokens, and lookups
//! ask for the target's own blocks. `state::chunks` cuts every chunk into these. This module keeps
//! what later events of a chunk need: its blocks for its removal, and for the chunk behind it the
//! last whole block and the tokens after that one.
//!
//! A block belongs to the chunk in which it ends, so that chunks need not be multiples of the block
//! size. Chunks may overlap: a chunk that the end of a prompt cut short, and the full one that a
//! longer prompt brings. A block that was in the tier before a chunk was stored is counted as
//! shared, and the removal of one of the two leaves it.
//!
//! Not here: the blocks themselves, and snapshots, which hold no chunks: after a load, chunks behind
//! earlier ones wait for these as for any unknown parent.
//!
//! **Invariant**: chunks are bounded in bytes. At the limit the oldest is forgotten, and the caller
//! removes its blocks: no block is credited whose removal could not be followed.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
};

use kv_blocks::{EngineHash, Namespace, SequenceHash, Tier};

use crate::medium_streams::StreamBlock;

/// Estimates: a chunk with its keys, and the count of a shared block.
const CHUNK_BYTES: usize = 256;
const SHARED_BYTES: usize = 64;
/// Chunks of cleared targets that are freed for each new chunk.
const TIDY: usize = 2;

/// The end of a chain of tokens that is cut into blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChainEnd {
    pub(crate) namespace: Arc<Namespace>,
    /// The namespace's key.
    pub(crate) space: u64,
    /// The last whole block.
    pub(crate) last: Option<SequenceHash>,
    /// The tokens behind it, fewer than a block.
    pub(crate) rest: Vec<u32>,
}

/// A chunk of one target in one tier.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) slot: u32,
    pub(crate) tier: Tier,
    pub(crate) end: ChainEnd,
    /// The blocks that end in it.
    pub(crate) blocks: Vec<SequenceHash>,
}

impl Chunk {
    /// The texts of the namespace count for each of its chunks: any of them may be the last to use it.
    fn bytes(&self) -> u64 {
        let namespace = &self.end.namespace;
        let text = |text: &Option<Arc<str>>| text.as_deref().map_or(0, str::len);
        let texts = namespace.model.len() + text(&namespace.lora) + text(&namespace.salt);
        let content =
            self.blocks.len() * size_of::<SequenceHash>() + self.end.rest.len() * size_of::<u32>();
        (CHUNK_BYTES + texts + content) as u64
    }
}

/// Key of a chunk: the content of a tier between two clears has a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChunkKey {
    content: u64,
    name: EngineHash,
}

/// Key of a shared block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SharedKey {
    content: u64,
    space: u64,
    hash: SequenceHash,
}

/// All chunks.
#[derive(Debug)]
pub(crate) struct Chunks {
    max_bytes: u64,
    /// The number of the present content of each slot and tier.
    contents: BTreeMap<(u32, Tier), u64>,
    /// Contents that were cleared; their chunks are freed a few at a time.
    cleared: VecDeque<u64>,
    /// With the number of its arrival. Bounded: `max_bytes`.
    chunks: BTreeMap<ChunkKey, (u64, Chunk)>,
    by_arrival: BTreeMap<u64, ChunkKey>,
    /// How many further chunks or announcements hold a block.
    shared: BTreeMap<SharedKey, u32>,
    /// Blocks that only other streams than that of the current store hold in its tier: they are not
    /// shared with its chunks. As many as one store has at most.
    foreign: HashSet<StreamBlock>,
    next: u64,
    bytes: u64,
}

impl Chunks {
    /// Creates an empty set of at most `max_bytes`.
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            contents: BTreeMap::new(),
            cleared: VecDeque::new(),
            chunks: BTreeMap::new(),
            by_arrival: BTreeMap::new(),
            shared: BTreeMap::new(),
            foreign: HashSet::new(),
            next: 0,
            bytes: 0,
        }
    }

    /// Returns a chunk of a slot in one tier.
    pub(crate) fn get(&self, slot: u32, tier: Tier, name: EngineHash) -> Option<&Chunk> {
        let key = self.key(slot, tier, name)?;
        self.chunks.get(&key).map(|(_, chunk)| chunk)
    }

    /// Returns a chunk of a slot in any tier.
    pub(crate) fn find(&self, slot: u32, name: EngineHash) -> Option<&Chunk> {
        Tier::ALL
            .into_iter()
            .find_map(|tier| self.get(slot, tier, name))
    }

    /// Returns whether a slot has chunks in any tier.
    pub(crate) fn has_any(&self, slot: u32) -> bool {
        let contents = Tier::ALL
            .into_iter()
            .filter_map(|tier| self.contents.get(&(slot, tier)));
        contents.into_iter().any(|content| {
            let key = |name| ChunkKey {
                content: *content,
                name: EngineHash(name),
            };
            self.chunks.range(key(0)..=key(u64::MAX)).next().is_some()
        })
    }

    /// Adds a chunk that is not present; `shared` are those of its blocks that were in its tier
    /// before.
    pub(crate) fn insert(&mut self, name: EngineHash, chunk: Chunk, shared: &[SequenceHash]) {
        self.tidy(TIDY);
        let content = self.content(chunk.slot, chunk.tier);
        let space = chunk.end.space;
        let own = |hash: &&SequenceHash| !self.foreign.contains(&(space, hash.0));
        for hash in shared.iter().filter(own) {
            let key = SharedKey {
                content,
                space,
                hash: *hash,
            };
            let further = self.shared.entry(key).or_insert_with(|| {
                self.bytes += SHARED_BYTES as u64;
                0
            });
            *further = further.saturating_add(1);
        }
        let (key, arrival) = (ChunkKey { content, name }, self.next);
        self.next += 1;
        self.bytes += chunk.bytes();
        self.by_arrival.insert(arrival, key);
        self.chunks.insert(key, (arrival, chunk));
    }

    /// Sets the blocks that only other streams than that of the next stores hold.
    pub(crate) fn set_foreign(&mut self, blocks: HashSet<StreamBlock>) {
        self.foreign = blocks;
    }

    /// Returns the blocks of a chunk that nothing else of its stream holds in its tier; `None` if there
    /// is no such chunk.
    pub(crate) fn unshared(
        &self,
        slot: u32,
        tier: Tier,
        name: EngineHash,
    ) -> Option<Vec<StreamBlock>> {
        let ChunkKey { content, .. } = self.key(slot, tier, name)?;
        let chunk = self.get(slot, tier, name)?;
        let space = chunk.end.space;
        let is_alone = |hash: &&SequenceHash| {
            let hash = **hash;
            !self.shared.contains_key(&SharedKey {
                content,
                space,
                hash,
            })
        };
        let alone = chunk.blocks.iter().filter(is_alone);
        Some(alone.map(|hash| (space, hash.0)).collect())
    }

    /// Removes a chunk from a tier; returns it with the blocks that nothing else holds there.
    pub(crate) fn remove(&mut self, slot: u32, tier: Tier, name: EngineHash) -> Option<Chunk> {
        let key = self.key(slot, tier, name)?;
        self.take(key)
    }

    /// Forgets the chunk that arrived first; returns it with the blocks that nothing else holds. It
    /// has no blocks if its target was cleared.
    pub(crate) fn forget_oldest(&mut self) -> Option<Chunk> {
        let (_, key) = self.by_arrival.first_key_value()?;
        let key = *key;
        let mut chunk = self.take(key)?;
        if self.contents.get(&(chunk.slot, chunk.tier)) != Some(&key.content) {
            chunk.blocks.clear();
        }
        Some(chunk)
    }

    /// Drops all chunks of a slot. The time does not grow with their number.
    pub(crate) fn clear(&mut self, slot: u32) {
        for tier in Tier::ALL {
            self.clear_tier(slot, tier);
        }
    }

    /// Drops the chunks of a slot in one tier.
    pub(crate) fn clear_tier(&mut self, slot: u32, tier: Tier) {
        self.cleared.extend(self.contents.remove(&(slot, tier)));
    }

    /// Frees up to `count` chunks of cleared contents; returns whether there were any.
    pub(crate) fn tidy(&mut self, count: usize) -> bool {
        let mut freed = false;
        for _ in 0..count {
            let Some(content) = self.cleared.front().copied() else {
                break;
            };
            let first = ChunkKey {
                content,
                name: EngineHash(0),
            };
            let next = self.chunks.range(first..).next().map(|(key, _)| *key);
            match next.filter(|key| key.content == content) {
                Some(key) => freed |= self.take(key).is_some(),
                None => _ = self.cleared.pop_front(),
            }
        }
        freed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns whether the oldest chunk must be forgotten.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.bytes > self.max_bytes
    }

    /// Returns the heap bytes, estimated.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn key(&self, slot: u32, tier: Tier, name: EngineHash) -> Option<ChunkKey> {
        let content = *self.contents.get(&(slot, tier))?;
        Some(ChunkKey { content, name })
    }

    /// Returns the number of the present content of a slot and tier.
    fn content(&mut self, slot: u32, tier: Tier) -> u64 {
        let next = &mut self.next;
        *self.contents.entry((slot, tier)).or_insert_with(|| {
            let content = *next;
            *next += 1;
            content
        })
    }

    /// Takes a chunk out, and from its blocks those that are shared.
    fn take(&mut self, key: ChunkKey) -> Option<Chunk> {
        let (arrival, mut chunk) = self.chunks.remove(&key)?;
        self.by_arrival.remove(&arrival);
        self.bytes -= chunk.bytes();
        let (content, space) = (key.content, chunk.end.space);
        chunk.blocks.retain(|hash| {
            !self.release_shared(SharedKey {
                content,
                space,
                hash: *hash,
            })
        });
        Some(chunk)
    }

    /// Counts one holder of a block less, if chunks or announcements share it.
    pub(crate) fn release(&mut self, (slot, tier): (u32, Tier), space: u64, hash: SequenceHash) {
        if let Some(&content) = self.contents.get(&(slot, tier)) {
            self.release_shared(SharedKey {
                content,
                space,
                hash,
            });
        }
    }

    /// Counts one holder of a shared block less; returns whether it was shared.
    fn release_shared(&mut self, key: SharedKey) -> bool {
        let Some(further) = self.shared.get_mut(&key) else {
            return false;
        };
        *further -= 1;
        if *further == 0 {
            self.shared.remove(&key);
            self.bytes -= SHARED_BYTES as u64;
        }
        true
    }
}
