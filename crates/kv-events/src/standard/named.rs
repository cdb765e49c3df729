//! Events whose hashes are names only: from a store beside the engines, or from a publisher with
//! its own hashing.

use std::sync::Arc;

use kv_blocks::{EngineHash, IndexUpdate, NamedBlocks, RemovedBlocks, StoredBlocks, Tier};

use super::{
    event::{StandardChange, StandardEvent},
    hash_keyed::{block_size, enough, once},
    rejection::EventRejection,
};

/// Converts an event whose `seq_hashes` are the engines' names of the blocks.
///
/// With tokens, a stored event defines the content of its blocks. Without, its blocks are ones that
/// an engine has announced before, which are in the event's medium too: the Mooncake store's master
/// never sends more. Such a store may name its objects by a key instead, as vLLM's connector builds
/// them: the engine's digest, behind an `@`.
pub fn to_named(event: &StandardEvent) -> Result<IndexUpdate, EventRejection> {
    let tier = event.stream.medium().tier();
    match &event.change {
        StandardChange::Stored {
            seq_hashes,
            base_block_idx,
            parent_hash,
            token_ids: Some(tokens),
        } => {
            once(seq_hashes, *parent_hash)?;
            let block_size = block_size(event)?;
            enough(seq_hashes, tokens, block_size)?;
            match base_block_idx {
                Some(base) if *base > 0 && parent_hash.is_none() => {
                    Err(EventRejection::Unplaced { base: *base })
                }
                _ => Ok(IndexUpdate::Stored(StoredBlocks {
                    hashes: engine(seq_hashes),
                    parent: parent_hash.map(EngineHash),
                    tokens: tokens.clone(),
                    block_size,
                    lora: event.stream.lora.clone(),
                    media: Vec::new(),
                    salt: event.stream.salt.clone(),
                    tier,
                })),
            }
        }
        StandardChange::Stored { .. } if tier == Tier::Device => Err(EventRejection::OnDevice),
        StandardChange::Stored { seq_hashes, .. } => Ok(IndexUpdate::Named(NamedBlocks {
            hashes: names(seq_hashes, event.object_key.as_ref())?,
            tier,
        })),
        StandardChange::Removed { seq_hashes, .. } => Ok(IndexUpdate::Removed(RemovedBlocks {
            hashes: names(seq_hashes, event.object_key.as_ref())?,
            tier,
        })),
        StandardChange::Cleared if tier == Tier::Device => Ok(IndexUpdate::Cleared),
        StandardChange::Cleared => Ok(IndexUpdate::ClearedTier(tier)),
    }
}

fn engine(hashes: &[u64]) -> Vec<EngineHash> {
    hashes.iter().copied().map(EngineHash).collect()
}

fn names(hashes: &[u64], key: Option<&Arc<str>>) -> Result<Vec<EngineHash>, EventRejection> {
    if !hashes.is_empty() {
        return Ok(engine(hashes));
    }
    Ok(vec![
        key.and_then(|key| digest(key))
            .ok_or(EventRejection::NoNames)?,
    ])
}

/// Returns the low 64 bits of the digest at the end of a key such as `model@tp:0@<hex>`, which is
/// the part that the engine publishes.
fn digest(key: &str) -> Option<EngineHash> {
    let (_, hex) = key.rsplit_once('@')?;
    // XXH3-128 or SHA-256: a shorter text may be a number with another meaning.
    if !matches!(hex.len(), 32 | 64) || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(&hex[hex.len() - 16..], 16)
        .ok()
        .map(EngineHash)
}
