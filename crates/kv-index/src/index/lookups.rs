//! Lookups.

use kv_blocks::{Moment, Namespace, SequenceHash, Target};

use super::{KvIndex, NamespaceKey, nanoseconds};
use crate::{
    Matches, Overlap, TargetSlot,
    lookup::{ChainQuery, CreditSource},
    namespaces,
    overlaps::overlaps,
};

impl KvIndex {
    /// Returns the key of a namespace, for lookups. Creates no state.
    pub fn namespace_key(&self, namespace: &Namespace) -> NamespaceKey {
        NamespaceKey(namespaces::key(namespace, self.secret))
    }

    /// Returns the depth in blocks of a known block; the first of a sequence has 0.
    pub fn depth_of(&self, namespace: &Namespace, hash: SequenceHash) -> Option<u32> {
        let space = self.namespace_key(namespace).0;
        self.with(|books, core| books.depth_of(core, space, hash))
    }

    /// Returns whether a target has a model.
    pub fn is_registered(&self, target: Target) -> bool {
        self.with(|books, _| books.serves_model(target))
    }

    /// Returns the slot of a target, if the target has one.
    pub fn slot(&self, target: Target) -> Option<TargetSlot> {
        self.with(|books, _| books.find(target)).map(TargetSlot)
    }

    /// Returns the target of a slot; `None` once its worker was removed.
    pub fn target(&self, slot: TargetSlot) -> Option<Target> {
        self.core.target(slot.0)
    }

    /// Looks up how much of `chain` each target holds. Replaces the content of `matches`, whose
    /// buffers are reused.
    ///
    /// Takes no lock and writes nothing but `matches`. Untrusted targets are left out.
    pub fn lookup_into(
        &self,
        space: NamespaceKey,
        chain: &[SequenceHash],
        now: Moment,
        matches: &mut Matches,
    ) {
        let query = ChainQuery {
            space: space.0,
            hashes: chain,
            now: nanoseconds(now),
        };
        self.core.lookup(query, CreditSource::Trusted, matches);
    }

    /// Does several lookups at once, so that their cache misses overlap.
    ///
    /// # Panics
    ///
    /// If the numbers of answers and chains differ.
    pub fn lookup_batch(
        &self,
        space: NamespaceKey,
        chains: &[&[SequenceHash]],
        now: Moment,
        matches: &mut [Matches],
    ) {
        self.core
            .lookup_batch(space.0, chains, nanoseconds(now), matches);
    }

    /// Returns every target that holds at least the first block of `chain`, in the order of
    /// targets.
    pub fn lookup(
        &self,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
    ) -> Vec<Overlap> {
        let query = ChainQuery {
            space: self.namespace_key(namespace).0,
            hashes: chain,
            now: nanoseconds(now),
        };
        overlaps(&self.core, query)
    }
}
