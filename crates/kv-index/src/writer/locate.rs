//! Known blocks: by hash, by position, and in the order of a chain.

use kv_blocks::SequenceHash;

use super::{ChainPart, TreeWriter, tree_writer::hashes};
use crate::{
    atomic::{AtomicU64, Ordering},
    lookup::SharedIndex,
    runs::{BlockRange, NO_RUN, RunHead},
    table::BlockRef,
};

/// A known block that is not behind the parent of the event: a publisher that names blocks by hash
/// has a wrong chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainConflict;

impl TreeWriter {
    /// Returns the hash of an existing block.
    pub(crate) fn hash(&self, core: &SharedIndex, block_ref: BlockRef) -> u64 {
        let head = core.heads.get(&core.body, block_ref.run);
        hashes(core, &head)[block_ref.at as usize].load(Ordering::Relaxed)
    }

    /// Returns the hashes of a run's blocks.
    pub(crate) fn hashes_of<'a>(
        &self,
        core: &'a SharedIndex,
        run: u32,
    ) -> impl Iterator<Item = u64> + use<'a> {
        let head = core.heads.get(&core.body, run);
        hashes(core, &head)
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
    }

    /// Returns the position of a block by its hash.
    pub(crate) fn find(&self, core: &SharedIndex, space: u64, hash: u64) -> Option<BlockRef> {
        let key = core.table.key(space, hash);
        let mut head = RunHead::NONE;
        core.table.find(&core.body, key, |block_ref| {
            core.block_at(space, hash, block_ref, &mut head)
                .then_some(block_ref)
        })
    }

    /// Returns the known blocks at the start of `part`; `None` if the first one is not known.
    pub(crate) fn locate(
        &self,
        core: &SharedIndex,
        part: ChainPart<'_>,
    ) -> Result<Option<BlockRange>, ChainConflict> {
        let rest = part.hashes;
        let Some(first) = rest.first() else {
            return Ok(None);
        };
        let follows = part
            .parent
            .map(|last| BlockRef {
                run: last.run,
                at: last.at + 1,
            })
            .filter(|next| {
                let head = core.heads.get(&core.body, next.run);
                next.at < head.blocks()
                    && hashes(core, &head)[next.at as usize].load(Ordering::Relaxed) == first.0
            });
        let block_ref = match follows {
            Some(block_ref) => block_ref,
            None => match self.find(core, part.namespace.key, first.0) {
                Some(block_ref) if follows_directly(core, block_ref, part.parent) => block_ref,
                Some(_) => return Err(ChainConflict),
                None => return Ok(None),
            },
        };
        let head = core.heads.get(&core.body, block_ref.run);
        let known = &hashes(core, &head)[block_ref.at as usize..];
        let most = known.len().min(rest.len());
        let same = |offset: usize| known[offset].load(Ordering::Relaxed) == rest[offset].0;
        // These hashes cover everything before them, so an equal last one means that all are equal.
        let equal = if same(most - 1) {
            most
        } else {
            let (mut low, mut high) = (1, most - 1);
            while low < high {
                let middle = usize::midpoint(low, high);
                if same(middle) {
                    low = middle + 1
                } else {
                    high = middle
                }
            }
            low
        };
        Ok(Some(BlockRange::starting_at(block_ref, equal as u32)))
    }

    /// Returns how many of `rest`, which begins with the block `first`, are its neighbours in the
    /// run, going up or down; and the last of them.
    pub(crate) fn stretch(
        &self,
        core: &SharedIndex,
        first: BlockRef,
        rest: &[SequenceHash],
    ) -> (BlockRef, usize) {
        let head = core.heads.get(&core.body, first.run);
        let known = hashes(core, &head);
        let (before, behind) = (&known[..first.at as usize], &known[first.at as usize + 1..]);
        let same =
            |(word, hash): &(&AtomicU64, &SequenceHash)| word.load(Ordering::Relaxed) == hash.0;
        // Engines free the ends of sequences first.
        let down = before.iter().rev().zip(&rest[1..]).take_while(same).count();
        if down > 0 {
            return (
                BlockRef {
                    at: first.at - down as u32,
                    ..first
                },
                down + 1,
            );
        }
        let up = behind.iter().zip(&rest[1..]).take_while(same).count();
        (
            BlockRef {
                at: first.at + up as u32,
                ..first
            },
            up + 1,
        )
    }
}

/// Returns whether `last` is the block before `block_ref`.
fn follows_directly(core: &SharedIndex, block_ref: BlockRef, last: Option<BlockRef>) -> bool {
    let head = core.heads.get(&core.body, block_ref.run);
    let before = if block_ref.at > 0 {
        Some(BlockRef {
            run: block_ref.run,
            at: block_ref.at - 1,
        })
    } else if head.parent() == NO_RUN {
        None
    } else {
        Some(BlockRef {
            run: head.parent(),
            at: head.attach() - 1,
        })
    };
    before == last
}
