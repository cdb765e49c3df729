//! Who holds which block, and in which tier.
//!
//! Updates come in per target and in the order of the target's stream; lookups ask how many leading blocks of a prompt
//! each target holds. Blocks are keyed by our own hashes over tokens inside a namespace; what an engine calls them only
//! resolves parents and removals.
//!
//! # What it promises
//!
//! - **Exact.** For each target the longest contiguous prefix it holds over all tiers, and how many blocks of it each tier
//!   has: also with holes in the middle of a chain, removals in any order, repeated announcements and restarts.
//! - **Never too much.** A target is never credited with a block its own stream did not announce, unless the entry is marked
//!   as unconfirmed (speculative or predicted). Whatever goes wrong (no room, unknown parent, contradiction) loses credit.
//! - **Readers take no lock and write nothing.** A lookup sees the structure as it was at one moment. The argument is in
//!   [the protocol](#lookups-beside-the-writer) below.
//! - **A hard budget.** Memory stays within [`IndexSettings::memory_budget`]: what is only expected goes first, then the
//!   oldest ends of chains, counted as shed. Nothing else ends a confirmed entry: no time to live, no number of entries.
//! - **A query creates no state**, and nothing here knows about sockets, sequence numbers or clocks: a moment comes in with
//!   every call that needs one.
//!
//! # How it is built
//!
//! A *run* is a stretch of up to 8192 consecutive blocks of one chain, shared by all who hold any of it. Where chains
//! part, a new run hangs on a block of the old one, which stays whole. A run knows its hashes and its holders: bits of
//! those who hold all of it, numbers of those who hold some leading blocks, spans for holes and other tiers. One table
//! for all namespaces finds a block's run by its hash. A much smaller one knows only where runs begin and prompts
//! ended: it stays in the processor's cache, and most lookups need no other. A block that nobody holds stays as long as
//! one behind it is held, so whatever is there has all its ancestors there too: a lookup searches instead of walking,
//! and then goes from the root down along the few runs of its path.
//!
//! | module | what it does | who uses it |
//! | --- | --- | --- |
//! | `lines` | memory in lines of 64 bytes that is never given back; which of them are free | both |
//! | `table` | from a key to run and block, 8 bytes a slot | both |
//! | `runs` | heads, holders | both |
//! | `lookup` | search, path, answer | readers |
//! | `writer` | runs come, grow, shrink and go | the writer |
//! | `books` | targets, events, promises, budget | the writer |
//! | `names`, `orphans`, `copies` | what engines call blocks, what waits for its parent, what is held twice | the writer |
//! | `changes` | a feed of what changed | [`KvIndex::follow`] |
//! | `snapshot` | the file | [`KvIndex::save`], [`KvIndex::load`] |
//!
//! # What it costs
//!
//! A distinct block takes 8 bytes of hash and about 12 in the table; a run 64 for its head, about 50 in the books, and
//! 28 for each block of it that is marked. A further holder takes a bit, or 4 bytes in a run it holds in part. What an
//! engine calls a block, where that is not its hash, takes about 20 bytes per block and family of engines.
//! `docs/benchmarks/index.md` has what was measured.
//!
//! # Trade-offs
//!
//! - One writer at a time. A change of one run holds up readers of that run, for the time of rewriting its holders.
//! - A lookup's time grows with the number of runs on its path, not with its depth. A prompt whose turns were stored by many
//!   targets in turn has as many runs.
//! - Memory once taken is used again, not given back to the system.
//! - [`KvIndex::digest`] and [`KvIndex::save`] go through everything under the writer's lock; lookups go on.
//!
//! # Rules of their own
//!
//! **Copies.** Engines hold the same block twice now and then: it is stored twice and removed twice. They also repeat what
//! they have announced, and nothing tells the two apart. On the device a block stored again counts as a copy more, unless
//! an event from the root repeats it; the first removal leaves the block credited on trust, for as many further removals
//! as the cache holds blocks. The whole rule is in `copies.rs`. Other tiers are plain sets.
//!
//! **Orphans.** What hangs on a block that is not known waits, bounded, until that block comes; it is never taken for the
//! beginning of a sequence.
//!
//! **Trust.** A target whose announcements turned out wrong can be told to go by predictions alone, see
//! [`KvIndex::trust`].
#![doc = include_str!("lookup/PROTOCOL.md")]

mod arena;
mod atomic;
mod changes;
mod copies;
mod engine_hashes;
mod export;
mod index;
mod index_lock;
mod lookup;
mod namespaces;
mod orphans;
mod overlaps;
mod report;
mod runs;
#[cfg(test)]
mod schedules;
mod snapshot;
mod state;
mod table;
mod writer;

pub use changes::{BlockChange, ChangeFeed, ChangeKind, LaggedError};
pub use export::{ExportCursor, ExportedBlocks};
pub use index::{IndexSettings, KvIndex, NamespaceKey};
pub use lookup::{Matches, TargetSlot};
pub use namespaces::salt_digest;
pub use report::{
    DumpCursor, DumpRow, IndexStats, Overlap, TargetDigest, TierBlocks, UpdateOutcome,
};
pub use snapshot::SnapshotError;
pub use state::{LoadSummary, SaveSummary, SpeculationId};
