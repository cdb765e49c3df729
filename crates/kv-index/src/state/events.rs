//! Store events of a target's stream: their namespace and their parent.

use std::sync::Arc;

use kv_blocks::{
    BlockSize, EngineHash, Namespace, PromptIdentity, SequenceHash, StoredBlocks, Target, Tier,
};

use super::{IndexState, storing::BlockChain};
use crate::{
    UpdateOutcome,
    lookup::SharedIndex,
    medium_streams::{StreamBlock, in_space},
    namespaces::{NamespaceId, RunNamespace},
    orphans::{HashKeyedBlocks, NumberScope, OrphanBlocks},
    table::BlockRef,
    writer::ChainPart,
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
        let refused = UpdateOutcome::applied(0, stored.hashes.len());
        let Some(slot) = self.targets.find(target) else {
            return refused;
        };
        let size = stored.block_size.len();
        let fits = stored.tokens.len() == stored.hashes.len().saturating_mul(size);
        if !fits || self.targets.get(slot).model.is_none() {
            return refused;
        }
        self.note_update(slot);
        let applied = self.store_or_cut(core, slot, stored);
        if applied.applied > 0 {
            self.learn_block_size(slot, stored);
        }
        self.graft(core, slot);
        applied
    }

    /// Stores blocks, or chunks cut into blocks.
    fn store_or_cut(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        stored: &StoredBlocks,
    ) -> UpdateOutcome {
        if self.is_chunk(core, slot, stored) {
            self.store_chunks(core, slot, stored)
        } else if self.names.admits(slot, stored.block_size) {
            self.apply_named(core, slot, stored)
        } else {
            UpdateOutcome::applied(0, stored.hashes.len())
        }
    }

    /// Applies orphans whose parents were stored just now, and the orphans behind those.
    fn graft(&mut self, core: &SharedIndex, slot: u32) {
        while let Some(late) = self.arrived.pop_front() {
            match late {
                OrphanBlocks::Named(stored) | OrphanBlocks::Chunks(stored) => {
                    self.store_or_cut(core, slot, &stored)
                }
                OrphanBlocks::Hashed(hashed) => self.store_hashed(core, slot, hashed),
            };
        }
    }

    pub(super) fn resolve_orphans(&mut self, chain: &BlockChain<'_>, done: usize) {
        if self.orphans.is_empty() {
            return;
        }
        let BlockChain { slot, part, .. } = *chain;
        for hash in &part.hashes[..done] {
            let scope = NumberScope::Space(part.namespace.key);
            self.arrived
                .extend(self.orphans.arrived(slot, scope, hash.0));
        }
        if let Some((names, size)) = chain.names {
            for name in &names[..done] {
                for scope in [NumberScope::Size(size.tokens()), NumberScope::Chunks] {
                    self.arrived
                        .extend(self.orphans.arrived(slot, scope, name.0));
                }
            }
        }
    }

    fn apply_named(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        stored: &StoredBlocks,
    ) -> UpdateOutcome {
        let (namespace, parent) = match self.origin(core, slot, stored) {
            ParentRef::Known(namespace, parent) => (namespace, parent),
            other => {
                let outcome = UpdateOutcome::orphaned(stored.hashes.len());
                self.counts.orphaned += u64::from(outcome.orphans);
                if matches!(other, ParentRef::Unknown) {
                    self.orphans
                        .insert(slot, OrphanBlocks::Named(stored.clone()));
                    self.stay_within_budget(core);
                }
                return outcome;
            }
        };
        let hashes = self.hashes_behind(core, parent, stored);
        let chain = BlockChain {
            slot,
            tier: stored.tier,
            part: ChainPart {
                namespace,
                parent,
                hashes: &hashes,
            },
            names: Some((&stored.hashes, stored.block_size)),
        };
        let applied = self.store_chain(core, &chain);
        self.namespaces.release(namespace.id);
        applied
    }

    /// Returns the rolling hashes of stored blocks behind their parent.
    fn hashes_behind(
        &self,
        core: &SharedIndex,
        parent: Option<BlockRef>,
        stored: &StoredBlocks,
    ) -> Vec<SequenceHash> {
        let mut last = parent.map(|parent| SequenceHash(self.writer.hash(core, parent)));
        let scheme = self.settings.scheme;
        stored
            .blocks()
            .map(|(tokens, media)| {
                let hash = scheme.extend_with(last, tokens, media);
                last = Some(hash);
                hash
            })
            .collect()
    }

    /// Returns the blocks that a store consists of; none if their place is unknown.
    pub(crate) fn blocks_to_store(
        &mut self,
        core: &SharedIndex,
        target: Target,
        stored: &StoredBlocks,
    ) -> Vec<StreamBlock> {
        let Some(slot) = self.targets.find(target) else {
            return Vec::new();
        };
        if self.is_chunk(core, slot, stored) {
            return self.blocks_of_new_chunks(core, slot, stored);
        }
        let ParentRef::Known(namespace, parent) = self.origin(core, slot, stored) else {
            return Vec::new();
        };
        let hashes = self.hashes_behind(core, parent, stored);
        self.namespaces.release(namespace.id);
        in_space(namespace.key, &hashes)
    }

    /// Returns whether a target has blocks in a tier, or blocks that wait for a place in it.
    pub(crate) fn uses_tier(&self, target: Target, tier: Tier) -> bool {
        self.targets.find(target).is_some_and(|slot| {
            let blocks = self.targets.get(slot).blocks[tier.index()];
            blocks > 0 || self.orphans.any_in_tier(slot, tier)
        })
    }

    /// Returns all tiers with blocks but for the devices.
    pub(crate) fn shared_tiers_in_use(&self) -> Vec<(Target, Tier)> {
        let tiers = |(target, slot)| {
            let blocks = &self.targets.get(slot).blocks;
            let below = [Tier::Host, Tier::Disk, Tier::Remote].into_iter();
            let in_use = below.filter(move |tier| blocks[tier.index()] > 0);
            in_use.map(move |tier| (target, tier))
        };
        self.targets.iter().flat_map(tiers).collect()
    }

    /// Stores blocks named by their rolling hashes.
    pub(crate) fn store_hashes(
        &mut self,
        core: &SharedIndex,
        target: Target,
        hashed: HashKeyedBlocks,
    ) -> UpdateOutcome {
        let Some(slot) = self.targets.find(target) else {
            return UpdateOutcome::applied(0, hashed.hashes.len());
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
                let outcome = UpdateOutcome::orphaned(hashed.hashes.len());
                self.counts.orphaned += u64::from(outcome.orphans);
                self.orphans.insert(slot, OrphanBlocks::Hashed(hashed));
                self.stay_within_budget(core);
                return outcome;
            }
            known => known.flatten(),
        };
        let namespace = self.namespaces.enter(&hashed.namespace);
        let chain = BlockChain {
            slot,
            tier: hashed.tier,
            part: ChainPart {
                namespace,
                parent,
                hashes: &hashed.hashes,
            },
            names: None,
        };
        let applied = self.store_chain(core, &chain);
        self.namespaces.release(namespace.id);
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
            return ParentRef::Known(self.namespaces.enter(&namespace), None);
        };
        let Some((block_ref, id)) = self.named_parent(core, slot, parent, stored.block_size) else {
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
        self.namespaces.add_use(id);
        ParentRef::Known(self.namespaces.in_runs(id), Some(block_ref))
    }

    /// Returns the block that a target calls by this name, with its namespace. A name from another
    /// target counts only if the two are known to share names.
    pub(super) fn named_parent(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        name: EngineHash,
        size: BlockSize,
    ) -> Option<(BlockRef, NamespaceId)> {
        let known = self.names.resolve(slot, name, size)?;
        (known.proven || self.writer.holds(core, known.block_ref, slot)).then_some(())?;
        Some((known.block_ref, self.writer.space(known.block_ref.run)?))
    }
}
