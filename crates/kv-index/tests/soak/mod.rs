//! Prompts that never repeat, and their memory.

use std::sync::Arc;

use kv_blocks::{BlockSize, DpRank, EngineHash, IndexUpdate, StoredBlocks, Target, Tier, WorkerId};
use kv_index::{IndexSettings, KvIndex};

const TARGETS: u32 = 8;
/// Blocks of a prompt.
const BLOCKS: u32 = 64;
/// Tokens of a block.
const SIZE: u32 = 16;

/// An index that gets only new prompts and no removals.
#[derive(Debug)]
pub(crate) struct Soak {
    pub(crate) index: KvIndex,
    prompts: u64,
}

impl Soak {
    pub(crate) fn new(memory_budget: u64) -> Self {
        let index = KvIndex::new(IndexSettings {
            memory_budget,
            ..IndexSettings::default()
        });
        for number in 0..TARGETS {
            index.register(target(number), Arc::from("m"));
        }
        Self { index, prompts: 0 }
    }

    /// Stores one prompt at one target, in two events as if the second half was decoded. Returns
    /// its number of blocks.
    pub(crate) fn prompt(&mut self) -> u32 {
        let first_block = self.prompts * u64::from(BLOCKS);
        let target = target(u32::try_from(self.prompts % u64::from(TARGETS)).expect("few targets"));
        self.prompts += 1;
        let name = |block: u32| {
            EngineHash((first_block + u64::from(block)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        };
        for half in [0..BLOCKS / 2, BLOCKS / 2..BLOCKS] {
            let stored = StoredBlocks {
                hashes: half.clone().map(name).collect(),
                parent: half.start.checked_sub(1).map(name),
                tokens: half
                    .flat_map(|block| tokens(first_block + u64::from(block)))
                    .collect(),
                block_size: BlockSize::new(u64::from(SIZE)).expect("a valid size"),
                lora: None,
                media: Vec::new(),
                salt: None,
                tier: Tier::Device,
            };
            self.index.apply(target, &IndexUpdate::Stored(stored));
        }
        BLOCKS
    }
}

fn target(number: u32) -> Target {
    Target {
        worker: WorkerId(number),
        rank: DpRank(0),
    }
}

/// The block's number is in its first two tokens, so each block is unique.
fn tokens(block: u64) -> impl Iterator<Item = u32> {
    let number =
        [block & 0xffff_ffff, block >> 32].map(|half| u32::try_from(half).expect("half of it"));
    (0..SIZE).map(move |at| number.get(at as usize).copied().unwrap_or(at))
}
