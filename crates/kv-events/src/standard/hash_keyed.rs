//! Events whose hashes are trusted, because the index uses the same ones.

use kv_blocks::{BlockSize, HashScheme, SequenceHash, Tier};

use super::{
    event::{StandardChange, StandardEvent},
    rejection::EventRejection,
};

/// An update for an index whose keys are the publisher's hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKeyedUpdate {
    /// Consecutive blocks became reusable.
    Stored {
        /// The block in front of the first one; `None` begins a sequence.
        parent: Option<SequenceHash>,
        /// The blocks, first one first.
        hashes: Vec<SequenceHash>,
        /// Their tier.
        tier: Tier,
    },
    /// Blocks were removed from one tier.
    Removed {
        /// The blocks.
        hashes: Vec<SequenceHash>,
        /// The tier they left.
        tier: Tier,
    },
    /// One tier of the stream's namespace was emptied.
    Cleared {
        /// The tier.
        tier: Tier,
    },
}

/// Converts an event of a publisher that hashes by `scheme`. Source: contract MC13.
///
/// Hashes without tokens are accepted if the scheme is the standard's, XXH3. With tokens they are
/// computed again, and an event with different ones is rejected. The salt, the adapter and the
/// model are not part of a hash.
pub fn to_hashed(
    event: &StandardEvent,
    scheme: HashScheme,
) -> Result<HashKeyedUpdate, EventRejection> {
    let tier = event.stream.medium().tier();
    match &event.change {
        StandardChange::Stored {
            seq_hashes,
            base_block_idx,
            parent_hash,
            token_ids,
        } => {
            if seq_hashes.is_empty() {
                return Err(EventRejection::NoNames);
            }
            once(seq_hashes, *parent_hash)?;
            let parent = parent_hash.map(SequenceHash);
            let chain_parent = match (parent, *base_block_idx) {
                (None, Some(base)) if base > 0 => return Err(EventRejection::Unplaced { base }),
                (parent, _) => parent,
            };
            match token_ids {
                Some(tokens) => {
                    let size = block_size(event)?;
                    enough(seq_hashes, tokens, size)?;
                    same(seq_hashes, &scheme.chain(chain_parent, tokens, size))?;
                }
                None if matches!(scheme, HashScheme::Xxh3 { .. }) => {}
                None => return Err(EventRejection::NotStandard),
            }
            Ok(HashKeyedUpdate::Stored {
                parent: chain_parent,
                hashes: sequence(seq_hashes),
                tier,
            })
        }
        StandardChange::Removed { seq_hashes, .. } if seq_hashes.is_empty() => {
            Err(EventRejection::NoNames)
        }
        StandardChange::Removed { seq_hashes, .. } => Ok(HashKeyedUpdate::Removed {
            hashes: sequence(seq_hashes),
            tier,
        }),
        StandardChange::Cleared => Ok(HashKeyedUpdate::Cleared { tier }),
    }
}

fn sequence(hashes: &[u64]) -> Vec<SequenceHash> {
    hashes.iter().copied().map(SequenceHash).collect()
}

/// Returns the tokens per block, which every event with tokens needs.
pub(super) fn block_size(event: &StandardEvent) -> Result<BlockSize, EventRejection> {
    let tokens = event.stream.block_size.ok_or(EventRejection::NoBlockSize)?;
    BlockSize::new(tokens.into()).map_err(|_| EventRejection::NoBlockSize)
}

/// Checks that no block occurs twice, the parent included.
pub(super) fn once(hashes: &[u64], parent: Option<u64>) -> Result<(), EventRejection> {
    let mut sorted: Vec<_> = hashes.iter().copied().chain(parent).collect();
    sorted.sort_unstable();
    if sorted.windows(2).any(|two| two[0] == two[1]) {
        Err(EventRejection::Repeated)
    } else {
        Ok(())
    }
}

/// Checks that the number of tokens equals the capacity of the blocks.
pub(super) fn enough(
    hashes: &[u64],
    tokens: &[u32],
    size: BlockSize,
) -> Result<(), EventRejection> {
    let expected = hashes.len() as u64 * u64::from(size.tokens());
    if tokens.len() as u64 == expected {
        Ok(())
    } else {
        Err(EventRejection::TokenCount {
            found: tokens.len(),
            expected,
        })
    }
}

/// Checks that the hashes are the ones computed from the tokens.
fn same(hashes: &[u64], own: &[SequenceHash]) -> Result<(), EventRejection> {
    match hashes
        .iter()
        .zip(own)
        .position(|(found, own)| *found != own.0)
    {
        None => Ok(()),
        Some(block) => Err(EventRejection::Mismatch {
            block,
            found: hashes[block],
            expected: own[block].0,
        }),
    }
}
