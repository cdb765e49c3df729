//! Who holds which block, and in which tier.
//!
//! Updates come in per target and in the order of the target's stream; lookups ask how many leading blocks of a prompt
//! each target holds. Blocks are keyed by our own hashes over tokens inside a namespace; what an engine calls them only
//! resolves parents and removals of that same target.
//!
//! One lock guards it all. Whatever could take long (a dump, forgetting a big target, pruning) takes it for a few
//! thousand entries at a time, so that lookups never wait for more than that.
//!
//! The index does not know about sockets, sequence numbers or time: a moment comes in with every call that needs one.
//!
//! **Invariant**: a target is never credited with a block its own stream did not announce, unless the entry is marked as
//! unconfirmed (speculative or predicted). Whatever goes wrong (no room, unknown parent, contradiction) loses credit.
//! **Invariant**: a query creates no state.
//!
//! Announcing a block twice is the same as announcing it once: a set, not a counter of copies. Engines do announce a
//! second copy now and then; after the removal of one of the two the block counts as gone until it is announced again.

mod blocks;
mod index;
mod owner;
mod parted;
mod predictions;
mod report;
mod spaces;
mod state;

pub use index::{IndexSettings, KvIndex};
pub use predictions::Promised;
pub use report::{Applied, DumpPlace, DumpRow, IndexStats, Overlap, TargetDigest, TierBlocks};
