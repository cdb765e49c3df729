//! Updates outside the device, where several streams may hold a block: see
//! [`crate::medium_streams`]. A block leaves a tier when the last of them has removed it.

use std::collections::{BTreeMap, HashSet};

use kv_blocks::{IndexUpdate, Namespace, RemovedBlocks, SequenceHash, Target, Tier};

use super::KvIndex;
use crate::{
    LabelledPrefix, MediumStream, Publisher, UpdateOutcome,
    lookup::SharedIndex,
    medium_streams::{KnownStreams, StreamBlock, StreamName, StreamRole, in_space},
    orphans::HashKeyedBlocks,
    report::count,
    state::{ClearScope, IndexState},
};

/// Blocks removed under one hold of the lock.
const SLICE: usize = 4096;

impl KvIndex {
    /// Applies one update of a stream. On the device, which is one medium, its name has no effect.
    pub fn apply_from(
        &self,
        target: Target,
        update: &IndexUpdate,
        stream: &MediumStream<'_>,
    ) -> UpdateOutcome {
        match update {
            IndexUpdate::Stored(stored) => self.store_from(
                (target, stream),
                |state, core| state.blocks_to_store(core, target, stored),
                |state, core| {
                    if stream.publisher == Publisher::Store {
                        self.streams.note_names(target, stream);
                    }
                    state.store(core, target, stored)
                },
            ),
            IndexUpdate::Named(named) => self.store_from(
                (target, stream),
                |state, core| {
                    let blocks = state.blocks_named(core, target, &named.hashes);
                    blocks.into_iter().map(|(_, block)| block).collect()
                },
                |state, core| state.store_named(core, target, named),
            ),
            IndexUpdate::Removed(removed) => self.remove_names(target, removed, stream),
            IndexUpdate::Cleared | IndexUpdate::ClearedTier(_) => {
                self.clear_from(target, None, stream)
            }
        }
    }

    /// Stores blocks named by their plain rolling hashes for a stream, the first one behind `parent`
    /// (`None`: it begins a sequence). Source: contract MC13.
    pub fn store_hashes_from(
        &self,
        target: Target,
        namespace: &Namespace,
        (parent, hashes): (Option<SequenceHash>, &[SequenceHash]),
        stream: &MediumStream<'_>,
    ) -> UpdateOutcome {
        let space = self.namespace_key(namespace).0;
        let sequence = HashKeyedBlocks {
            namespace: namespace.clone(),
            space,
            parent,
            hashes: hashes.to_vec(),
            tier: stream.tier,
        };
        self.store_from(
            (target, stream),
            |_, _| in_space(space, hashes),
            |state, core| state.store_hashes(core, target, sequence),
        )
    }

    /// Removes blocks named by their plain rolling hashes from the medium of a stream.
    pub fn remove_hashes_from(
        &self,
        target: Target,
        namespace: &Namespace,
        hashes: &[SequenceHash],
        stream: &MediumStream<'_>,
    ) -> UpdateOutcome {
        let space = self.namespace_key(namespace).0;
        self.with(|state, core| {
            if self.role(target, stream) == StreamRole::Alone {
                return state.remove_hashes(core, target, space, hashes, stream.tier);
            }
            let blocks = in_space(space, hashes);
            let departure = self.streams.removed(target, stream, &blocks);
            let leaves = |hash: &&SequenceHash| !departure.staying.contains(&(space, hash.0));
            let leaving: Vec<_> = hashes.iter().filter(leaves).copied().collect();
            let outcome = state.remove_hashes(core, target, space, &leaving, stream.tier);
            let released = departure.released.len();
            with_staying(outcome, released, hashes.len() - leaving.len())
        })
    }

    /// Clears the medium of a stream, in one namespace or in all. Source: contract MC9.
    pub fn clear_from(
        &self,
        target: Target,
        namespace: Option<&Namespace>,
        stream: &MediumStream<'_>,
    ) -> UpdateOutcome {
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.clear_step((target, stream), namespace, from);
        }
        UpdateOutcome {
            applied: 1,
            ..UpdateOutcome::default()
        }
    }

    /// Clears all media of a backend in the stream's tier, in one namespace; the whole tier if it may
    /// have others than are known.
    pub fn clear_backend(&self, target: Target, namespace: &Namespace, stream: &MediumStream<'_>) {
        let known = self.streams.known((target, stream.tier));
        if known.incomplete {
            return self.clear_all_streams(target, Some(namespace), stream.tier);
        }
        for name in known.names {
            if name.is_of_backend(stream) {
                self.clear_from(target, Some(namespace), &name.in_tier(stream.tier));
            }
        }
    }

    /// Clears what the engine has stored, for another life of it, which may use other names: all names
    /// end, and with them the blocks that any stream goes by names for. What a store announced by
    /// hashes of the standard stays.
    pub fn clear_engine(&self, target: Target) {
        let below = [Tier::Host, Tier::Disk, Tier::Remote];
        let known = below.map(|tier| (tier, self.streams.known((target, tier))));
        let mut names = known.iter().flat_map(|(_, known)| &known.names);
        if names.all(StreamName::ends_with_engine) {
            return self.clear(target);
        }
        self.with(|state, core| {
            state.forget_names(target);
            state.end_resumption(core, target);
        });
        self.clear_all_streams(target, None, Tier::Device);
        for (tier, KnownStreams { names, incomplete }) in known {
            let ending = names.iter().filter(|name| name.ends_with_engine());
            let ending: Vec<_> = ending.collect();
            if ending.is_empty() && (names.is_empty() || incomplete) {
                self.clear_all_streams(target, None, tier);
            }
            for name in ending {
                self.clear_from(target, None, &name.in_tier(tier));
            }
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
        self.streams.of_prefix(target, space, prefix)
    }

    fn role(&self, target: Target, stream: &MediumStream<'_>) -> StreamRole {
        match stream.tier {
            Tier::Device => StreamRole::Alone,
            _ => self.streams.role(target, stream),
        }
    }

    /// Stores blocks for a stream. `blocks`: those that `store` is about to store.
    fn store_from(
        &self,
        (target, stream): (Target, &MediumStream<'_>),
        blocks: impl FnOnce(&mut IndexState, &SharedIndex) -> Vec<StreamBlock>,
        store: impl FnOnce(&mut IndexState, &SharedIndex) -> UpdateOutcome,
    ) -> UpdateOutcome {
        let tier = stream.tier;
        if tier == Tier::Device {
            return self.with(store);
        }
        self.with(|state, core| {
            if stream.publisher != Publisher::Engine {
                state.note_shared(target);
            }
            let in_use = || state.uses_tier(target, tier);
            if self.streams.enter(target, stream, in_use) == StreamRole::Alone {
                return store(state, core);
            }
            let blocks = blocks(state, core);
            let held = state.held_in(core, (target, tier), &blocks);
            state.set_foreign(self.streams.foreign(target, stream, &held));
            let outcome = store(state, core);
            state.set_foreign(HashSet::new());
            if outcome.applied > 0 || outcome.orphans > 0 {
                self.streams.stored(target, stream, &blocks, &held);
            }
            if outcome.orphans > 0 && blocks.is_empty() {
                self.streams.note_unknown_blocks(target, stream);
            }
            outcome
        })
    }

    /// Removes blocks by their names from the medium of a stream.
    fn remove_names(
        &self,
        target: Target,
        removed: &RemovedBlocks,
        stream: &MediumStream<'_>,
    ) -> UpdateOutcome {
        self.with(|state, core| {
            if self.role(target, stream) == StreamRole::Alone {
                return state.remove(core, target, removed, &HashSet::new());
            }
            let named = state.blocks_named(core, target, &removed.hashes);
            let blocks: Vec<_> = named.iter().map(|(_, block)| *block).collect();
            let departure = self.streams.removed(target, stream, &blocks);

            let stay = |(at, block): &(usize, StreamBlock)| {
                departure.staying.contains(block).then_some(*at)
            };
            let staying: HashSet<_> = named.iter().filter_map(stay).collect();
            // A name may stand for several blocks, of which only some stay.
            for (at, (space, hash)) in &named {
                if staying.contains(at) && !departure.staying.contains(&(*space, *hash)) {
                    let hash = [SequenceHash(*hash)];
                    state.remove_hashes(core, target, *space, &hash, removed.tier);
                }
            }
            let names = removed.hashes.iter().enumerate();
            let leaving = names.filter(|(at, _)| !staying.contains(at));
            let mut outcome = UpdateOutcome::default();
            let mut plain = RemovedBlocks {
                hashes: Vec::new(),
                tier: removed.tier,
            };
            for (_, name) in leaving {
                let Some(blocks) = state.blocks_of_chunk(target, removed.tier, *name) else {
                    plain.hashes.push(*name);
                    continue;
                };
                let chunk = RemovedBlocks {
                    hashes: vec![*name],
                    tier: removed.tier,
                };
                let left = self.streams.removed_chunk(target, stream, &blocks);
                outcome = sum(outcome, state.remove(core, target, &chunk, &left));
            }
            let outcome = sum(outcome, state.remove(core, target, &plain, &HashSet::new()));
            with_staying(outcome, departure.released.len(), staying.len())
        })
    }

    /// Does one step of a stream's clear from a given run on; returns the run to continue with. Each
    /// step asks again which streams there are: others may enter the tier between two steps.
    fn clear_step(
        &self,
        (target, stream): (Target, &MediumStream<'_>),
        namespace: Option<&Namespace>,
        from: u32,
    ) -> Option<u32> {
        if self.role(target, stream) == StreamRole::Further {
            self.clear_further(target, namespace, stream);
            return None;
        }
        let tier = (target, stream.tier);
        self.with(|state, core| match self.role(target, stream) {
            StreamRole::Alone => self.clear_all_step((state, core), tier, namespace, from),
            StreamRole::First => {
                let space = namespace.map(|namespace| self.namespace_key(namespace).0);
                if from == 0 {
                    self.streams.clear_marks(tier, space);
                    state.drop_waiting(target, stream.tier, namespace);
                    if namespace.is_none() && self.streams.first_has_all_chunks(tier) {
                        state.drop_chunks(target, stream.tier);
                    }
                }
                let (blocks, next) = state.blocks_in_tier(core, tier, space, from);
                self.remove_blocks((state, core), (target, stream), &blocks);
                next
            }
            StreamRole::Further => Some(from),
        })
    }

    /// Clears one tier of a target, on all media, in one namespace or in all.
    pub(super) fn clear_all_streams(
        &self,
        target: Target,
        namespace: Option<&Namespace>,
        tier: Tier,
    ) {
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.with(|state, core| {
                self.clear_all_step((state, core), (target, tier), namespace, from)
            });
        }
    }

    fn clear_all_step(
        &self,
        (state, core): (&mut IndexState, &SharedIndex),
        (target, tier): (Target, Tier),
        namespace: Option<&Namespace>,
        from: u32,
    ) -> Option<u32> {
        let space = namespace.map(|namespace| self.namespace_key(namespace).0);
        if from == 0 {
            self.streams.clear((target, tier), space);
        }
        let scope = match namespace {
            Some(namespace) => ClearScope::Stream(tier, namespace.clone()),
            None => ClearScope::Tier(tier),
        };
        let next = state.clear(core, target, &scope, from);
        if next.is_none() {
            let in_use = state.uses_tier(target, tier);
            self.streams.end_clear((target, tier), space, in_use);
        }
        next
    }

    /// Clears a further stream of a tier. If it cannot be told what it holds, the whole tier is
    /// cleared: a block too few costs less than one too many.
    fn clear_further(
        &self,
        target: Target,
        namespace: Option<&Namespace>,
        stream: &MediumStream<'_>,
    ) {
        let space = namespace.map(|namespace| self.namespace_key(namespace).0);
        let Some(blocks) = self.streams.blocks_of(target, space, stream) else {
            return self.clear_all_streams(target, namespace, stream.tier);
        };
        for slice in blocks.chunks(SLICE) {
            self.with(|state, core| self.remove_blocks((state, core), (target, stream), slice));
        }
    }

    /// Takes blocks from a stream, and out of the tier if no other one holds them.
    fn remove_blocks(
        &self,
        (state, core): (&mut IndexState, &SharedIndex),
        (target, stream): (Target, &MediumStream<'_>),
        blocks: &[StreamBlock],
    ) {
        let staying = self.streams.removed(target, stream, blocks).staying;
        let mut by_space: BTreeMap<u64, Vec<SequenceHash>> = BTreeMap::new();
        for block in blocks.iter().filter(|block| !staying.contains(block)) {
            by_space
                .entry(block.0)
                .or_default()
                .push(SequenceHash(block.1));
        }
        for (space, hashes) in by_space {
            state.remove_hashes(core, target, space, &hashes, stream.tier);
        }
    }
}

fn sum(one: UpdateOutcome, other: UpdateOutcome) -> UpdateOutcome {
    UpdateOutcome {
        applied: one.applied + other.applied,
        orphans: one.orphans + other.orphans,
        ignored: one.ignored + other.ignored,
        moved: one.moved + other.moved,
    }
}

/// Counts removals of blocks that stay in the tier; `released`: those that the stream held.
fn with_staying(outcome: UpdateOutcome, released: usize, staying: usize) -> UpdateOutcome {
    UpdateOutcome {
        applied: outcome.applied + count(released.min(staying)),
        ignored: outcome.ignored + count(staying.saturating_sub(released)),
        ..outcome
    }
}

#[cfg(test)]
mod tests;
