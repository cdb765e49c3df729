//! The block index: which target holds which block, in which tier.
//!
//! Updates arrive per target and in the order of the target's stream; a lookup returns how many
//! leading blocks of a prompt each target holds. Blocks are keyed by the index's own hashes over
//! tokens inside a namespace; engine hashes only resolve parents and removals.
//!
//! # Promises
//!
//! - **Exact.** For each target the longest contiguous prefix that it holds over all tiers, and how
//!   many blocks of it each tier has: also with holes in the middle of a chain, removals in any
//!   order, repeated announcements and restarts.
//! - **Never too much.** A target is never credited with a block that its own stream did not
//!   announce, unless the entry is marked as unconfirmed (speculative or predicted). Every problem
//!   (no room, unknown parent, contradiction) loses credit.
//! - **Readers take no lock and write nothing.** A lookup sees the structure as it was at one
//!   moment. The argument is in [the protocol](#lookups-beside-the-writer) below.
//! - **A hard budget.** Memory stays within [`IndexSettings::memory_budget`]: unconfirmed entries
//!   are dropped first, then the oldest ends of chains, counted as shed. Nothing else ends a
//!   confirmed entry: no time to live, no number of entries.
//! - **A query creates no state**, and the crate has no sockets, sequence numbers or clocks: a call
//!   that needs the time gets a moment as an argument.
//!
//! # Structure
//!
//! A *run* is a stretch of up to 8192 consecutive blocks of one chain, shared by all targets that
//! hold any of it. Where chains diverge, a new run hangs on a block of the old one, which stays
//! whole. A run has its hashes and its holders: bits of the slots that hold all of it, numbers of
//! the slots that hold some leading blocks, spans for holes and other tiers. One table for all
//! namespaces finds a block's run by its hash. A much smaller one has only the beginnings of runs
//! and the ends of prompts: it stays in the processor's cache, and most lookups need no other. A
//! block without a holder stays as long as one behind it is held, so every block in the structure
//! has all its ancestors there too: a lookup searches instead of walking, and then goes from the
//! root down along the few runs of its path.
//!
//! | module | purpose | used by |
//! | --- | --- | --- |
//! | `arena` | memory in lines of 64 bytes that is never given back; the free lines | both |
//! | `table` | from a key to run and block, 8 bytes a slot | both |
//! | `runs` | heads, holders | both |
//! | `lookup` | search, path, answer | readers |
//! | `writer` | creation, growth and removal of runs | the writer |
//! | `state` | targets, events, speculative entries, budget | the writer |
//! | `engine_hashes`, `orphans`, `copies` | engine hashes, waiting blocks, copies | the writer |
//! | `chunks` | blocks of another size than the target's | the writer |
//! | `changes` | the change feed | [`KvIndex::subscribe`] |
//! | `snapshot` | the file | [`KvIndex::save`], [`KvIndex::load`] |
//!
//! # Cost
//!
//! A distinct block takes 8 bytes of hash and about 12 in the table; a run 64 for its head, about
//! 50 in the writer's state, and 28 for each marked block. A further holder takes a bit, or 4 bytes
//! in a run that it holds in part. An engine hash that differs from the block's hash takes about 20
//! bytes per block and hash group. `docs/benchmarks/index.md` has the measurements.
//!
//! # Trade-offs
//!
//! - One writer at a time. A change of one run holds up readers of that run, for the time of
//!   rewriting its holders.
//! - A lookup's time grows with the number of runs on its path, not with its depth. A prompt whose
//!   turns were stored by many targets in turn has as many runs.
//! - Memory once taken is used again, not given back to the system.
//! - [`KvIndex::digest`] reads all content under the writer's lock; lookups go on. [`KvIndex::save`]
//!   takes the lock for short pieces.
//!
//! # Special rules
//!
//! **Copies.** Engines sometimes hold the same block twice: it is stored twice and removed twice.
//! They also repeat earlier announcements, and no field tells the two apart. On the device a block
//! stored again counts as a further copy, unless an event from the root repeats it; the first
//! removal leaves the block credited without backing, for as many further removals as the cache
//! holds blocks. The whole rule is in `copies.rs`. Other tiers are plain sets, and so are the blocks
//! of streams with standard hashes: such a hash stands for the block, not for a copy.
//!
//! **Orphans.** A block behind an unknown parent waits, bounded, until the parent arrives; it is
//! never taken for the beginning of a sequence.
//!
//! **Chunks.** Blocks of another size than the target's own, outside its device, are cut into its own
//! blocks, and credited there.
//!
//! **Streams.** Outside the device several streams may fill one tier of a target; a block stays there
//! until the last of them has removed it. See `medium_streams`.
//!
//! **Trust.** A target whose announcements proved wrong can be limited to its predictions, see
//! [`KvIndex::trust`].
#![doc = include_str!("lookup/PROTOCOL.md")]

mod arena;
mod atomic;
mod changed_runs;
mod changes;
mod chunks;
mod copies;
mod engine_hashes;
mod export;
mod index;
mod index_copy;
mod index_lock;
mod lookup;
mod medium_streams;
mod memory_sizes;
mod namespaces;
mod orphans;
mod report;
mod runs;
#[cfg(test)]
mod schedules;
mod settings;
mod snapshot;
mod state;
mod table;
mod writer;

pub use changes::{BlockChange, ChangeFeed, ChangeKind, LaggedError};
pub use export::{ExportCursor, ExportedBlocks};
pub use index::{KvIndex, NamespaceKey};
pub use lookup::{Matches, TargetSlot};
pub use medium_streams::{LabelledPrefix, MediumStream, Publisher};
pub use namespaces::{salt_digest, shown_hash};
pub use report::{
    DumpCursor, DumpRow, IndexStats, Overlap, TargetDigest, TierBlocks, UpdateOutcome,
};
pub use settings::IndexSettings;
pub use snapshot::SnapshotError;
pub use state::{LoadSummary, SaveSummary, SpeculationId};
