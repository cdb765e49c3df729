//! Host memory behind the device: blocks evicted from the device go here and are reloaded on a hit.
//!
//! One copy per name, LRU eviction. A reloaded block also stays here.

use std::collections::{BTreeMap, HashMap};

use kv_blocks::{EngineHash, Tier};

use crate::{CacheEvent, pool::BlockContent};

/// Blocks in host memory.
#[derive(Debug)]
pub(crate) struct HostTier {
    capacity: usize,
    blocks: HashMap<EngineHash, u64>,
    /// Last use to name; the first one is the least recently used.
    by_use: BTreeMap<u64, EngineHash>,
    uses: u64,
}

/// The changes of an offload.
#[derive(Debug, Default)]
pub(crate) struct OffloadChange {
    /// The block dropped to make room.
    pub(crate) dropped: Option<EngineHash>,
    /// The added block; `None` if it was already present.
    pub(crate) added: Option<BlockContent>,
}

impl HostTier {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            capacity: capacity as usize,
            blocks: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.capacity > 0
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn holds(&self, hash: EngineHash) -> bool {
        self.blocks.contains_key(&hash)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = EngineHash> {
        self.blocks.keys().copied()
    }

    /// Records a use; returns `false` if the block is not here.
    pub(crate) fn touch(&mut self, hash: EngineHash) -> bool {
        let Some(last) = self.blocks.get_mut(&hash) else {
            return false;
        };
        self.uses += 1;
        self.by_use.remove(last);
        *last = self.uses;
        self.by_use.insert(self.uses, hash);
        true
    }

    /// Adds a block evicted from the device.
    pub(crate) fn offload(&mut self, content: BlockContent) -> OffloadChange {
        if !self.is_on() || self.touch(content.hash) {
            return OffloadChange::default();
        }
        let dropped = if self.blocks.len() < self.capacity {
            None
        } else {
            self.by_use.pop_first().map(|(_, hash)| hash)
        };
        if let Some(hash) = dropped {
            self.blocks.remove(&hash);
        }
        self.uses += 1;
        self.blocks.insert(content.hash, self.uses);
        self.by_use.insert(self.uses, content.hash);
        OffloadChange {
            dropped,
            added: Some(content),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.by_use.clear();
    }
}

/// Adds the events of an offload.
pub(crate) fn announce_offload(offloaded: OffloadChange, events: &mut Vec<CacheEvent>) {
    if let Some(hash) = offloaded.dropped {
        events.push(CacheEvent::Removed {
            hash,
            tier: Tier::Host,
        });
    }
    if let Some(content) = offloaded.added {
        events.push(CacheEvent::Stored {
            hashes: vec![content.hash],
            parent: content.parent,
            tokens: content.tokens.into_vec(),
            lora: content.lora,
            salt: content.salt,
            media: if content.media.is_empty() {
                Vec::new()
            } else {
                vec![content.media]
            },
            tier: Tier::Host,
        });
    }
}
