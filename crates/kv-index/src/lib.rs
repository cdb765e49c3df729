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
//! **Copies.** Engines hold the same block twice now and then: it is stored twice and removed twice. They also repeat what
//! they have announced, and nothing tells the two apart. On the device a block stored again counts as a copy more, unless
//! an event from the root repeats it; the first removal leaves the block credited on trust, for as many further removals
//! as the cache holds blocks. The whole rule is in `copies.rs`. Other tiers are plain sets.
//!
//! **Trust.** A target whose announcements turned out wrong can be told to go by predictions alone, see
//! [`KvIndex::trust`].

mod blocks;
mod copies;
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
