//! The data of the writer's state.

use std::{collections::VecDeque, sync::Arc};

use super::{speculative_entries::SpeculativeEntries, targets::TargetTable};
use crate::{
    IndexSettings,
    changes::{ChangeFeed, ChangeLog},
    chunks::Chunks,
    engine_hashes::EngineHashTable,
    lookup::SharedIndex,
    namespaces::NamespaceTable,
    orphans::{OrphanBlocks, Orphans},
    writer::{ChangeEffects, FreedBlocks, TreeWriter},
};

/// Estimated bytes for one named block that one target holds; only sizes a table.
const BYTES_PER_NAMED_BLOCK: u64 = 48;
/// Divisor of the budget for orphans.
const ORPHANS_SHARE: u64 = 32;
/// Divisor of the budget for chunks.
const CHUNKS_SHARE: u64 = 16;

/// State of the writer.
#[derive(Debug)]
pub(crate) struct IndexState {
    pub(super) settings: IndexSettings,
    pub(super) writer: TreeWriter,
    pub(super) namespaces: NamespaceTable,
    pub(super) targets: TargetTable,
    pub(super) names: EngineHashTable,
    pub(super) orphans: Orphans,
    pub(super) chunks: Chunks,
    /// Orphans whose parent arrived with the current store.
    pub(super) arrived: VecDeque<OrphanBlocks>,
    pub(super) speculative: SpeculativeEntries,
    pub(super) counts: BlockCounts,
    pub(super) feed: Arc<ChangeLog>,
}

/// Blocks of all targets together.
#[derive(Debug, Default)]
pub(super) struct BlockCounts {
    /// Pairs of block and target.
    pub(super) memberships: u64,
    /// Blocks announced behind an unknown parent, since the start.
    pub(super) orphaned: u64,
    /// Blocks dropped or refused for lack of room, since the start.
    pub(super) shed: u64,
    /// Blocks that a store added to a tier of a target that held them in another tier.
    pub(super) moved: u64,
}

impl IndexState {
    pub(crate) fn new(settings: IndexSettings, core: &SharedIndex, secret: u64) -> Self {
        let budget = settings.memory_budget;
        Self {
            writer: TreeWriter::new(core, budget),
            namespaces: NamespaceTable::new(secret),
            targets: TargetTable::default(),
            names: EngineHashTable::new(secret, budget / BYTES_PER_NAMED_BLOCK),
            orphans: Orphans::new(budget / ORPHANS_SHARE),
            chunks: Chunks::new(budget / CHUNKS_SHARE),
            arrived: VecDeque::new(),
            speculative: SpeculativeEntries::default(),
            counts: BlockCounts::default(),
            feed: ChangeLog::new(),
            settings,
        }
    }

    /// Subscribes to the changes from now on.
    pub(crate) fn subscribe(&self) -> ChangeFeed {
        self.feed.subscribe()
    }

    /// Removes the records of blocks that left the structure, and counts expected blocks that
    /// ended.
    pub(super) fn apply_effects(&mut self) {
        let ChangeEffects { freed, dropped, .. } = &mut self.writer.effects;
        for FreedBlocks { blocks, space } in freed.drain(..) {
            self.names.forget(blocks.run, blocks.start..blocks.end);
            if let Some(space) = space {
                self.namespaces.release(space);
            }
        }
        for (generation, blocks) in dropped.drain(..) {
            self.speculative.drop_blocks(generation, blocks);
        }
    }

    /// Changes the count of a target's blocks in one tier by `in_tier`, and in total by `at_all`.
    pub(super) fn count(&mut self, slot: u32, tier: u32, in_tier: i64, at_all: i64) {
        let owner = self.targets.get_mut(slot);
        let blocks = &mut owner.blocks[tier as usize];
        *blocks = blocks.wrapping_add_signed(in_tier);
        owner.block_count = owner.block_count.wrapping_add_signed(at_all);
        self.counts.memberships = self.counts.memberships.wrapping_add_signed(at_all);
    }
}
