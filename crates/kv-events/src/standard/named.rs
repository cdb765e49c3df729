//! Events whose hashes are names only: of a store beside the engines, or of a publisher that hashes in its own way.

use std::sync::Arc;

use kv_blocks::{EngineHash, IndexUpdate, NamedBlocks, RemovedBlocks, StoredBlocks, Tier};

use super::{
    event::{StandardChange, StandardEvent},
    hash_keyed::{block_size, enough, once},
    rejection::EventRejection,
};
use crate::vllm::Medium;

/// Says what an event means, where `seq_hashes` are what engines call the blocks.
///
/// With tokens a stored event says what is in the blocks. Without, they are blocks that an engine has told of, which are
/// in the event's medium too: the Mooncake store's master never says more. Such a store may know its objects by a key
/// instead, as vLLM's connector makes them: the engine's digest, behind an `@`.
pub fn to_named(event: &StandardEvent) -> Result<IndexUpdate, EventRejection> {
    let tier = Medium::parse(event.stream.medium.as_deref(), None).tier();
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
        StandardChange::Cleared => Err(EventRejection::NoNamespace {
            tier: tier.as_str(),
        }),
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

/// The low 64 bits of the digest at the end of a key such as `model@tp:0@<hex>`: what the engine publishes of it.
fn digest(key: &str) -> Option<EngineHash> {
    let (_, hex) = key.rsplit_once('@')?;
    // XXH3-128 or SHA-256: anything shorter may be a number that means something else.
    if !matches!(hex.len(), 32 | 64) || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(&hex[hex.len() - 16..], 16)
        .ok()
        .map(EngineHash)
}
