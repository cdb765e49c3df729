//! The writer of the structure; there is one at a time, behind the index's lock.
//!
//! Changes of one run (its head, its hashes, its area) are between `RunHeads::begin` and
//! `RunHeads::end`; in between, readers of that run wait or start over. Table entries of new blocks
//! are added after the run has the blocks, those of freed blocks are removed before: a reader that
//! follows an entry compares the hash in any case.
//!
//! The writer's own data (children, age, free lines) is never read without the lock.

#![allow(
    clippy::cast_possible_truncation,
    reason = "fields are cut out of words, and numbers of blocks fit 32 bits"
)]

mod change;
#[cfg(test)]
mod check;
mod cover;
mod forks;
mod key_prefetch;
mod locate;
mod marks;
mod restore;
mod run_nodes;
mod runs;
mod speculative;
mod tree_writer;
mod trim;

#[cfg(test)]
pub(crate) use self::check::BlocksByHolder;
pub(crate) use self::{
    change::{ChainPart, ChangeEffects, FreedBlocks, RunHolder},
    cover::CoverChange,
    tree_writer::TreeWriter,
};
