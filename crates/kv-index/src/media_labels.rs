//! Labels of media whose names are unknown.
//!
//! Blocks on such a medium are in the disk tier. The medium of each of them is kept beside the
//! index, as a bounded set for each target and label: lookups do not read it, only reports and
//! changes of the disk tier do. Blocks beyond the bound count as disk. The sets are not in the
//! index's memory budget: at the bound they take some 72 MB.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kv_blocks::{SequenceHash, Target, WorkerId};
use parking_lot::{Mutex, MutexGuard, RwLock};

/// Most blocks with a label; those of them that are on a disk, too, are kept once more.
const MAX_BLOCKS: usize = 1 << 20;
/// Most labels of one target.
const MAX_LABELS: usize = 16;

/// A block: key of its namespace, and its hash.
pub(crate) type LabelledBlock = (u64, u64);

/// How much of a prefix is on media with unknown names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelledPrefix {
    /// Blocks on each medium, by its name as first sent.
    pub labels: BTreeMap<Arc<str>, u32>,
    /// Blocks of the disk tier that are on no other medium.
    pub blocks: u32,
}

/// The labels of one target's blocks.
#[derive(Debug, Default)]
struct TargetLabels {
    by_label: BTreeMap<Arc<str>, HashSet<LabelledBlock>>,
    /// Blocks with a label that are on a disk, too.
    on_disk: HashSet<LabelledBlock>,
    /// Whether some blocks on such media may have no label.
    incomplete: bool,
}

/// The labels of all targets.
#[derive(Debug, Default)]
pub(crate) struct MediaLabels {
    /// Whether any label was ever used.
    used: AtomicBool,
    /// Whether the index was loaded: snapshots have no labels.
    loaded: AtomicBool,
    targets: RwLock<BTreeMap<Target, TargetLabels>>,
    /// Held while the disk tier and its labels change together.
    order: Mutex<()>,
}

impl MediaLabels {
    /// Holds back other changes of labelled blocks.
    pub(crate) fn lock_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock()
    }

    /// Notes that the index has blocks whose labels are unknown.
    pub(crate) fn note_load(&self) {
        self.loaded.store(true, Ordering::Relaxed);
    }

    /// Returns whether blocks of a target have labels.
    pub(crate) fn has_any(&self, target: Target) -> bool {
        self.used.load(Ordering::Relaxed)
            && self
                .targets
                .read()
                .get(&target)
                .is_some_and(|labels| labels.by_label.values().any(|blocks| !blocks.is_empty()))
    }

    /// Gives blocks a label. `on_disk`: those that were in the disk tier before.
    pub(crate) fn add(
        &self,
        target: Target,
        label: &str,
        blocks: &[LabelledBlock],
        on_disk: &HashSet<LabelledBlock>,
    ) {
        self.used.store(true, Ordering::Relaxed);
        let mut targets = self.targets.write();
        let all: usize = targets.values().map(TargetLabels::len).sum();
        let mut room = MAX_BLOCKS.saturating_sub(all);
        let labels = targets.entry(target).or_insert_with(|| TargetLabels {
            incomplete: self.loaded.load(Ordering::Relaxed),
            ..TargetLabels::default()
        });
        if labels.with(label).is_none() && labels.by_label.len() < MAX_LABELS {
            labels.by_label.insert(label.into(), HashSet::new());
        }
        for block in blocks {
            // A block whose earlier label was lost may have been in the tier under that.
            let both = on_disk.contains(block) && !labels.is_labelled(block) && !labels.incomplete;
            match labels.with(label) {
                Some(known) if room > 0 => room -= usize::from(known.insert(*block)),
                _ => {
                    labels.incomplete = true;
                    continue;
                }
            }
            if both {
                labels.on_disk.insert(*block);
            }
        }
    }

    /// Notes that blocks were stored on a disk.
    pub(crate) fn add_disk(&self, target: Target, blocks: &[LabelledBlock]) {
        self.change(target, |labels| {
            let labelled = blocks.iter().filter(|block| labels.is_labelled(block));
            let labelled: Vec<_> = labelled.copied().collect();
            labels.on_disk.extend(labelled);
        });
    }

    /// Withdraws a label from blocks; returns those that stay in the disk tier, on another medium.
    pub(crate) fn remove(
        &self,
        target: Target,
        label: &str,
        blocks: &[LabelledBlock],
    ) -> HashSet<LabelledBlock> {
        self.change(target, |labels| {
            let mut staying = HashSet::new();
            for block in blocks {
                let was_on_disk = labels.on_disk.contains(block);
                if let Some(known) = labels.with(label) {
                    known.remove(block);
                }
                let has_another = labels.is_labelled(block);
                if was_on_disk && !has_another {
                    // On the disk alone, as blocks without a label.
                    labels.on_disk.remove(block);
                }
                if was_on_disk || has_another {
                    staying.insert(*block);
                }
            }
            staying
        })
    }

    /// Notes that blocks left the disk; returns those that stay in the tier, on another medium.
    pub(crate) fn remove_disk(
        &self,
        target: Target,
        blocks: &[LabelledBlock],
    ) -> HashSet<LabelledBlock> {
        self.change(target, |labels| {
            for block in blocks {
                labels.on_disk.remove(block);
            }
            let labelled = blocks.iter().filter(|block| labels.is_labelled(block));
            labelled.copied().collect()
        })
    }

    /// Withdraws a label from all blocks of a target, or of one namespace of it; returns the blocks
    /// that leave the disk tier. `None`: there may be others.
    pub(crate) fn take(
        &self,
        target: Target,
        space: Option<u64>,
        label: &str,
    ) -> Option<Vec<LabelledBlock>> {
        let incomplete = match self.targets.read().get(&target) {
            Some(labels) => labels.incomplete,
            None => self.loaded.load(Ordering::Relaxed),
        };
        if incomplete {
            return None;
        }
        let is_meant = |block: &LabelledBlock| space.is_none_or(|space| space == block.0);
        let blocks: Vec<LabelledBlock> = self.change(target, |labels| {
            let known = labels.with(label).map(|known| known.iter().copied());
            known.into_iter().flatten().filter(is_meant).collect()
        });
        let staying = self.remove(target, label, &blocks);
        let leaves = |block: &LabelledBlock| !staying.contains(block);
        Some(blocks.into_iter().filter(leaves).collect())
    }

    /// Notes that a disk was emptied, of one namespace or of all; returns the blocks that stay in
    /// the tier, on another medium.
    pub(crate) fn empty_disk(&self, target: Target, space: Option<u64>) -> HashSet<LabelledBlock> {
        self.change(target, |labels| {
            let is_meant = |block: &LabelledBlock| space.is_none_or(|space| space == block.0);
            labels.on_disk.retain(|block| !is_meant(block));
            let all = labels.by_label.values().flatten();
            all.copied().filter(is_meant).collect()
        })
    }

    /// Removes the labels of a target's blocks, or only those of one namespace.
    pub(crate) fn clear(&self, target: Target, space: Option<u64>) {
        if !self.used.load(Ordering::Relaxed) {
            return;
        }
        self.change(target, |labels| match space {
            None => *labels = TargetLabels::default(),
            Some(space) => {
                let stays = |block: &LabelledBlock| block.0 != space;
                labels.on_disk.retain(stays);
                labels
                    .by_label
                    .values_mut()
                    .for_each(|blocks| blocks.retain(stays));
            }
        });
    }

    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        self.targets
            .write()
            .retain(|target, _| target.worker != worker);
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
        let targets = self.targets.read();
        let Some(labels) = targets.get(&target) else {
            return found;
        };
        for hash in prefix {
            let block = (space, hash.0);
            let mut is_labelled = false;
            for (label, blocks) in &labels.by_label {
                if blocks.contains(&block) {
                    *found.labels.entry(Arc::clone(label)).or_default() += 1;
                    is_labelled = true;
                }
            }
            found.blocks += u32::from(is_labelled && !labels.on_disk.contains(&block));
        }
        found
    }

    /// Changes the labels of a target, if it has any.
    fn change<R: Default>(&self, target: Target, act: impl FnOnce(&mut TargetLabels) -> R) -> R {
        self.targets
            .write()
            .get_mut(&target)
            .map(act)
            .unwrap_or_default()
    }
}

impl TargetLabels {
    fn len(&self) -> usize {
        self.by_label.values().map(HashSet::len).sum()
    }

    fn is_labelled(&self, block: &LabelledBlock) -> bool {
        self.by_label.values().any(|blocks| blocks.contains(block))
    }

    /// Returns the blocks of a label, whose case does not matter.
    fn with(&mut self, label: &str) -> Option<&mut HashSet<LabelledBlock>> {
        let mut known = self.by_label.iter_mut();
        known
            .find(|(known, _)| known.eq_ignore_ascii_case(label))
            .map(|(_, blocks)| blocks)
    }
}

#[cfg(test)]
mod tests {
    use kv_blocks::DpRank;

    use super::*;

    const TARGET: Target = Target {
        worker: WorkerId(1),
        rank: DpRank(0),
    };

    #[test]
    fn after_a_load_or_beyond_the_bounds_the_blocks_of_a_label_are_unknown() {
        let none = HashSet::new();
        let labels = MediaLabels::default();
        let take = |labels: &MediaLabels, label: &str| labels.take(TARGET, None, label);
        assert_eq!(take(&labels, "tape"), Some(Vec::new()));
        labels.add(TARGET, "tape", &[(1, 2)], &none);
        assert_eq!(take(&labels, "TAPE"), Some(vec![(1, 2)]));
        for number in 0..=MAX_LABELS {
            labels.add(TARGET, &format!("medium {number}"), &[(1, 2)], &none);
        }
        assert_eq!(take(&labels, "medium 0"), None);
        labels.clear(TARGET, None);
        assert_eq!(take(&labels, "medium 0"), Some(Vec::new()));

        let loaded = MediaLabels::default();
        loaded.note_load();
        loaded.add(TARGET, "tape", &[(1, 2)], &none);
        assert_eq!(take(&loaded, "tape"), None);
    }
}
