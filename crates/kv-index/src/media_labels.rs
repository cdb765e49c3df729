//! Labels of media whose names are unknown.
//!
//! Blocks on such a medium are in the disk tier. The medium of each of them is kept beside the
//! index, as a bounded set for each target and label: lookups do not read it, only reports do.
//! Blocks beyond the bound count as disk. The sets are not in the index's memory budget: at the bound
//! they take some 36 MB.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kv_blocks::{SequenceHash, Target, WorkerId};
use parking_lot::RwLock;

/// Most blocks with a label.
const MAX_BLOCKS: usize = 1 << 20;
/// Most labels of one target.
const MAX_LABELS: usize = 16;

/// A block: key of its namespace, and its hash.
pub(crate) type LabelledBlock = (u64, u64);

type BlocksByLabel = BTreeMap<Arc<str>, HashSet<LabelledBlock>>;

/// How much of a prefix is on media with unknown names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelledPrefix {
    /// Blocks on each medium, by its name as first sent.
    pub labels: BTreeMap<Arc<str>, u32>,
    /// Blocks on any of them.
    pub blocks: u32,
}

/// The labels of all targets.
#[derive(Debug, Default)]
pub(crate) struct MediaLabels {
    /// Whether any label was ever used.
    used: AtomicBool,
    targets: RwLock<BTreeMap<Target, BlocksByLabel>>,
}

impl MediaLabels {
    pub(crate) fn add(
        &self,
        target: Target,
        label: &str,
        blocks: impl IntoIterator<Item = LabelledBlock>,
    ) {
        self.used.store(true, Ordering::Relaxed);
        let mut targets = self.targets.write();
        let all: usize = targets
            .values()
            .flat_map(BTreeMap::values)
            .map(HashSet::len)
            .sum();
        let labels = targets.entry(target).or_default();
        if blocks_with(labels, label).is_none() && labels.len() < MAX_LABELS {
            labels.insert(label.into(), HashSet::new());
        }
        if let Some(known) = blocks_with(labels, label) {
            known.extend(blocks.into_iter().take(MAX_BLOCKS.saturating_sub(all)));
        }
    }

    pub(crate) fn remove(
        &self,
        target: Target,
        label: &str,
        blocks: impl IntoIterator<Item = LabelledBlock>,
    ) {
        let mut targets = self.targets.write();
        let labels = targets.get_mut(&target);
        if let Some(known) = labels.and_then(|labels| blocks_with(labels, label)) {
            for block in blocks {
                known.remove(&block);
            }
        }
    }

    /// Removes the labels of a target's blocks, or only those of one namespace.
    pub(crate) fn clear(&self, target: Target, space: Option<u64>) {
        if !self.used.load(Ordering::Relaxed) {
            return;
        }
        let mut targets = self.targets.write();
        let Some(labels) = targets.get_mut(&target) else {
            return;
        };
        match space {
            None => labels.clear(),
            Some(space) => labels
                .values_mut()
                .for_each(|blocks| blocks.retain(|(of, _)| *of != space)),
        }
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
            let mut any = 0;
            for (label, blocks) in labels {
                if blocks.contains(&(space, hash.0)) {
                    *found.labels.entry(Arc::clone(label)).or_default() += 1;
                    any = 1;
                }
            }
            found.blocks += any;
        }
        found
    }
}

/// Returns the blocks of a label, whose case does not matter.
fn blocks_with<'a>(
    labels: &'a mut BlocksByLabel,
    label: &str,
) -> Option<&'a mut HashSet<LabelledBlock>> {
    let mut known = labels.iter_mut();
    known
        .find(|(known, _)| known.eq_ignore_ascii_case(label))
        .map(|(_, blocks)| blocks)
}
