//! A stored event cut into the updates it stands for.

use kv_blocks::{BlockSize, EngineHash, IndexUpdate, StoredBlocks, Tier};

use super::{counts::TrtCounts, event::TrtBlock};

/// The blocks of an event that an index can use, as one update for each stretch in one tier.
///
/// `None` if the event as a whole is of no use. What hangs on a block that is left out is left out with it: here, or in the
/// index, which does not know the parent then.
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

/// Where a cache level is.
pub(super) fn tier(level: u32) -> Tier {
    match level {
        0 => Tier::Device,
        1 => Tier::Host,
        // None is known; it is not the device in any case.
        _ => Tier::Disk,
    }
}

/// Whether only the last block is not full, and no block is its own parent or comes twice.
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
