//! Lookups, and their matches as the overlap of each target, by tier; and the speculative and
//! predicted entries that follow from a decision.

use std::{cell::Cell, time::Duration};

use kv_blocks::{Moment, Namespace, SequenceHash, Target};

use super::{KvIndex, NamespaceKey, nanoseconds};
use crate::{
    Matches, Overlap, SpeculationId, TargetSlot, TierBlocks,
    atomic::Ordering,
    lookup::{ChainQuery, CreditSource, MixedTiers, SharedIndex},
    namespaces,
    state::{ExpectedChain, SpeculationKind},
};

impl KvIndex {
    /// Returns the key of a namespace, for lookups. Creates no state.
    pub fn namespace_key(&self, namespace: &Namespace) -> NamespaceKey {
        NamespaceKey(namespaces::key(namespace, self.secret))
    }

    /// Returns the depth in blocks of a known block; the first of a sequence has 0.
    pub fn depth_of(&self, namespace: &Namespace, hash: SequenceHash) -> Option<u32> {
        let space = self.namespace_key(namespace).0;
        self.with(|state, core| state.depth_of(core, space, hash))
    }

    /// Returns whether a target has a model.
    pub fn is_registered(&self, target: Target) -> bool {
        self.with(|state, _| state.serves_model(target))
    }

    /// Returns the slot of a target, if the target has one.
    pub fn slot(&self, target: Target) -> Option<TargetSlot> {
        self.with(|state, _| state.find(target)).map(TargetSlot)
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

    /// Returns how many leading blocks of these tokens each target holds, in the order of targets;
    /// targets without the first block are left out. Source: contract DY17.
    pub fn find_matches(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        now: Moment,
    ) -> Vec<(Target, u32)> {
        let chain = self.scheme.chain(None, tokens, namespace.block_size);
        let overlaps = self.lookup(namespace, &chain, now);
        let matches = overlaps.iter();
        matches
            .map(|overlap| (overlap.target, overlap.blocks.total()))
            .collect()
    }

    /// Adds speculative entries for `chain` on `target` until `now + ttl`, because a request was
    /// just sent there whose events will confirm them. Blocks that the target is known to hold are
    /// left alone, unless the target is untrusted ([`KvIndex::trust`]).
    pub fn speculate(
        &self,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
        ttl: Duration,
    ) -> SpeculationId {
        let expected = ExpectedChain {
            kind: SpeculationKind::Speculative,
            namespace,
            parent: None,
            hashes: chain,
            since: nanoseconds(now),
            ttl,
        };
        self.with(|state, core| state.speculate(core, target, expected))
    }

    /// Adds predicted entries, for a target without trustworthy events: nothing will confirm them,
    /// so `ttl` is longer. Only the statistics tell the two kinds apart.
    pub fn predict(
        &self,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
        ttl: Duration,
    ) -> SpeculationId {
        self.predict_after(target, namespace, (None, chain), now, ttl)
    }

    /// Adds predicted entries, as [`KvIndex::predict`] does, for a chain behind the block `parent`.
    /// Adds none if the index does not have that block.
    pub fn predict_after(
        &self,
        target: Target,
        namespace: &Namespace,
        (parent, chain): (Option<SequenceHash>, &[SequenceHash]),
        now: Moment,
        ttl: Duration,
    ) -> SpeculationId {
        let expected = ExpectedChain {
            kind: SpeculationKind::Predicted,
            namespace,
            parent,
            hashes: chain,
            since: nanoseconds(now),
            ttl,
        };
        self.with(|state, core| state.speculate(core, target, expected))
    }

    /// Returns how many blocks several predictions may have together before one of them is pruned
    /// for another.
    pub fn prediction_room(&self) -> u64 {
        self.with(|state, _| state.prediction_room())
    }

    /// Takes back the entries of [`KvIndex::speculate`] or [`KvIndex::predict`], because the target
    /// did not take the request. Entries confirmed since, or renewed for another request, stay.
    pub fn retract(&self, speculation: SpeculationId) {
        self.with(|state, core| state.retract(core, &speculation));
    }

    /// Removes expired unconfirmed entries. Lookups never count them: this call frees their memory
    /// and corrects [`KvIndex::stats`]. Also finishes a pruning that is under way.
    pub fn expire(&self, now: Moment) {
        while self.with(|state, core| state.sweep_expired(core, nanoseconds(now))) {}
    }
}

thread_local! {
    /// Buffers of lookups, with their learned probe positions.
    static SCRATCH: Cell<Matches> = Cell::default();
}

/// Returns every target that holds, or announced, at least the first block of the chain, in the
/// order of targets.
fn overlaps(core: &SharedIndex, query: ChainQuery<'_>) -> Vec<Overlap> {
    let mut matches = SCRATCH.take();
    let mut overlaps = Vec::new();
    loop {
        let assignments = core.assignments.load(Ordering::Acquire);
        core.lookup(query, CreditSource::Trusted, &mut matches);
        each(core, &matches, |target, blocks, present| {
            overlaps.push(Overlap {
                target,
                blocks,
                announced: blocks,
                present,
            });
        });
        if core.doubts.load(Ordering::Acquire) > 0 {
            doubted(core, query, &mut matches, &mut overlaps);
        }
        // A slot reassigned meanwhile would credit one target with the blocks of another.
        if core.assignments.load(Ordering::Acquire) == assignments {
            break;
        }
        overlaps.clear();
    }
    SCRATCH.set(matches);
    overlaps.sort_unstable_by_key(|overlap| overlap.target);
    overlaps
}

/// Adds untrusted targets, with their expected and their announced blocks.
fn doubted(
    core: &SharedIndex,
    query: ChainQuery<'_>,
    matches: &mut Matches,
    overlaps: &mut Vec<Overlap>,
) {
    let trusted = overlaps.len();
    core.lookup(query, CreditSource::Expected, matches);
    each(core, matches, |target, blocks, present| {
        overlaps.push(Overlap {
            target,
            blocks,
            announced: TierBlocks::default(),
            present,
        });
    });
    core.lookup(query, CreditSource::Announced, matches);
    each(core, matches, |target, announced, _| {
        match overlaps[trusted..]
            .iter_mut()
            .find(|overlap| overlap.target == target)
        {
            Some(overlap) => overlap.announced = announced,
            None => overlaps.push(Overlap {
                target,
                blocks: TierBlocks::default(),
                announced,
                present: [0; 4],
            }),
        }
    });
}

fn each(
    core: &SharedIndex,
    matches: &Matches,
    mut visit: impl FnMut(Target, TierBlocks, [u32; 4]),
) {
    matches.each(|slot, depth| {
        let Some(target) = core.target(slot.0) else {
            return;
        };
        let mixed = matches.mixed.iter().find(|mixed| mixed.slot == slot.0);
        let (blocks, present) = by_tier(depth, mixed);
        visit(target, blocks, present);
    });
}

fn by_tier(depth: u32, mixed: Option<&MixedTiers>) -> (TierBlocks, [u32; 4]) {
    let Some(MixedTiers { best, present, .. }) = mixed else {
        return (
            TierBlocks {
                device: depth,
                ..TierBlocks::default()
            },
            [depth, 0, 0, 0],
        );
    };
    let device = depth - best.iter().sum::<u32>();
    let [_, host, disk, remote, speculative] = *best;
    let blocks = TierBlocks {
        device,
        host,
        disk,
        remote,
        speculative,
    };
    (blocks, [device, present[1], present[2], present[3]])
}
