//! Stores and removals of chunks: blocks of another size than the target's own, in another tier than
//! its device.

use std::{collections::HashSet, sync::Arc};

use kv_blocks::{
    BlockSize, EngineHash, Namespace, PromptIdentity, SequenceHash, StoredBlocks, Target, Tier,
};

use super::{IndexState, storing::BlockChain, targets::OwnBlockSize};
use crate::{
    UpdateOutcome,
    chunks::{ChainEnd, Chunk},
    lookup::SharedIndex,
    medium_streams::{StreamBlock, in_space},
    namespaces::RunNamespace,
    orphans::{NumberScope, OrphanBlocks},
    runs::tier_number,
    writer::ChainPart,
};

/// Largest own block, in tokens, that chunks are cut into: each chunk stores the tokens behind its
/// last whole block.
const MAX_CUT_SIZE: usize = 1024;

/// Where the tokens of a chunk continue a chain.
enum ChunkStart {
    Known(ChainEnd),
    /// Behind a chunk that may arrive later.
    Unknown,
    /// Behind a chunk of another adapter, salt or block size.
    Contradicted,
}

/// A chunk to store.
struct NewChunk<'a> {
    slot: u32,
    tier: Tier,
    name: EngineHash,
    tokens: &'a [u32],
}

/// Returns the chunks before the first one with a multimodal item: where an item ends is unknown,
/// and so which of the blocks have tokens of it.
fn usable_chunks(stored: &StoredBlocks) -> impl Iterator<Item = (EngineHash, &[u32])> {
    let names = stored.hashes.iter().copied();
    names
        .zip(stored.blocks())
        .map_while(|(name, (tokens, media))| media.is_none().then_some((name, tokens)))
}

impl IndexState {
    /// Sets the size of a target's own blocks, as long as its events have not shown it.
    pub(crate) fn expect_block_size(
        &mut self,
        core: &SharedIndex,
        target: Target,
        size: BlockSize,
    ) {
        if let Some(slot) = self.slot(core, target) {
            let own = &mut self.targets.get_mut(slot).block_size;
            if !matches!(own, Some(OwnBlockSize::Shown(_))) {
                *own = Some(OwnBlockSize::Expected(size));
            }
        }
    }

    /// Learns the size of a target's own blocks from the first store on its device.
    pub(super) fn learn_block_size(&mut self, slot: u32, stored: &StoredBlocks) {
        let own = &mut self.targets.get_mut(slot).block_size;
        if stored.tier == Tier::Device && !matches!(own, Some(OwnBlockSize::Shown(_))) {
            *own = Some(OwnBlockSize::Shown(stored.block_size));
        }
    }

    /// Returns whether a store must be cut into the target's own blocks: its blocks have another
    /// size, or are behind a chunk, as the short last chunk of a prompt may be.
    pub(super) fn is_chunk(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        stored: &StoredBlocks,
    ) -> bool {
        let own = self.targets.get(slot).block_size.map(OwnBlockSize::size);
        let Some(own) = own.filter(|_| stored.tier != Tier::Device) else {
            return false;
        };
        let is_behind_chunk = |parent| {
            self.chunks.find(slot, parent).is_some()
                && self.named_parent(core, slot, parent, own).is_none()
        };
        own != stored.block_size || stored.parent.is_some_and(is_behind_chunk)
    }

    /// Stores chunks as blocks of the target's own size.
    pub(super) fn store_chunks(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        stored: &StoredBlocks,
    ) -> UpdateOutcome {
        let mut end = match self.chunk_start(core, slot, stored) {
            ChunkStart::Known(end) => end,
            other => {
                let outcome = UpdateOutcome::orphaned(stored.hashes.len());
                self.counts.orphaned += u64::from(outcome.orphans);
                if matches!(other, ChunkStart::Unknown) {
                    let late = OrphanBlocks::Chunks(stored.clone());
                    self.orphans.insert(slot, late);
                    self.stay_within_budget(core);
                }
                return outcome;
            }
        };
        let namespace = self.namespaces.enter(&Arc::clone(&end.namespace));
        let mut applied = 0;
        for (name, tokens) in usable_chunks(stored) {
            let chunk = NewChunk {
                slot,
                tier: stored.tier,
                name,
                tokens,
            };
            if !self.store_chunk(core, namespace, chunk, &mut end) {
                break;
            }
            applied += 1;
        }
        self.namespaces.release(namespace.id);
        self.stay_within_budget(core);
        UpdateOutcome::applied(applied, stored.hashes.len())
    }

    /// Stores one chunk behind `end`, which becomes its end. Returns whether all of its blocks are
    /// stored.
    fn store_chunk(
        &mut self,
        core: &SharedIndex,
        namespace: RunNamespace,
        new: NewChunk<'_>,
        end: &mut ChainEnd,
    ) -> bool {
        let (before, own_size) = (end.last, end.namespace.block_size);
        let blocks = self.cut(end, new.tokens);
        let NewChunk {
            slot, tier, name, ..
        } = new;
        let known = self.chunks.get(slot, tier, name);
        let repeated = known.is_some_and(|known| known.end == *end && known.blocks == blocks);
        if !repeated {
            self.remove_chunk(core, slot, (tier, name), &HashSet::new());
        }
        let resident = self.resident_in_tier(core, (slot, tier), end.space, &blocks);
        if repeated {
            // What is stored again here was removed under its other holders.
            let resident: HashSet<_> = resident.iter().collect();
            for hash in blocks.iter().filter(|hash| !resident.contains(hash)) {
                self.chunks.release((slot, tier), end.space, *hash);
            }
        }
        let parent = match before.map(|before| self.writer.find(core, end.space, before.0)) {
            // Evicted, or removed with everything behind it: there is no place for the blocks.
            Some(None) => return false,
            known => known.flatten(),
        };
        let chain = BlockChain {
            slot,
            tier,
            part: ChainPart {
                namespace,
                parent,
                hashes: &blocks,
            },
            names: None,
        };
        let all = self.store_chain(core, &chain).ignored == 0;
        if !repeated {
            let chunk = Chunk {
                slot,
                tier,
                end: end.clone(),
                blocks,
            };
            self.chunks.insert(name, chunk, &resident);
            while self.chunks.is_over_limit() && self.forget_oldest_chunk(core) {}
        }
        let size = NumberScope::Size(own_size.tokens());
        for scope in [NumberScope::Chunks, size] {
            self.arrived
                .extend(self.orphans.arrived(slot, scope, name.0));
        }
        all
    }

    /// Moves the end of a chain behind more tokens; returns the blocks that end in them.
    fn cut(&self, end: &mut ChainEnd, tokens: &[u32]) -> Vec<SequenceHash> {
        let size = end.namespace.block_size;
        end.rest.extend_from_slice(tokens);
        let blocks = self.settings.scheme.chain(end.last, &end.rest, size);
        end.rest.drain(..blocks.len() * size.len());
        end.last = blocks.last().copied().or(end.last);
        blocks
    }

    /// Returns where the first chunk of a store begins.
    fn chunk_start(&mut self, core: &SharedIndex, slot: u32, stored: &StoredBlocks) -> ChunkStart {
        let owner = self.targets.get(slot);
        let (Some(model), Some(block_size)) = (
            owner.model.clone(),
            owner.block_size.map(OwnBlockSize::size),
        ) else {
            return ChunkStart::Contradicted;
        };
        if block_size.len() > MAX_CUT_SIZE {
            return ChunkStart::Contradicted;
        }
        let Some(parent) = stored.parent else {
            let namespace = self.namespaces.enter(&Namespace {
                model,
                lora: stored.lora.clone(),
                salt: stored.salt.clone(),
                block_size,
                identity: PromptIdentity::Tokens,
            });
            let end = ChainEnd {
                namespace: Arc::clone(&self.namespaces.get(namespace.id).namespace),
                space: namespace.key,
                last: None,
                rest: Vec::new(),
            };
            self.namespaces.release(namespace.id);
            return ChunkStart::Known(end);
        };
        let before = match self.chunks.find(slot, parent) {
            Some(chunk) => Some(chunk.end.clone()),
            None => self.end_of_block(core, slot, parent, block_size),
        };
        let Some(before) = before else {
            return ChunkStart::Unknown;
        };
        // Adapter and salt are inherited, as those of blocks are.
        let namespace = &before.namespace;
        let contradicts = |own: &Option<Arc<str>>, inherited| own.is_some() && own != inherited;
        if contradicts(&stored.lora, &namespace.lora)
            || contradicts(&stored.salt, &namespace.salt)
            || namespace.block_size != block_size
            || namespace.model != model
        {
            return ChunkStart::Contradicted;
        }
        ChunkStart::Known(before)
    }

    /// Returns the end of a chain at one of the target's own blocks.
    fn end_of_block(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        name: EngineHash,
        size: BlockSize,
    ) -> Option<ChainEnd> {
        let (block_ref, id) = self.named_parent(core, slot, name, size)?;
        Some(ChainEnd {
            namespace: Arc::clone(&self.namespaces.get(id).namespace),
            space: self.namespaces.in_runs(id).key,
            last: Some(SequenceHash(self.writer.hash(core, block_ref))),
            rest: Vec::new(),
        })
    }

    /// Returns the blocks of a target's chunk in a tier that no other chunk of its stream has; `None`
    /// if there is no such chunk.
    pub(crate) fn blocks_of_chunk(
        &self,
        target: Target,
        tier: Tier,
        name: EngineHash,
    ) -> Option<Vec<StreamBlock>> {
        let slot = self.targets.find(target)?;
        self.chunks.unshared(slot, tier, name)
    }

    /// Sets the blocks that only other streams than that of the next stores hold.
    pub(crate) fn set_foreign(&mut self, blocks: HashSet<StreamBlock>) {
        self.chunks.set_foreign(blocks);
    }

    /// Returns the blocks that a store of chunks consists of; none if their place is unknown.
    pub(super) fn blocks_of_new_chunks(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        stored: &StoredBlocks,
    ) -> Vec<StreamBlock> {
        let ChunkStart::Known(mut end) = self.chunk_start(core, slot, stored) else {
            return Vec::new();
        };
        usable_chunks(stored)
            .flat_map(|(_, tokens)| in_space(end.space, &self.cut(&mut end, tokens)))
            .collect()
    }

    /// Removes a chunk with its blocks, but for the `staying` ones, from a tier; returns whether it
    /// was there.
    pub(super) fn remove_chunk(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        (tier, name): (Tier, EngineHash),
        staying: &HashSet<StreamBlock>,
    ) -> bool {
        let Some(mut chunk) = self.chunks.remove(slot, tier, name) else {
            return false;
        };
        let space = chunk.end.space;
        chunk
            .blocks
            .retain(|hash| !staying.contains(&(space, hash.0)));
        self.remove_chunk_blocks(core, &chunk);
        true
    }

    /// Forgets the oldest chunk with its blocks; returns whether there was one.
    pub(super) fn forget_oldest_chunk(&mut self, core: &SharedIndex) -> bool {
        let Some(chunk) = self.chunks.forget_oldest() else {
            return false;
        };
        self.counts.shed += chunk.blocks.len() as u64;
        self.remove_chunk_blocks(core, &chunk);
        true
    }

    fn remove_chunk_blocks(&mut self, core: &SharedIndex, chunk: &Chunk) {
        let Chunk { slot, tier, .. } = *chunk;
        self.remove_known(core, (slot, tier), chunk.end.space, &chunk.blocks);
        self.apply_effects();
    }

    /// Returns the blocks of a chain that a slot holds in a tier.
    fn resident_in_tier(
        &mut self,
        core: &SharedIndex,
        (slot, tier): (u32, Tier),
        space: u64,
        chain: &[SequenceHash],
    ) -> Vec<SequenceHash> {
        let mut resident = Vec::new();
        let mut rest = chain;
        // Behind an unknown block there is no known one.
        while let Some(block_ref) = rest
            .first()
            .and_then(|first| self.writer.find(core, space, first.0))
        {
            let (_, count) = self.writer.stretch(core, block_ref, rest);
            let (known, behind) = rest.split_at(count);
            self.writer.stretches(core, block_ref.run, slot, |span| {
                let first = span.start.saturating_sub(block_ref.at) as usize;
                let end = span.end.saturating_sub(block_ref.at) as usize;
                if span.tier == tier_number(tier) {
                    resident.extend(known[..end.min(known.len())].iter().skip(first));
                }
            });
            rest = behind;
        }
        resident
    }
}
