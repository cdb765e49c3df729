//! Updates of blocks on media with unknown names: see [`crate::media_labels`].

use kv_blocks::{EngineHash, IndexUpdate, Namespace, SequenceHash, Target};

use super::KvIndex;
use crate::{LabelledPrefix, UpdateOutcome, media_labels::LabelledBlock};

impl KvIndex {
    /// Applies an update of blocks on a medium with an unknown name, its label.
    pub fn apply_labelled(
        &self,
        target: Target,
        update: &IndexUpdate,
        label: &str,
    ) -> UpdateOutcome {
        let (names, removed) = match update {
            IndexUpdate::Stored(stored) => (&stored.hashes, false),
            IndexUpdate::Named(named) => (&named.hashes, false),
            IndexUpdate::Removed(removed) => (&removed.hashes, true),
            IndexUpdate::Cleared | IndexUpdate::ClearedTier(_) => {
                return self.apply(target, update);
            }
        };
        // A removal may forget the names.
        let blocks = removed.then(|| self.blocks_of(target, names));
        let outcome = self.apply(target, update);
        match blocks {
            Some(blocks) => self.labels.remove(target, label, blocks),
            None => self
                .labels
                .add(target, label, self.blocks_of(target, names)),
        }
        outcome
    }

    /// Gives blocks named by their plain rolling hashes a label, after they were stored.
    pub fn add_label(
        &self,
        target: Target,
        namespace: &Namespace,
        hashes: &[SequenceHash],
        label: &str,
    ) {
        let space = self.namespace_key(namespace).0;
        let blocks = hashes.iter().map(|hash| (space, hash.0));
        self.labels.add(target, label, blocks);
    }

    /// Withdraws a label from blocks named by their plain rolling hashes.
    pub fn remove_label(
        &self,
        target: Target,
        namespace: &Namespace,
        hashes: &[SequenceHash],
        label: &str,
    ) {
        let space = self.namespace_key(namespace).0;
        let blocks = hashes.iter().map(|hash| (space, hash.0));
        self.labels.remove(target, label, blocks);
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

    fn blocks_of(&self, target: Target, names: &[EngineHash]) -> Vec<LabelledBlock> {
        self.with(|state, core| state.blocks_of(core, target, names))
    }
}
