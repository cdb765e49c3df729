//! The table of blocks that somebody holds.

use kv_blocks::{SequenceHash, Tier};

use crate::{
    owner::OwnerId,
    parted::{Parted, Spread},
    spaces::SpaceId,
};

/// A block within its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockKey {
    pub(crate) space: SpaceId,
    pub(crate) hash: SequenceHash,
}

impl Spread for BlockKey {
    fn spread(&self) -> u64 {
        self.hash.0 ^ u64::from(self.space.number())
    }
}

/// The tiers in which one owner has a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tiers(u8);

impl Tiers {
    pub(crate) fn contains(self, tier: Tier) -> bool {
        self.0 & 1 << tier.index() != 0
    }

    pub(crate) fn insert(&mut self, tier: Tier) {
        self.0 |= 1 << tier.index();
    }

    pub(crate) fn remove(&mut self, tier: Tier) {
        self.0 &= !(1 << tier.index());
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn best(self) -> Option<Tier> {
        Tier::ALL.into_iter().find(|tier| self.contains(*tier))
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Tier> {
        Tier::ALL.into_iter().filter(move |tier| self.contains(*tier))
    }
}

/// A block that at least one owner holds.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) parent: Option<SequenceHash>,
    pub(crate) depth: u32,
    /// In the order of owners.
    holders: Vec<(OwnerId, Tiers)>,
}

impl Block {
    pub(crate) fn holders(&self) -> &[(OwnerId, Tiers)] {
        &self.holders
    }

    pub(crate) fn tiers_of(&self, owner: OwnerId) -> Tiers {
        self.place(owner).map_or(Tiers::default(), |place| self.holders[place].1)
    }

    fn place(&self, owner: OwnerId) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&owner, |(holder, _)| *holder)
    }
}

/// Where a block stands in its sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) parent: Option<SequenceHash>,
    pub(crate) depth: u32,
}

/// Whether a change made or ended something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    /// The tier was entered or left.
    pub(crate) tier: bool,
    /// The block is new, or gone.
    pub(crate) block: bool,
}

/// All blocks that somebody holds.
#[derive(Debug)]
pub(crate) struct Blocks {
    blocks: Parted<BlockKey, Block>,
    distinct: u64,
    memberships: u64,
}

/// Bytes of the budget per part: about a thousand blocks.
const PART_BYTES: u64 = 128 << 10;

impl Blocks {
    /// An empty table that may grow to `budget` bytes.
    pub(crate) fn new(budget: u64) -> Self {
        // Beyond 128 GiB parts grow larger rather than more: an empty part takes memory too.
        let parts = usize::try_from((budget / PART_BYTES).clamp(64, 1 << 20)).expect("clamped");
        Self { blocks: Parted::new(parts), distinct: 0, memberships: 0 }
    }

    pub(crate) fn get(&self, key: BlockKey) -> Option<&Block> {
        self.blocks.get(&key)
    }

    /// How many parts there are; a block stays in its part.
    pub(crate) fn parts(&self) -> usize {
        self.blocks.parts()
    }

    pub(crate) fn part(&self, part: usize) -> impl Iterator<Item = (&BlockKey, &Block)> {
        self.blocks.part(part)
    }

    pub(crate) fn insert(&mut self, key: BlockKey, place: Place, owner: OwnerId, tier: Tier) -> Change {
        let mut change = Change::default();
        let block = self.blocks.get_or_insert_with(key, || {
            change.block = true;
            Block { parent: place.parent, depth: place.depth, holders: Vec::with_capacity(1) }
        });
        self.distinct += u64::from(change.block);
        let at = block.place(owner).unwrap_or_else(|at| {
            self.memberships += 1;
            block.holders.insert(at, (owner, Tiers::default()));
            at
        });
        let tiers = &mut block.holders[at].1;
        change.tier = !tiers.contains(tier);
        tiers.insert(tier);
        change
    }

    pub(crate) fn remove(&mut self, key: BlockKey, owner: OwnerId, tier: Tier) -> Change {
        let mut change = Change::default();
        let Some(block) = self.blocks.get_mut(&key) else { return change };
        let Ok(at) = block.place(owner) else { return change };
        let tiers = &mut block.holders[at].1;
        change.tier = tiers.contains(tier);
        tiers.remove(tier);
        if tiers.is_empty() {
            block.holders.remove(at);
            self.memberships -= 1;
            if block.holders.is_empty() {
                self.blocks.remove(&key);
                self.distinct -= 1;
                change.block = true;
            }
        }
        change
    }

    pub(crate) fn distinct(&self) -> u64 {
        self.distinct
    }

    pub(crate) fn memberships(&self) -> u64 {
        self.memberships
    }
}
