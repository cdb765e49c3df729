//! Conversion of events into index updates.

use kv_blocks::{BlockSize, IndexUpdate, NamedBlocks, RemovedBlocks, StoredBlocks, Tier};

use super::{
    BlockRemoved, BlockStored, IgnoredEvent, IgnoredReason, Medium, VllmEvent, WireTokens,
    extra_keys::ExtraKeys,
};

/// Converts one event without knowledge of the events before it. A stream uses a [`Normaliser`]
/// instead.
pub fn to_update(event: &VllmEvent) -> Result<IndexUpdate, IgnoredEvent> {
    Normaliser::default().update(event)
}

/// Most groups remembered; a hybrid model has a handful. Further ones count as never seen.
const MAX_GROUPS: usize = 64;

/// Converts one publisher's events into index updates.
///
/// It remembers the kind of each KV-cache group in the stores, because removals name the group
/// only.
#[derive(Clone, Debug, Default)]
pub struct Normaliser {
    /// Each group, and whether its blocks hold every token.
    groups: Vec<(u32, bool)>,
}

impl Normaliser {
    /// Converts one event.
    pub fn update(&mut self, event: &VllmEvent) -> Result<IndexUpdate, IgnoredEvent> {
        match event {
            VllmEvent::Stored(event) => self.stored(event),
            VllmEvent::Removed(event) => self.removed(event),
            VllmEvent::Cleared => Ok(IndexUpdate::Cleared),
            VllmEvent::Unknown { .. } => Err(IgnoredReason::UnknownTag.into()),
        }
    }

    fn stored(&mut self, event: &BlockStored) -> Result<IndexUpdate, IgnoredEvent> {
        if let Some(kind) = event.group.spec_kind.as_deref() {
            self.learn(
                event.group.idx.unwrap_or(0),
                matches!(kind, "full_attention" | "mla_attention"),
            );
        }
        if !self.holds_all_tokens(event.group.idx) {
            return Err(IgnoredReason::NotFullAttention.into());
        }
        if event.block_hashes.is_empty() {
            let nothing = if event.token_ids.is_empty() {
                IgnoredReason::NoTokens
            } else {
                IgnoredReason::NoBlocks
            };
            return Err(nothing.into());
        }
        let tier = Medium::of(&event.location).tier();
        if event.token_ids.is_empty() {
            // A placeholder: blocks that the engine has announced before are in an offload or
            // storage tier too.
            return match tier {
                Tier::Device => Err(IgnoredReason::NoTokens.into()),
                tier => Ok(IndexUpdate::Named(NamedBlocks {
                    hashes: event.block_hashes.clone(),
                    tier,
                })),
            };
        }
        stored_blocks(event, tier)
    }

    fn removed(&self, event: &BlockRemoved) -> Result<IndexUpdate, IgnoredEvent> {
        if !self.holds_all_tokens(event.group_idx) {
            return Err(IgnoredReason::NotFullAttention.into());
        }
        if event.block_hashes.is_empty() {
            return Err(IgnoredReason::NoBlocks.into());
        }
        Ok(IndexUpdate::Removed(RemovedBlocks {
            hashes: event.block_hashes.clone(),
            tier: Medium::of(&event.location).tier(),
        }))
    }

    fn learn(&mut self, group: u32, full: bool) {
        if let Some((_, known)) = self.groups.iter_mut().find(|(known, _)| *known == group) {
            *known = full;
        } else if self.groups.len() < MAX_GROUPS {
            self.groups.push((group, full));
        }
    }

    /// Returns whether the group holds every token. A group of unknown kind does if it is the first
    /// or the only one.
    fn holds_all_tokens(&self, group: Option<u32>) -> bool {
        let group = group.unwrap_or(0);
        self.groups
            .iter()
            .find(|(known, _)| *known == group)
            .map_or(group == 0, |(_, full)| *full)
    }
}

/// Returns the blocks of a store with tokens, as far as everything that they depend on is known.
fn stored_blocks(event: &BlockStored, tier: Tier) -> Result<IndexUpdate, IgnoredEvent> {
    let size = event.block_size as usize;
    let Ok(block_size) = BlockSize::new(event.block_size.into()) else {
        return Err(IgnoredReason::NoTokens.into());
    };
    if event.token_ids.len() != event.block_hashes.len() * size {
        return Err(IgnoredReason::SkippedBlocks.into());
    }
    if names_a_block_twice(event) {
        return Err(IgnoredReason::SelfReference.into());
    }
    let mut keys = ExtraKeys::read(event);
    let known = keys.known_blocks.min(event.block_hashes.len());
    keys.media.truncate(known);
    if known == 0 {
        return Err(IgnoredReason::Multimodal.into());
    }
    let tokens = match &event.token_ids {
        WireTokens::Flat(tokens) => tokens[..known * size].to_vec(),
        WireTokens::Pairs(pairs) => pairs[..known * size]
            .iter()
            .map(|(token, _)| *token)
            .collect(),
    };
    Ok(IndexUpdate::Stored(StoredBlocks {
        hashes: event.block_hashes[..known].to_vec(),
        parent: event.parent_block_hash,
        tokens,
        block_size,
        lora: keys.lora,
        media: keys.media,
        salt: keys.salt,
        tier,
    }))
}

/// Returns whether a block occurs twice, the parent included.
fn names_a_block_twice(event: &BlockStored) -> bool {
    let mut sorted: Vec<_> = event
        .block_hashes
        .iter()
        .copied()
        .chain(event.parent_block_hash)
        .collect();
    sorted.sort_unstable();
    sorted.windows(2).any(|two| two[0] == two[1])
}
