//! Updates of blocks on media with unknown names, and updates of the disk beside them: see
//! [`crate::media_labels`]. All of these blocks are in the disk tier; a block leaves the tier when
//! it has left its last medium.

use std::collections::{BTreeMap, HashSet};

use kv_blocks::{EngineHash, IndexUpdate, Namespace, RemovedBlocks, SequenceHash, Target, Tier};

use super::KvIndex;
use crate::{
    DumpCursor, LabelledPrefix, UpdateOutcome, media_labels::LabelledBlock,
    orphans::HashKeyedBlocks, report::count, state::ClearScope,
};

/// Blocks removed under one hold of the lock.
const SLICE: usize = 4096;

impl KvIndex {
    /// Applies an update of blocks on a medium with an unknown name, its label.
    pub fn apply_labelled(
        &self,
        target: Target,
        update: &IndexUpdate,
        label: &str,
    ) -> UpdateOutcome {
        let _order = self.labels.lock_order();
        let names = match update {
            IndexUpdate::Stored(stored) => &stored.hashes,
            IndexUpdate::Named(named) => &named.hashes,
            IndexUpdate::Removed(removed) => {
                return self.remove_names(target, removed, Some(label));
            }
            IndexUpdate::Cleared => return self.apply_unlabelled(target, update),
            IndexUpdate::ClearedTier(_) => return self.clear_label(target, None, label),
        };
        let on_disk = self.on_disk(target, &self.blocks_of(target, names));
        let outcome = self.apply_unlabelled(target, update);
        let blocks = self.blocks_of(target, names);
        self.labels.add(target, label, &blocks, &on_disk);
        outcome
    }

    /// Stores blocks named by their plain rolling hashes on a medium with an unknown name, its
    /// label, the first one behind `parent` (`None`: it begins a sequence).
    pub fn store_labelled_hashes(
        &self,
        target: Target,
        namespace: &Namespace,
        (parent, hashes): (Option<SequenceHash>, &[SequenceHash]),
        label: &str,
    ) -> UpdateOutcome {
        let _order = self.labels.lock_order();
        let space = self.namespace_key(namespace).0;
        let blocks = in_space(space, hashes);
        let on_disk = self.on_disk(target, &blocks);
        let sequence = HashKeyedBlocks {
            namespace: namespace.clone(),
            space,
            parent,
            hashes: hashes.to_vec(),
            tier: Tier::Disk,
        };
        let outcome = self.with(|state, core| state.store_hashes(core, target, sequence));
        self.labels.add(target, label, &blocks, &on_disk);
        outcome
    }

    /// Removes blocks named by their plain rolling hashes from a medium with an unknown name, its
    /// label.
    pub fn remove_labelled_hashes(
        &self,
        target: Target,
        namespace: &Namespace,
        hashes: &[SequenceHash],
        label: &str,
    ) -> UpdateOutcome {
        let space = self.namespace_key(namespace).0;
        self.remove_from_medium(target, space, hashes, Some(label))
    }

    /// Clears one medium of one namespace of a target. `label`: its name, if that is unknown.
    /// Source: contract MC9.
    ///
    /// Media with known names of one tier are one medium.
    pub fn clear_medium(
        &self,
        target: Target,
        namespace: &Namespace,
        tier: Tier,
        label: Option<&str>,
    ) {
        match label {
            Some(label) => {
                let _order = self.labels.lock_order();
                self.clear_label(target, Some(namespace), label);
            }
            None if tier == Tier::Disk && self.labels.has_any(target) => {
                let _order = self.labels.lock_order();
                self.clear_disk(target, Some(namespace));
            }
            None => self.clear_stream(target, namespace, tier),
        }
    }

    /// Returns how much of a target's prefix is on media with unknown names.
    pub fn labelled_prefix(
        &self,
        target: Target,
        namespace: &Namespace,
        prefix: &[SequenceHash],
    ) -> LabelledPrefix {
        let space = self.namespace_key(namespace).0;
        self.labels.of_prefix(target, space, prefix)
    }

    /// Applies an update to a target with labelled blocks.
    pub(super) fn apply_beside_labels(
        &self,
        target: Target,
        update: &IndexUpdate,
    ) -> UpdateOutcome {
        let names = match update {
            IndexUpdate::Stored(stored) if stored.tier == Tier::Disk => &stored.hashes,
            IndexUpdate::Named(named) if named.tier == Tier::Disk => &named.hashes,
            IndexUpdate::Removed(removed) if removed.tier == Tier::Disk => {
                let _order = self.labels.lock_order();
                return self.remove_names(target, removed, None);
            }
            IndexUpdate::ClearedTier(Tier::Disk) => {
                let _order = self.labels.lock_order();
                return self.clear_disk(target, None);
            }
            _ => return self.apply_unlabelled(target, update),
        };
        let _order = self.labels.lock_order();
        let outcome = self.apply_unlabelled(target, update);
        self.labels.add_disk(target, &self.blocks_of(target, names));
        outcome
    }

    /// Stores blocks on the disk of a target with labelled blocks.
    pub(super) fn store_beside_labels(
        &self,
        target: Target,
        sequence: HashKeyedBlocks,
    ) -> UpdateOutcome {
        let _order = self.labels.lock_order();
        let blocks = in_space(sequence.space, &sequence.hashes);
        let outcome = self.with(|state, core| state.store_hashes(core, target, sequence));
        self.labels.add_disk(target, &blocks);
        outcome
    }

    /// Removes blocks from the disk, or from the medium with this label.
    pub(super) fn remove_from_medium(
        &self,
        target: Target,
        space: u64,
        hashes: &[SequenceHash],
        label: Option<&str>,
    ) -> UpdateOutcome {
        let _order = self.labels.lock_order();
        let staying = self.leave_medium(target, &in_space(space, hashes), label);
        let leaving: Vec<_> = hashes
            .iter()
            .filter(|hash| !staying.contains(&(space, hash.0)))
            .copied()
            .collect();
        let outcome =
            self.with(|state, core| state.remove_hashes(core, target, space, &leaving, Tier::Disk));
        with_staying(outcome, hashes.len() - leaving.len())
    }

    /// The same with blocks by their names.
    fn remove_names(
        &self,
        target: Target,
        removed: &RemovedBlocks,
        label: Option<&str>,
    ) -> UpdateOutcome {
        // A removal may forget the names.
        let blocks = self.blocks_of(target, &removed.hashes);
        let staying = self.leave_medium(target, &blocks, label);
        if staying.is_empty() {
            return self.apply_unlabelled(target, &IndexUpdate::Removed(removed.clone()));
        }
        let leaves = |name: &&EngineHash| {
            let blocks = self.blocks_of(target, std::slice::from_ref(*name));
            !blocks.iter().any(|block| staying.contains(block))
        };
        let leaving = RemovedBlocks {
            hashes: removed.hashes.iter().filter(leaves).copied().collect(),
            tier: removed.tier,
        };
        let stayed = removed.hashes.len() - leaving.hashes.len();
        let outcome = self.apply_unlabelled(target, &IndexUpdate::Removed(leaving));
        with_staying(outcome, stayed)
    }

    /// Notes that blocks left a medium; returns those that stay on another one.
    fn leave_medium(
        &self,
        target: Target,
        blocks: &[LabelledBlock],
        label: Option<&str>,
    ) -> HashSet<LabelledBlock> {
        match label {
            Some(label) => self.labels.remove(target, label, blocks),
            None => self.labels.remove_disk(target, blocks),
        }
    }

    /// Clears a medium with an unknown name, of one namespace or of all. If it cannot be told what
    /// is on the medium, the whole tier is cleared: a block too few costs less than one too many.
    fn clear_label(
        &self,
        target: Target,
        namespace: Option<&Namespace>,
        label: &str,
    ) -> UpdateOutcome {
        let space = namespace.map(|namespace| self.namespace_key(namespace).0);
        match self.labels.take(target, space, label) {
            Some(blocks) => self.remove_blocks(target, blocks),
            None => self.clear_all_media(target, namespace),
        }
        cleared()
    }

    /// Clears the disk of a target with labelled blocks, of one namespace or of all.
    fn clear_disk(&self, target: Target, namespace: Option<&Namespace>) -> UpdateOutcome {
        let space = namespace.map(|namespace| self.namespace_key(namespace).0);
        let staying = self.labels.empty_disk(target, space);
        if staying.is_empty() {
            self.clear_all_media(target, namespace);
            return cleared();
        }
        let (mut cursor, mut leaving) = (DumpCursor::default(), Vec::new());
        while let Some(rows) = self.dump(&mut cursor) {
            let on_disk = rows
                .iter()
                .filter(|row| row.target == target && row.tier == Tier::Disk)
                .map(|row| (self.namespace_key(&row.namespace).0, row.hash.0));
            leaving.extend(on_disk.filter(|block| {
                space.is_none_or(|space| space == block.0) && !staying.contains(block)
            }));
        }
        self.remove_blocks(target, leaving);
        cleared()
    }

    fn clear_all_media(&self, target: Target, namespace: Option<&Namespace>) {
        match namespace {
            Some(namespace) => self.clear_stream(target, namespace, Tier::Disk),
            None => {
                self.step_by_step(target, &ClearScope::Tier(Tier::Disk));
                self.labels.clear(target, None);
            }
        }
    }

    /// Removes blocks from the disk tier.
    fn remove_blocks(&self, target: Target, blocks: Vec<LabelledBlock>) {
        let mut by_space: BTreeMap<u64, Vec<SequenceHash>> = BTreeMap::new();
        for (space, hash) in blocks {
            by_space.entry(space).or_default().push(SequenceHash(hash));
        }
        for (space, hashes) in by_space {
            for slice in hashes.chunks(SLICE) {
                self.with(|state, core| {
                    state.remove_hashes(core, target, space, slice, Tier::Disk)
                });
            }
        }
    }

    fn blocks_of(&self, target: Target, names: &[EngineHash]) -> Vec<LabelledBlock> {
        self.with(|state, core| state.blocks_of(core, target, names))
    }

    /// Returns those of the blocks that a target has in the disk tier.
    fn on_disk(&self, target: Target, blocks: &[LabelledBlock]) -> HashSet<LabelledBlock> {
        self.with(|state, core| state.held_in(core, (target, Tier::Disk), blocks))
    }
}

fn in_space(space: u64, hashes: &[SequenceHash]) -> Vec<LabelledBlock> {
    hashes.iter().map(|hash| (space, hash.0)).collect()
}

/// Counts removals of blocks that stay in the tier.
fn with_staying(outcome: UpdateOutcome, blocks: usize) -> UpdateOutcome {
    UpdateOutcome {
        applied: outcome.applied + count(blocks),
        ..outcome
    }
}

fn cleared() -> UpdateOutcome {
    UpdateOutcome {
        applied: 1,
        ..UpdateOutcome::default()
    }
}
