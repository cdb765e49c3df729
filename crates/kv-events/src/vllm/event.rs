//! Events with every field of the wire format, each one checked.

use std::sync::Arc;

use kv_blocks::{BlockSize, EngineHash};

use super::fields::{VllmField, VllmFields};
use crate::wire::{MsgpackError, MsgpackHead, MsgpackReader};

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
    /// The adapter's number.
    pub lora_id: Option<i64>,
    /// The medium of the blocks.
    pub medium: Option<Arc<str>>,
    /// The adapter's name.
    pub lora_name: Option<Arc<str>>,
    /// Further inputs of each block's hash: one entry per block, empty without any.
    pub extra_keys: Option<Vec<Vec<ExtraKey>>>,
    /// KV-cache group of hybrid models.
    pub group_idx: Option<u32>,
    /// Kind of that group.
    pub kv_cache_spec_kind: Option<Arc<str>>,
    /// Its window, in tokens.
    pub kv_cache_spec_sliding_window: Option<u64>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<Arc<str>>,
    /// The owner of the copy.
    pub ownership: Option<Arc<str>>,
    /// The session; for attribution only.
    pub session_id: Option<Arc<str>>,
    /// Tokens behind each block that are part of its hash.
    pub lookahead_token_ids: Option<Vec<Vec<u32>>>,
    /// A cache salt in a separate field (SGLang).
    pub cache_salt: Option<Arc<str>>,
}

/// Tokens as sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireTokens {
    /// One number per token.
    Flat(Vec<u32>),
    /// Each token with its successor (SGLang with speculative decoding).
    Pairs(Vec<(u32, u32)>),
}

impl WireTokens {
    /// Returns the number of positions covered.
    pub fn len(&self) -> usize {
        match self {
            Self::Flat(tokens) => tokens.len(),
            Self::Pairs(pairs) => pairs.len(),
        }
    }

    /// Returns whether there are no tokens: the event is a placeholder.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for WireTokens {
    fn default() -> Self {
        Self::Flat(Vec::new())
    }
}

/// One part of a block's extra keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtraKey {
    /// A bare string: adapter name, salt, or (vLLM 0.17 and 0.18) the identifier of a multimodal
    /// item.
    Text(Arc<str>),
    /// A multimodal item and its start relative to the block, which may be negative.
    Item(Arc<str>, i64),
    /// The digest of prompt embeddings, or of a newer kind of input.
    Digest(Vec<u8>),
    /// Any other part.
    Other,
}

/// `BlockRemoved` as sent; nil and absent are the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockRemoved {
    /// The engine's names of the blocks.
    pub block_hashes: Vec<EngineHash>,
    /// The medium that they left.
    pub medium: Option<Arc<str>>,
    /// KV-cache group of hybrid models.
    pub group_idx: Option<u32>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<Arc<str>>,
    /// The owner of the copy.
    pub ownership: Option<Arc<str>>,
}

/// Why one event of a batch is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event is malformed: {reason}")]
pub struct VllmEventError {
    /// The problem.
    pub reason: &'static str,
}

impl From<MsgpackError> for VllmEventError {
    fn from(MsgpackError(reason): MsgpackError) -> Self {
        Self { reason }
    }
}

fn wrong<T>(reason: &'static str) -> Result<T, VllmEventError> {
    Err(VllmEventError { reason })
}

impl VllmEvent {
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
            lora_id: fields
                .get(VllmField::LoraId)
                .map(whole_number)
                .transpose()?,
            medium: text(fields, VllmField::Medium)?,
            lora_name: text(fields, VllmField::LoraName)?,
            extra_keys: fields
                .get(VllmField::ExtraKeys)
                .map(extra_keys)
                .transpose()?,
            group_idx: number(fields, VllmField::GroupIdx)?,
            kv_cache_spec_kind: text(fields, VllmField::SpecKind)?,
            kv_cache_spec_sliding_window: number(fields, VllmField::SlidingWindow)?.map(u64::from),
            locality: text(fields, VllmField::Locality)?,
            ownership: text(fields, VllmField::Ownership)?,
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
            medium: text(fields, VllmField::Medium)?,
            group_idx: number(fields, VllmField::GroupIdx)?,
            locality: text(fields, VllmField::Locality)?,
            ownership: text(fields, VllmField::Ownership)?,
        })
    }
}

fn block_hashes(fields: &VllmFields<'_>) -> Result<Vec<EngineHash>, VllmEventError> {
    let Some(mut reader) = fields.get(VllmField::BlockHashes) else {
        return wrong("block_hashes is missing");
    };
    let MsgpackHead::Array(len) = reader.head()? else {
        return wrong("block_hashes is no array");
    };
    // `head` has checked that this many values can follow.
    let mut hashes = Vec::with_capacity(len);
    for _ in 0..len {
        hashes.push(hash(&mut reader)?);
    }
    Ok(hashes)
}

/// Reads a hash: integers by two's complement, byte strings by their last eight bytes big-endian.
fn hash(reader: &mut MsgpackReader<'_>) -> Result<EngineHash, VllmEventError> {
    match reader.head()? {
        MsgpackHead::Unsigned(value) => Ok(EngineHash(value)),
        MsgpackHead::Negative(value) => Ok(EngineHash(value.cast_unsigned())),
        MsgpackHead::Bytes(digest) => match digest.last_chunk() {
            Some(low) => Ok(EngineHash(u64::from_be_bytes(*low))),
            None => wrong("a block hash has fewer than 8 bytes"),
        },
        _ => wrong("a block hash is neither an integer nor bytes"),
    }
}

fn token(head: MsgpackHead<'_>) -> Result<u32, VllmEventError> {
    match head {
        MsgpackHead::Unsigned(value) => u32::try_from(value).map_err(|_| VllmEventError {
            reason: "a token id does not fit 32 bits",
        }),
        _ => wrong("a token id is no whole number"),
    }
}

fn tokens(mut reader: MsgpackReader<'_>) -> Result<WireTokens, VllmEventError> {
    let MsgpackHead::Array(len) = reader.head()? else {
        return wrong("token_ids is no array");
    };
    let mut ahead = reader;
    if len > 0 && matches!(ahead.head()?, MsgpackHead::Array(_)) {
        let mut pairs = Vec::with_capacity(len / 2);
        for _ in 0..len {
            let MsgpackHead::Array(2) = reader.head()? else {
                return wrong("token_ids mixes tokens and pairs");
            };
            pairs.push((token(reader.head()?)?, token(reader.head()?)?));
        }
        return Ok(WireTokens::Pairs(pairs));
    }
    let mut flat = Vec::with_capacity(len);
    for _ in 0..len {
        flat.push(match reader.small_number() {
            Some(token) => token,
            None => token(reader.head()?)?,
        });
    }
    Ok(WireTokens::Flat(flat))
}

fn lookahead(mut reader: MsgpackReader<'_>) -> Result<Vec<Vec<u32>>, VllmEventError> {
    let MsgpackHead::Array(len) = reader.head()? else {
        return wrong("lookahead_token_ids is no array");
    };
    let mut blocks = Vec::with_capacity(len);
    for _ in 0..len {
        let WireTokens::Flat(tokens) = tokens(MsgpackReader::new(reader.value()?))? else {
            return wrong("lookahead_token_ids nests too deeply");
        };
        blocks.push(tokens);
    }
    Ok(blocks)
}

fn extra_keys(mut reader: MsgpackReader<'_>) -> Result<Vec<Vec<ExtraKey>>, VllmEventError> {
    let MsgpackHead::Array(len) = reader.head()? else {
        return wrong("extra_keys is no array");
    };
    let mut blocks = Vec::with_capacity(len);
    for _ in 0..len {
        blocks.push(match reader.head()? {
            MsgpackHead::Nil => Vec::new(),
            MsgpackHead::Array(parts) => {
                let mut keys = Vec::new();
                for _ in 0..parts {
                    keys.push(extra_key(MsgpackReader::new(reader.value()?))?);
                }
                keys
            }
            _ => return wrong("an entry of extra_keys is neither nil nor an array"),
        });
    }
    Ok(blocks)
}

fn extra_key(mut reader: MsgpackReader<'_>) -> Result<ExtraKey, VllmEventError> {
    Ok(match reader.head()? {
        MsgpackHead::Text(bytes) => ExtraKey::Text(utf8(bytes)?),
        MsgpackHead::Bytes(digest) => ExtraKey::Digest(digest.to_vec()),
        MsgpackHead::Array(2) => match (reader.head()?, reader.head()?) {
            (MsgpackHead::Text(item), MsgpackHead::Unsigned(offset)) => {
                ExtraKey::Item(utf8(item)?, i64::try_from(offset).unwrap_or(i64::MAX))
            }
            (MsgpackHead::Text(item), MsgpackHead::Negative(offset)) => {
                ExtraKey::Item(utf8(item)?, offset)
            }
            _ => ExtraKey::Other,
        },
        _ => ExtraKey::Other,
    })
}

fn number(fields: &VllmFields<'_>, field: VllmField) -> Result<Option<u32>, VllmEventError> {
    let Some(mut reader) = fields.get(field) else {
        return Ok(None);
    };
    match reader.head()? {
        MsgpackHead::Unsigned(value) => match u32::try_from(value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => wrong("a number does not fit 32 bits"),
        },
        _ => wrong("a number is negative or no whole number"),
    }
}

fn whole_number(mut reader: MsgpackReader<'_>) -> Result<i64, VllmEventError> {
    match reader.head()? {
        MsgpackHead::Unsigned(value) => i64::try_from(value).map_err(|_| VllmEventError {
            reason: "lora_id does not fit 64 bits",
        }),
        MsgpackHead::Negative(value) => Ok(value),
        _ => wrong("lora_id is no whole number"),
    }
}

fn text(fields: &VllmFields<'_>, field: VllmField) -> Result<Option<Arc<str>>, VllmEventError> {
    let Some(mut reader) = fields.get(field) else {
        return Ok(None);
    };
    match reader.head()? {
        MsgpackHead::Text(bytes) => utf8(bytes).map(Some),
        _ => wrong("a name is no text"),
    }
}

fn utf8(bytes: &[u8]) -> Result<Arc<str>, VllmEventError> {
    std::str::from_utf8(bytes)
        .map(Arc::from)
        .map_err(|_| VllmEventError {
            reason: "a name is not UTF-8",
        })
}
