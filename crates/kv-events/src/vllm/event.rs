//! Events with every field of the wire format, each one checked.

use std::sync::Arc;

use kv_blocks::{BlockSize, EngineHash};

use super::{
    event_error::VllmEventError,
    fields::{VllmField, VllmFields},
    values::{
        ExtraKey, WireTokens, block_hashes, extra_keys, hash, lookahead, number, text, tokens,
        whole_number, wrong,
    },
};

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub enum VllmEvent {
    /// Blocks became reusable.
    Stored(Box<BlockStored>),
    /// Blocks were removed from one medium.
    Removed(Box<BlockRemoved>),
    /// The publisher's device cache was emptied.
    Cleared,
    /// A tag that this release does not know.
    Unknown {
        /// The tag as sent, cut to 64 characters.
        tag: String,
    },
}

/// `BlockStored` as sent; nil and absent are the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockStored {
    /// The engine's names of the blocks.
    pub block_hashes: Vec<EngineHash>,
    /// The block before the first.
    pub parent_block_hash: Option<EngineHash>,
    /// The tokens; never fewer than the blocks need, except none at all.
    pub token_ids: WireTokens,
    /// Tokens per block; 0 in placeholders, which have no tokens.
    pub block_size: u32,
    /// The adapter.
    pub lora: LoraAdapter,
    /// The place of the blocks.
    pub location: BlockLocation,
    /// Further inputs of each block's hash: one entry per block, empty without any.
    pub extra_keys: Option<Vec<Vec<ExtraKey>>>,
    /// KV-cache group of hybrid models.
    pub group: KvCacheGroup,
    /// The session; for attribution only.
    pub session_id: Option<Arc<str>>,
    /// Tokens behind each block that are part of its hash.
    pub lookahead_token_ids: Option<Vec<Vec<u32>>>,
    /// A cache salt in a separate field (SGLang).
    pub cache_salt: Option<Arc<str>>,
}

/// A LoRA adapter as sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoraAdapter {
    /// Its number.
    pub id: Option<i64>,
    /// Its name.
    pub name: Option<Arc<str>>,
}

/// A KV-cache group as sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KvCacheGroup {
    /// Its number.
    pub idx: Option<u32>,
    /// Its kind.
    pub spec_kind: Option<Arc<str>>,
    /// Its window, in tokens.
    pub sliding_window: Option<u64>,
}

/// The place of blocks as sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockLocation {
    /// The medium.
    pub medium: Option<Arc<str>>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<Arc<str>>,
    /// The owner of the copy.
    pub ownership: Option<Arc<str>>,
}

impl BlockLocation {
    fn read(fields: &VllmFields<'_>) -> Result<Self, VllmEventError> {
        Ok(Self {
            medium: text(fields, VllmField::Medium)?,
            locality: text(fields, VllmField::Locality)?,
            ownership: text(fields, VllmField::Ownership)?,
        })
    }
}

/// `BlockRemoved` as sent; nil and absent are the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockRemoved {
    /// The engine's names of the blocks.
    pub block_hashes: Vec<EngineHash>,
    /// The place that they left.
    pub location: BlockLocation,
    /// KV-cache group of hybrid models.
    pub group_idx: Option<u32>,
}

impl VllmEvent {
    /// Returns the number of its values that may take more memory than bytes on the wire, but for
    /// tokens, which take four bytes each.
    pub(super) fn parts(&self) -> usize {
        match self {
            Self::Stored(event) => event.parts(),
            Self::Removed(event) => event.block_hashes.len(),
            Self::Cleared | Self::Unknown { .. } => 0,
        }
    }

    pub(super) fn read(fields: &VllmFields<'_>) -> Result<Self, VllmEventError> {
        Ok(match fields.tag {
            "BlockStored" => Self::Stored(Box::new(BlockStored::read(fields)?)),
            "BlockRemoved" => Self::Removed(Box::new(BlockRemoved::read(fields)?)),
            "AllBlocksCleared" => Self::Cleared,
            tag => Self::Unknown {
                tag: tag.chars().take(64).collect(),
            },
        })
    }
}

impl BlockStored {
    fn parts(&self) -> usize {
        let keys = self.extra_keys.iter().flatten();
        let keys: usize = keys.map(|parts| 1 + parts.len()).sum();
        let lookahead = self.lookahead_token_ids.as_ref().map_or(0, Vec::len);
        self.block_hashes.len() + keys + lookahead
    }

    fn read(fields: &VllmFields<'_>) -> Result<Self, VllmEventError> {
        if !fields.has(VllmField::TokenIds) || !fields.has(VllmField::BlockSize) {
            return wrong("token_ids or block_size is missing");
        }
        let event = Self {
            block_hashes: block_hashes(fields)?,
            parent_block_hash: fields
                .get(VllmField::ParentBlockHash)
                .map(|mut reader| hash(&mut reader))
                .transpose()?,
            token_ids: fields
                .get(VllmField::TokenIds)
                .map_or_else(|| Ok(WireTokens::default()), tokens)?,
            block_size: number(fields, VllmField::BlockSize)?.unwrap_or(0),
            lora: LoraAdapter {
                id: fields
                    .get(VllmField::LoraId)
                    .map(whole_number)
                    .transpose()?,
                name: text(fields, VllmField::LoraName)?,
            },
            location: BlockLocation::read(fields)?,
            extra_keys: fields
                .get(VllmField::ExtraKeys)
                .map(extra_keys)
                .transpose()?,
            group: KvCacheGroup {
                idx: number(fields, VllmField::GroupIdx)?,
                spec_kind: text(fields, VllmField::SpecKind)?,
                sliding_window: number(fields, VllmField::SlidingWindow)?.map(u64::from),
            },
            session_id: text(fields, VllmField::SessionId)?,
            lookahead_token_ids: fields
                .get(VllmField::LookaheadTokenIds)
                .map(lookahead)
                .transpose()?,
            cache_salt: text(fields, VllmField::CacheSalt)?,
        };
        if !event.token_ids.is_empty() {
            if BlockSize::new(event.block_size.into()).is_err() {
                return wrong("block_size is not 1 to 65,536 although there are tokens");
            }
            // More tokens than the blocks need is legal: masked blocks have no hash.
            if event
                .block_hashes
                .len()
                .saturating_mul(event.block_size as usize)
                > event.token_ids.len()
            {
                return wrong("there are fewer token_ids than the blocks need");
            }
        }
        Ok(event)
    }
}

impl BlockRemoved {
    fn read(fields: &VllmFields<'_>) -> Result<Self, VllmEventError> {
        Ok(Self {
            block_hashes: block_hashes(fields)?,
            location: BlockLocation::read(fields)?,
            group_idx: number(fields, VllmField::GroupIdx)?,
        })
    }
}
