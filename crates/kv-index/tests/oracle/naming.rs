//! What engines call their blocks.

use std::collections::HashMap;

use kv_blocks::EngineHash;

use super::{random::mix, world::TargetNo};

/// How one engine names blocks. One that starts again may have changed it.
#[derive(Clone, Debug)]
pub(crate) enum Naming {
    /// By content, as every engine of its family does.
    Common {
        /// Engines of equal family agree on all names.
        family: u64,
    },
    /// By small numbers that mean something else at each target.
    Shifted,
    /// In the order in which blocks come up, beginning with 0.
    Counted(HashMap<usize, u64>),
    /// Not at all: its events carry plain rolling hashes.
    Hashes,
}

impl Naming {
    pub(crate) fn some(number: usize) -> Self {
        match number % 8 {
            0..4 => Self::Common { family: 0 },
            4 => Self::Common { family: 1 },
            5 => Self::Shifted,
            6 => Self::Counted(HashMap::new()),
            _ => Self::Hashes,
        }
    }

    /// What `target` calls the block of a cell.
    pub(crate) fn name(&mut self, target: TargetNo, cell: usize) -> EngineHash {
        let cell_number = cell as u64;
        EngineHash(match self {
            // A hash of content is never a small number.
            Self::Common { family } => mix((*family + 1) << 32 | cell_number),
            Self::Shifted | Self::Hashes => cell_number + target.0 as u64,
            Self::Counted(names) => {
                let next = names.len() as u64;
                *names.entry(cell).or_insert(next)
            }
        })
    }

    /// A name that no block has.
    pub(crate) fn unknown(number: usize) -> EngineHash {
        EngineHash(u64::MAX - number as u64 % 1000)
    }
}
