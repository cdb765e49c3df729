//! The values of an event's fields, and their readers.

use std::sync::Arc;

use kv_blocks::EngineHash;

use super::{
    event_error::VllmEventError,
    fields::{VllmField, VllmFields},
};
use crate::wire::{MsgpackHead, MsgpackReader};

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

/// Most blocks and parts of their extra keys, in one event and in one batch: 16 million tokens in
/// blocks of 16. Each takes up to 32 bytes where the sender may need only one: 32 MiB at most.
pub(super) const MAX_PARTS: usize = 1 << 20;

/// Checks a number of parts.
fn bounded(parts: usize) -> Result<usize, VllmEventError> {
    if parts > MAX_PARTS {
        return wrong("it has more than 1,048,576 blocks or parts of extra keys");
    }
    Ok(parts)
}

pub(super) fn wrong<T>(reason: &'static str) -> Result<T, VllmEventError> {
    Err(VllmEventError { reason })
}

pub(super) fn block_hashes(fields: &VllmFields<'_>) -> Result<Vec<EngineHash>, VllmEventError> {
    let Some(mut reader) = fields.get(VllmField::BlockHashes) else {
        return wrong("block_hashes is missing");
    };
    let MsgpackHead::Array(len) = reader.head()? else {
        return wrong("block_hashes is no array");
    };
    // `head` has checked that this many values can follow.
    let mut hashes = Vec::with_capacity(bounded(len)?);
    for _ in 0..len {
        hashes.push(hash(&mut reader)?);
    }
    Ok(hashes)
}

/// Reads a hash: integers by two's complement, byte strings by their last eight bytes big-endian.
pub(super) fn hash(reader: &mut MsgpackReader<'_>) -> Result<EngineHash, VllmEventError> {
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

pub(super) fn tokens(mut reader: MsgpackReader<'_>) -> Result<WireTokens, VllmEventError> {
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

pub(super) fn lookahead(mut reader: MsgpackReader<'_>) -> Result<Vec<Vec<u32>>, VllmEventError> {
    let MsgpackHead::Array(len) = reader.head()? else {
        return wrong("lookahead_token_ids is no array");
    };
    let mut blocks = Vec::with_capacity(bounded(len)?);
    for _ in 0..len {
        let WireTokens::Flat(tokens) = tokens(MsgpackReader::new(reader.value()?))? else {
            return wrong("lookahead_token_ids nests too deeply");
        };
        blocks.push(tokens);
    }
    Ok(blocks)
}

pub(super) fn extra_keys(
    mut reader: MsgpackReader<'_>,
) -> Result<Vec<Vec<ExtraKey>>, VllmEventError> {
    let MsgpackHead::Array(len) = reader.head()? else {
        return wrong("extra_keys is no array");
    };
    let (mut blocks, mut count) = (Vec::with_capacity(bounded(len)?), len);
    for _ in 0..len {
        blocks.push(match reader.head()? {
            MsgpackHead::Nil => Vec::new(),
            MsgpackHead::Array(parts) => {
                count = bounded(count + parts)?;
                // `head` has checked that this many values can follow.
                let mut keys = Vec::with_capacity(parts);
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

pub(super) fn number(
    fields: &VllmFields<'_>,
    field: VllmField,
) -> Result<Option<u32>, VllmEventError> {
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

pub(super) fn whole_number(mut reader: MsgpackReader<'_>) -> Result<i64, VllmEventError> {
    match reader.head()? {
        MsgpackHead::Unsigned(value) => i64::try_from(value).map_err(|_| VllmEventError {
            reason: "lora_id does not fit 64 bits",
        }),
        MsgpackHead::Negative(value) => Ok(value),
        _ => wrong("lora_id is no whole number"),
    }
}

pub(super) fn text(
    fields: &VllmFields<'_>,
    field: VllmField,
) -> Result<Option<Arc<str>>, VllmEventError> {
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
