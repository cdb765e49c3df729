//! Engine hashes of blocks.

use std::collections::HashMap;

use kv_blocks::EngineHash;

use super::{random::mix, world::TargetNo};

/// How an engine hashes blocks. A restarted engine may do it differently.
#[derive(Clone, Debug)]
pub(crate) enum Naming {
    /// By content, as every engine of its group.
    Common {
        /// Engines of the same group agree on all hashes.
        group: u64,
    },
    /// Small numbers that stand for other blocks at each target.
    Shifted,
    /// Numbers in order of first use, from 0.
    Counted(HashMap<usize, u64>),
    /// No engine hash: its events carry plain sequence hashes.
    Hashes,
}

impl Naming {
    pub(crate) fn some(number: usize) -> Self {
        match number % 8 {
            0..4 => Self::Common { group: 0 },
            4 => Self::Common { group: 1 },
            5 => Self::Shifted,
            6 => Self::Counted(HashMap::new()),
            _ => Self::Hashes,
        }
    }

    /// Returns the hash that `target` gives the block of a cell.
    pub(crate) fn name(&mut self, target: TargetNo, cell: usize) -> EngineHash {
        let cell_number = cell as u64;
        EngineHash(match self {
            // A content hash is never a small number.
            Self::Common { group } => mix((*group + 1) << 32 | cell_number),
            Self::Shifted | Self::Hashes => cell_number + target.0 as u64,
            Self::Counted(names) => {
                let next = names.len() as u64;
                *names.entry(cell).or_insert(next)
            }
        })
    }

    /// Returns a hash that no block has.
    pub(crate) fn unknown(number: usize) -> EngineHash {
        EngineHash(u64::MAX - number as u64 % 1000)
    }
}
