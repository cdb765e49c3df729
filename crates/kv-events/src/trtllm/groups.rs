//! The split of a stored event into index updates.

use kv_blocks::{BlockSize, EngineHash, IndexUpdate, StoredBlocks, Tier};

use super::{counts::TrtCounts, event::TrtBlock};

/// Converts the usable blocks of an event into one update for each stretch in one tier.
///
/// `None` if the event as a whole is unusable. The descendants of a block that is left out are left
/// out too: here, or in the index, which does not know their parent then.
pub(super) fn updates(
    parent: Option<EngineHash>,
    blocks: Vec<TrtBlock>,
    size: BlockSize,
    counts: &mut TrtCounts,
) -> Option<Vec<IndexUpdate>> {
    if !is_possible(parent, &blocks, size) {
        counts.unusable += 1;
        return None;
    }
    let plain = blocks.iter().take_while(|block| block.is_plain).count();
    counts.not_plain_blocks += (blocks.len() - plain) as u64;
    let mut updates: Vec<StoredBlocks> = Vec::new();
    let mut parent = parent;
    for block in blocks.into_iter().take(plain) {
        if block.tokens.len() < size.len() {
            counts.partial_blocks += 1;
            break;
        }
        let tier = tier(block.level);
        match updates.last_mut() {
            Some(last) if last.tier == tier => {
                last.hashes.push(block.hash);
                last.tokens.extend_from_slice(&block.tokens);
            }
            _ => updates.push(StoredBlocks {
                hashes: vec![block.hash],
                parent,
                tokens: block.tokens,
                block_size: size,
                lora: None,
                media: Vec::new(),
                salt: None,
                tier,
            }),
        }
        parent = Some(block.hash);
    }
    if updates.is_empty() {
        counts.no_effect += 1;
        return None;
    }
    Some(updates.into_iter().map(IndexUpdate::Stored).collect())
}

/// Maps a cache level to a tier.
pub(super) fn tier(level: u32) -> Tier {
    match level {
        0 => Tier::Device,
        1 => Tier::Host,
        // No such level is known; it is not the device in any case.
        _ => Tier::Disk,
    }
}

/// Checks that only the last block may be partial, and no block is its own parent or occurs twice.
fn is_possible(parent: Option<EngineHash>, blocks: &[TrtBlock], size: BlockSize) -> bool {
    let full = |block: &TrtBlock| block.tokens.len() == size.len();
    let Some((last, others)) = blocks.split_last() else {
        return false;
    };
    let mut names: Vec<_> = blocks
        .iter()
        .map(|block| block.hash)
        .chain(parent)
        .collect();
    names.sort_unstable();
    others.iter().all(full)
        && last.tokens.len() <= size.len()
        && names.windows(2).all(|two| two[0] != two[1])
}
