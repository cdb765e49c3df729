//! Conversion of events into index updates.

use std::sync::Arc;

use kv_blocks::{BlockSize, IndexUpdate, NamedBlocks, RemovedBlocks, StoredBlocks, Tier};

use super::{BlockRemoved, BlockStored, ExtraKey, Medium, VllmEvent, WireTokens};

/// An event without meaning for the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event ignored: {}", .reason.as_str())]
pub struct IgnoredEvent {
    /// The reason.
    pub reason: IgnoredReason,
}

/// Why an event was ignored; a closed set, used as a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IgnoredReason {
    /// A tag that this release does not know.
    UnknownTag,
    /// No tokens, on the device: the content of the blocks is unknown.
    NoTokens,
    /// No blocks.
    NoBlocks,
    /// A KV-cache group that does not hold every token: sliding windows, recurrent state.
    NotFullAttention,
    /// More tokens than the blocks hold: some blocks were skipped, and the event does not name
    /// them.
    SkippedBlocks,
    /// The first block depends on images, audio or embeddings, which tokens do not represent.
    Multimodal,
    /// A block that is its own parent or occurs twice.
    SelfReference,
}

impl IgnoredReason {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::UnknownTag,
        Self::NoTokens,
        Self::NoBlocks,
        Self::NotFullAttention,
        Self::SkippedBlocks,
        Self::Multimodal,
        Self::SelfReference,
    ];

    /// Returns the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownTag => "unknown_tag",
            Self::NoTokens => "no_tokens",
            Self::NoBlocks => "no_blocks",
            Self::NotFullAttention => "not_full_attention",
            Self::SkippedBlocks => "skipped_blocks",
            Self::Multimodal => "multimodal",
            Self::SelfReference => "self_reference",
        }
    }

    /// Returns the position in [`IgnoredReason::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

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
        if let Some(kind) = event.kv_cache_spec_kind.as_deref() {
            self.learn(
                event.group_idx.unwrap_or(0),
                matches!(kind, "full_attention" | "mla_attention"),
            );
        }
        if !self.holds_all_tokens(event.group_idx) {
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
        let tier = Medium::parse(event.medium.as_deref(), event.locality.as_deref()).tier();
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
            tier: Medium::parse(event.medium.as_deref(), event.locality.as_deref()).tier(),
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

/// Returns the blocks of a store with tokens, as far as they depend on tokens, adapter and salt
/// alone.
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
    let keys = ExtraKeys::read(event);
    let plain = keys.plain_blocks.min(event.block_hashes.len());
    if plain == 0 {
        return Err(IgnoredReason::Multimodal.into());
    }
    let tokens = match &event.token_ids {
        WireTokens::Flat(tokens) => tokens[..plain * size].to_vec(),
        WireTokens::Pairs(pairs) => pairs[..plain * size]
            .iter()
            .map(|(token, _)| *token)
            .collect(),
    };
    Ok(IndexUpdate::Stored(StoredBlocks {
        hashes: event.block_hashes[..plain].to_vec(),
        parent: event.parent_block_hash,
        tokens,
        block_size,
        lora: keys.lora,
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

impl From<IgnoredReason> for IgnoredEvent {
    fn from(reason: IgnoredReason) -> Self {
        Self { reason }
    }
}

/// The inputs besides the tokens that distinguish blocks.
struct ExtraKeys {
    lora: Option<Arc<str>>,
    salt: Option<Arc<str>>,
    /// Number of leading blocks that depend on tokens, adapter and salt alone.
    plain_blocks: usize,
}

impl ExtraKeys {
    /// Reads the extra keys. They name the adapter first (when it has a name), then multimodal
    /// items, then the salt (on the first block of a sequence only), then embeddings. Salts are
    /// bare strings, and so were multimodal identifiers in two releases: a bare string is a salt
    /// only where a salt can be, and alone.
    fn read(event: &BlockStored) -> Self {
        let mut keys = Self {
            lora: lora(event),
            salt: not_empty(&event.cache_salt),
            plain_blocks: usize::MAX,
        };
        let mut salt = None;
        for (block, parts) in event.extra_keys.iter().flatten().enumerate() {
            let own = match parts.split_first() {
                Some((ExtraKey::Text(first), own)) if Some(first) == event.lora_name.as_ref() => {
                    own
                }
                _ => &parts[..],
            };
            match own {
                [] => {}
                [ExtraKey::Text(text)] if block == 0 && event.parent_block_hash.is_none() => {
                    salt = Some(Arc::clone(text));
                }
                // A bare identifier on a later block means that the one on the first block was not
                // a salt either.
                [ExtraKey::Text(_), ..] if salt.is_some() => {
                    keys.plain_blocks = 0;
                    break;
                }
                _ => {
                    keys.plain_blocks = block;
                    break;
                }
            }
        }
        keys.salt = keys.salt.or_else(|| not_empty(&salt));
        keys
    }
}

/// Returns the adapter's name, or its number where it has no name, spelt so that it equals no name.
fn lora(event: &BlockStored) -> Option<Arc<str>> {
    // Engines number adapters from 1 on.
    let number = || {
        event
            .lora_id
            .filter(|number| *number > 0)
            .map(|number| Arc::from(format!("lora_id:{number}")))
    };
    not_empty(&event.lora_name).or_else(number)
}

fn not_empty(text: &Option<Arc<str>>) -> Option<Arc<str>> {
    text.clone().filter(|text| !text.is_empty())
}
