//! Blocks that changed while the initial state was read: their changes follow from the feed, and
//! take precedence.

use std::collections::HashMap;

use kv_blocks::{SequenceHash, Target, Tier};
use kv_index::{BlockChange, ChangeKind, KvIndex, NamespaceKey};

use super::changes::part;

/// Limit of tracked blocks, at most some 35 bytes each. With more of them the subscriber has fallen
/// behind.
const MOST: usize = 1 << 19;

#[derive(Debug, Default)]
pub(super) struct ChangedBlocks {
    /// Per block, whether its last change stored it.
    blocks: HashMap<(NamespaceKey, Target, Tier), HashMap<SequenceHash, bool>>,
    count: usize,
}

impl ChangedBlocks {
    /// Records a change; false if there are too many.
    pub(super) fn record(&mut self, index: &KvIndex, change: &BlockChange) -> bool {
        let blocks = self.blocks.entry(key(index, change)).or_default();
        let stored = matches!(change.kind, ChangeKind::Stored { .. });
        self.count += change
            .hashes
            .iter()
            .filter(|hash| blocks.insert(**hash, stored).is_none())
            .count();
        self.count <= MOST
    }

    /// Splits a stretch of the initial state by whether its blocks changed.
    pub(super) fn split(&self, index: &KvIndex, change: BlockChange) -> Vec<(BlockChange, bool)> {
        self.split_where(index, change, |_| true)
    }

    /// Returns the parts of a removal whose blocks are not stored after all.
    pub(super) fn not_stored(&self, index: &KvIndex, removal: BlockChange) -> Vec<BlockChange> {
        let parts = self
            .split_where(index, removal, |stored| stored)
            .into_iter();
        parts
            .filter(|(_, stored)| !stored)
            .map(|(part, _)| part)
            .collect()
    }

    fn split_where(
        &self,
        index: &KvIndex,
        change: BlockChange,
        apart: impl Fn(bool) -> bool,
    ) -> Vec<(BlockChange, bool)> {
        let Some(touched) = self.blocks.get(&key(index, &change)) else {
            return vec![(change, false)];
        };
        let is_apart = |at: usize| {
            touched
                .get(&change.hashes[at])
                .is_some_and(|stored| apart(*stored))
        };
        let mut parts = Vec::new();
        let mut from = 0;
        while from < change.hashes.len() {
            let kind = is_apart(from);
            let to = (from..change.hashes.len())
                .find(|at| is_apart(*at) != kind)
                .unwrap_or(change.hashes.len());
            parts.push((part(&change, from..to), kind));
            from = to;
        }
        parts
    }
}

fn key(index: &KvIndex, change: &BlockChange) -> (NamespaceKey, Target, Tier) {
    (
        index.namespace_key(&change.namespace),
        change.target,
        change.tier,
    )
}
