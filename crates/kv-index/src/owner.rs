//! One target as the index knows it: its model, what it calls its blocks, and what it holds in total.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use kv_blocks::{BlockSize, EngineHash, Target, Tier};

use crate::{
    blocks::BlockKey,
    copies::Copies,
    parted::{Parted, Spread},
};

/// Number of a target while the index knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OwnerId(u32);

/// Names kept after the block left; older ones go. Engines name a block as parent shortly after they announced the
/// removal of one of its two copies.
const DEPARTED_NAMES: usize = 4096;

/// Block sizes one target may announce: its own, and those of the stores attached to it.
pub(crate) const MAX_BLOCK_SIZES: usize = 8;

/// Parts of one target's names: of a million names about four thousand each.
const NAME_PARTS: usize = 256;

/// What an engine calls a block.
pub(crate) type Name = (EngineHash, BlockSize);

impl Spread for Name {
    fn spread(&self) -> u64 {
        self.0.0
    }
}

/// What an engine's name stands for. Names are kept per block size, because an attached store may name chunks of another
/// size by the same hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alias {
    pub(crate) key: BlockKey,
    pub(crate) depth: u32,
}

/// Content of one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) blocks: u64,
    pub(crate) digest: u64,
}

/// A target.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) target: Target,
    pub(crate) model: Option<Arc<str>>,
    /// Whether lookups go by what it announces.
    pub(crate) trusted: bool,
    pub(crate) content: [Content; Tier::ALL.len()],
    pub(crate) aliases: Parted<Name, Alias>,
    pub(crate) copies: Copies,
    block_sizes: Vec<BlockSize>,
    /// Bounded: when full the oldest is forgotten.
    departed: VecDeque<Name>,
}

impl Owner {
    fn new(target: Target) -> Self {
        Self {
            target,
            model: None,
            trusted: true,
            content: Default::default(),
            aliases: Parted::new(NAME_PARTS),
            copies: Copies::default(),
            block_sizes: Vec::new(),
            departed: VecDeque::new(),
        }
    }

    /// Whether blocks of this size can be taken; the first few sizes can.
    pub(crate) fn admits(&mut self, size: BlockSize) -> bool {
        if self.block_sizes.contains(&size) {
            return true;
        }
        let room = self.block_sizes.len() < MAX_BLOCK_SIZES;
        if room {
            self.block_sizes.push(size);
        }
        room
    }

    /// Everything the engine calls by this name.
    pub(crate) fn named(&self, hash: EngineHash) -> Vec<(BlockSize, Alias)> {
        let alias = |size: &BlockSize| self.aliases.get(&(hash, *size)).map(|alias| (*size, *alias));
        self.block_sizes.iter().filter_map(alias).collect()
    }

    /// Notes that a name's block left; returns a name that need not be kept any longer.
    pub(crate) fn depart(&mut self, name: Name) -> Option<Name> {
        self.departed.push_back(name);
        if self.departed.len() > DEPARTED_NAMES { self.departed.pop_front() } else { None }
    }

    /// The names of one part.
    pub(crate) fn names(&self, part: usize) -> Vec<(Name, Alias)> {
        self.aliases.part(part).map(|(name, alias)| (*name, *alias)).collect()
    }

    /// Starts anew with block sizes and departed names. Every alias must be dropped then.
    pub(crate) fn forget_habits(&mut self) {
        self.block_sizes.clear();
        self.departed.clear();
    }
}

/// All targets the index knows.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    by_target: HashMap<Target, OwnerId>,
    slots: Vec<Option<Owner>>,
    free: Vec<u32>,
}

impl Owners {
    pub(crate) fn find(&self, target: Target) -> Option<OwnerId> {
        self.by_target.get(&target).copied()
    }

    pub(crate) fn find_or_add(&mut self, target: Target) -> OwnerId {
        if let Some(id) = self.find(target) {
            return id;
        }
        let owner = Some(Owner::new(target));
        let id = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = owner;
            OwnerId(slot)
        } else {
            let slot = u32::try_from(self.slots.len()).expect("there are fewer than 2^32 targets");
            self.slots.push(owner);
            OwnerId(slot)
        };
        self.by_target.insert(target, id);
        id
    }

    /// The owner must hold nothing and be expected to hold nothing.
    pub(crate) fn forget(&mut self, id: OwnerId) {
        if let Some(owner) = self.slots[id.0 as usize].take() {
            self.by_target.remove(&owner.target);
            self.free.push(id.0);
        }
    }

    pub(crate) fn get(&self, id: OwnerId) -> &Owner {
        self.slots[id.0 as usize].as_ref().expect("an owner outlives what it holds")
    }

    pub(crate) fn get_mut(&mut self, id: OwnerId) -> &mut Owner {
        self.slots[id.0 as usize].as_mut().expect("an owner outlives what it holds")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Target, OwnerId)> {
        self.by_target.iter().map(|(target, id)| (*target, *id))
    }
}
