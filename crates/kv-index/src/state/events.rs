//! Store events of a target's stream: their namespace and their parent.

use std::sync::Arc;

use kv_blocks::{Namespace, PromptIdentity, SequenceHash, StoredBlocks, Target, Tier};

use super::{IndexState, holding::BlockChain};
use crate::{
    UpdateOutcome,
    lookup::SharedIndex,
    namespaces,
    orphans::{HashKeyedBlocks, NumberScope, OrphanBlocks},
    table::BlockRef,
    writer::RunNamespace,
};

/// Parent of an event's first block.
enum ParentRef {
    /// Known: the namespace, and the block before; `None` begins a sequence.
    Known(RunNamespace, Option<BlockRef>),
    /// Unknown; it may arrive later.
    Unknown,
    /// The event contradicts its parent.
    Contradicted,
}

impl IndexState {
    pub(crate) fn store(
        &mut self,
        core: &SharedIndex,
        target: Target,
        stored: &StoredBlocks,
    ) -> UpdateOutcome {
        let refused = UpdateOutcome {
            ignored: count(stored.hashes.len()),
            ..UpdateOutcome::default()
        };
        let Some(slot) = self.targets.find(target) else {
            return refused;
        };
        let size = stored.block_size;
        let fits = stored.tokens.len() == stored.hashes.len().saturating_mul(size.len());
        if !fits || self.targets.get(slot).model.is_none() || !self.names.admits(slot, size) {
            return refused;
        }
        let applied = self.apply_named(core, slot, stored);
        self.graft(core, slot);
        applied
    }

    /// Applies orphans whose parents were stored just now, and the orphans behind those.
    fn graft(&mut self, core: &SharedIndex, slot: u32) {
        while let Some(late) = self.arrived.pop_front() {
            match late {
                OrphanBlocks::Named(stored) => self.apply_named(core, slot, &stored),
                OrphanBlocks::Hashed(hashed) => self.store_hashed(core, slot, hashed),
            };
        }
    }

    pub(super) fn resolve_orphans(&mut self, chain: &BlockChain<'_>, done: usize) {
        if self.orphans.is_empty() {
            return;
        }
        let BlockChain {
            slot,
            namespace: home,
            hashes,
            ..
        } = *chain;
        for hash in &hashes[..done] {
            self.arrived.extend(
                self.orphans
                    .arrived(slot, NumberScope::Space(home.key), hash.0),
            );
        }
        if let Some((names, size)) = chain.names {
            for name in &names[..done] {
                self.arrived.extend(self.orphans.arrived(
                    slot,
                    NumberScope::Size(size.tokens()),
                    name.0,
                ));
            }
        }
    }

    fn apply_named(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        stored: &StoredBlocks,
    ) -> UpdateOutcome {
        let all = count(stored.hashes.len());
        let (home, parent) = match self.origin(core, slot, stored) {
            ParentRef::Known(home, parent) => (home, parent),
            other => {
                self.orphaned += u64::from(all);
                if matches!(other, ParentRef::Unknown) {
                    self.orphans.keep(slot, OrphanBlocks::Named(stored.clone()));
                    self.stay_within_budget(core);
                }
                return UpdateOutcome {
                    orphans: all,
                    ..UpdateOutcome::default()
                };
            }
        };
        let mut last = parent.map(|parent| SequenceHash(self.writer.hash(core, parent)));
        let scheme = self.settings.scheme;
        let blocks = stored.tokens.chunks_exact(stored.block_size.len());
        let hashes: Vec<_> = blocks
            .map(|tokens| {
                let hash = scheme.extend(last, tokens);
                last = Some(hash);
                hash
            })
            .collect();
        let names = Some((&stored.hashes[..], stored.block_size));
        let applied = self.store_chain(
            core,
            &BlockChain {
                slot,
                tier: stored.tier,
                namespace: home,
                parent,
                hashes: &hashes,
                names,
            },
        );
        self.namespaces.leave(home.id);
        applied
    }

    /// Stores blocks named by their rolling hashes.
    pub(crate) fn store_hashes(
        &mut self,
        core: &SharedIndex,
        target: Target,
        namespace: &Namespace,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        tier: Tier,
    ) -> UpdateOutcome {
        let all = count(hashes.len());
        let Some(slot) = self.targets.find(target) else {
            return UpdateOutcome {
                ignored: all,
                ..UpdateOutcome::default()
            };
        };
        let space = namespaces::key(namespace, self.secret);
        let hashed = HashKeyedBlocks {
            namespace: namespace.clone(),
            space,
            parent,
            hashes: hashes.to_vec(),
            tier,
        };
        let applied = self.store_hashed(core, slot, hashed);
        self.graft(core, slot);
        applied
    }

    fn store_hashed(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        hashed: HashKeyedBlocks,
    ) -> UpdateOutcome {
        let parent = match hashed
            .parent
            .map(|parent| self.writer.find(core, hashed.space, parent.0))
        {
            Some(None) => {
                let all = count(hashed.hashes.len());
                self.orphaned += u64::from(all);
                self.orphans.keep(slot, OrphanBlocks::Hashed(hashed));
                self.stay_within_budget(core);
                return UpdateOutcome {
                    orphans: all,
                    ..UpdateOutcome::default()
                };
            }
            known => known.flatten(),
        };
        let home = self.enter(&hashed.namespace);
        let (tier, hashes) = (hashed.tier, &hashed.hashes[..]);
        let applied = self.store_chain(
            core,
            &BlockChain {
                slot,
                tier,
                namespace: home,
                parent,
                hashes,
                names: None,
            },
        );
        self.namespaces.leave(home.id);
        applied
    }

    /// Returns the parent of an event's first block, with one use of its namespace.
    fn origin(&mut self, core: &SharedIndex, slot: u32, stored: &StoredBlocks) -> ParentRef {
        let Some(model) = self.targets.get(slot).model.clone() else {
            return ParentRef::Contradicted;
        };
        let Some(parent) = stored.parent else {
            let namespace = Namespace {
                model,
                lora: stored.lora.clone(),
                salt: stored.salt.clone(),
                block_size: stored.block_size,
                identity: PromptIdentity::Tokens,
            };
            return ParentRef::Known(self.enter(&namespace), None);
        };
        // The parent's engine hash from another target counts only if the two are known to share
        // names.
        let known = self.names.resolve(slot, parent, stored.block_size);
        let known = known.filter(|known| known.proven || self.writer.holds(core, known.spot, slot));
        let Some((spot, id)) =
            known.and_then(|known| Some((known.spot, self.writer.space(known.spot.run)?)))
        else {
            return ParentRef::Unknown;
        };
        // Adapter and salt are inherited. An event with others contradicts its parent: the names
        // were mixed up.
        let namespace = &self.namespaces.get(id).namespace;
        let contradicts = |own: &Option<Arc<str>>, inherited| own.is_some() && own != inherited;
        if contradicts(&stored.lora, &namespace.lora)
            || contradicts(&stored.salt, &namespace.salt)
            || namespace.block_size != stored.block_size
            || namespace.model != model
        {
            return ParentRef::Contradicted;
        }
        self.namespaces.keep(id);
        ParentRef::Known(self.home(id), Some(spot))
    }
}

pub(super) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
