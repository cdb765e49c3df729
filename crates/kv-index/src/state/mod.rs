//! The writer's state: the targets, the engine hashes, the orphans, and the speculative entries
//! with their expiry. All of it is behind the index's lock; lookups do not use it.

mod budget;
mod change_capture;
#[cfg(test)]
mod check;
mod clearing;
mod events;
mod export;
mod holding;
mod loading;
mod named;
mod removing;
mod reports;
mod saving;
mod speculate;
mod speculative_entries;
mod targets;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc};

use kv_blocks::{Namespace, Target, Tier};

pub(crate) use self::speculative_entries::SpeculationKind;
use self::{
    clearing::SlotSweep,
    speculative_entries::SpeculativeEntries,
    targets::{TargetTable, hash_group},
};
pub use self::{loading::LoadSummary, saving::SaveSummary, speculative_entries::SpeculationId};
use crate::{
    IndexSettings,
    changes::{ChangeFeed, ChangeLog},
    engine_hashes::EngineHashTable,
    lookup::SharedIndex,
    namespaces::{NamespaceId, NamespaceTable},
    orphans::{OrphanBlocks, Orphans},
    writer::{FreedBlocks, RunNamespace, TreeWriter},
};

pub(crate) use self::clearing::ClearScope;

/// State of the writer.
#[derive(Debug)]
pub(crate) struct IndexState {
    settings: IndexSettings,
    secret: u64,
    writer: TreeWriter,
    namespaces: NamespaceTable,
    targets: TargetTable,
    names: EngineHashTable,
    orphans: Orphans,
    /// Orphans whose parent arrived with the current store.
    arrived: VecDeque<OrphanBlocks>,
    speculative: SpeculativeEntries,
    /// Blocks that left the structure during the current change.
    freed: Vec<FreedBlocks>,
    held: Vec<(u32, u32)>,
    memberships: u64,
    orphaned: u64,
    shed: u64,
    /// Slots that are being cleared, at most as many as there are slots.
    retired: VecDeque<SlotSweep>,
    /// During a pruning of speculative entries: the number of blocks to leave.
    pruning: Option<u64>,
    feed: Arc<ChangeLog>,
}

impl IndexState {
    pub(crate) fn new(settings: IndexSettings, core: &SharedIndex, secret: u64) -> Self {
        let budget = settings.memory_budget;
        Self {
            writer: TreeWriter::new(core, budget),
            secret,
            namespaces: NamespaceTable::default(),
            targets: TargetTable::default(),
            names: EngineHashTable::new(secret, budget / BYTES_PER_NAMED_BLOCK),
            orphans: Orphans::new(budget / ORPHANS_SHARE),
            arrived: VecDeque::new(),
            speculative: SpeculativeEntries::default(),
            freed: Vec::new(),
            held: Vec::new(),
            memberships: 0,
            orphaned: 0,
            shed: 0,
            retired: VecDeque::new(),
            pruning: None,
            feed: ChangeLog::new(),
            settings,
        }
    }

    pub(crate) fn register(&mut self, core: &SharedIndex, target: Target, model: Arc<str>) {
        let Some(slot) = self.slot(core, target) else {
            return;
        };
        let owner = self.targets.get_mut(slot);
        if owner.model.as_ref() != Some(&model) {
            self.names.join(slot, hash_group(&model));
            owner.model = Some(model);
            self.stay_within_budget(core);
        }
    }

    /// Subscribes to the changes from now on.
    pub(crate) fn subscribe(&self) -> ChangeFeed {
        self.feed.subscribe()
    }

    /// Ends the registration of a target that serves another model; returns whether it did.
    pub(crate) fn unregister_other(&mut self, target: Target, model: &str) -> bool {
        let Some(slot) = self.targets.find(target) else {
            return false;
        };
        self.targets
            .get_mut(slot)
            .model
            .take_if(|known| **known != *model)
            .is_some()
    }

    pub(crate) fn find(&self, target: Target) -> Option<u32> {
        self.targets.find(target)
    }

    pub(crate) fn ranks(&self, worker: kv_blocks::WorkerId) -> Vec<Target> {
        self.targets.ranks(worker)
    }

    /// Returns the slot of a target; adds a new one if it has none.
    fn slot(&mut self, core: &SharedIndex, target: Target) -> Option<u32> {
        if let Some(slot) = self.targets.find(target) {
            return Some(slot);
        }
        let slot = self.targets.find_or_add(target)?;
        core.assign(slot, target);
        Some(slot)
    }

    /// Sets whether lookups credit a target's announcements; returns whether the target became
    /// trusted.
    pub(crate) fn trust(&mut self, core: &SharedIndex, target: Target, trusted: bool) -> bool {
        let slot = if trusted {
            self.targets.find(target)
        } else {
            self.slot(core, target)
        };
        let Some(slot) = slot else { return false };
        let before = std::mem::replace(&mut self.targets.get_mut(slot).trusted, trusted);
        if before != trusted {
            core.set_untrusted(slot, !trusted);
        }
        trusted && !before
    }

    /// Adds one use of a namespace, which the caller removes later.
    fn enter(&mut self, namespace: &Namespace) -> RunNamespace {
        let id = self.namespaces.enter(namespace);
        RunNamespace {
            key: self.namespaces.get(id).key(self.secret),
            id,
        }
    }

    fn home(&self, id: NamespaceId) -> RunNamespace {
        RunNamespace {
            key: self.namespaces.get(id).key(self.secret),
            id,
        }
    }

    /// Removes the records of blocks that left the structure, and counts expected blocks that
    /// ended.
    fn settle(&mut self) {
        for gone in self.freed.drain(..) {
            self.names.forget(gone.run, gone.from..gone.to);
            if let Some(space) = gone.space {
                self.namespaces.leave(space);
            }
        }
        for (stamp, blocks) in self.writer.dropped.drain(..) {
            self.speculative.drop_blocks(stamp, blocks);
        }
    }

    /// Changes the count of a target's blocks in one tier by `in_tier`, and in total by `at_all`.
    fn count(&mut self, slot: u32, tier: usize, in_tier: i64, at_all: i64) {
        let owner = self.targets.get_mut(slot);
        owner.blocks[tier] = owner.blocks[tier].wrapping_add_signed(in_tier);
        owner.held = owner.held.wrapping_add_signed(at_all);
        self.memberships = self.memberships.wrapping_add_signed(at_all);
    }
}

/// Estimated bytes for one named block that one target holds; only sizes a table.
const BYTES_PER_NAMED_BLOCK: u64 = 48;
/// Divisor of the budget for orphans.
const ORPHANS_SHARE: u64 = 32;

/// Returns the tier's number in runs.
fn number(tier: Tier) -> u32 {
    [0, 1, 2, 3][tier.index()]
}
