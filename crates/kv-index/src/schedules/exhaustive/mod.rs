//! The protocol between lookups and the writer, in all schedules of small cases, and with every value that the orderings
//! allow a load to return.
//!
//! `lookups.rs` has whole lookups beside whole changes; `pieces.rs` what is easier to see in a part: the table, the memory,
//! a head. `KV_INDEX_PREEMPTIONS=3` goes deeper than the usual number of preemptions, and takes hours.
//!
//! **What they notice.** `check-concurrency weakened` takes away each ordering stronger than relaxed, one by one
//! (`weakening.rs`), and shows which model fails then. These are the protocol:
//!
//! | taken away | fails |
//! |---|---|
//! | release fence in `Heads::begin` | blocks are missed while their array moves |
//! | release store in `Heads::end`, acquire load in `Heads::read` | a head of a new slab, holders that stay |
//! | acquire fence in `Heads::read` | holders that stay: a head of two versions |
//! | acquire fence in `Core::block_at` | blocks behind a branch are missed while their array moves |
//! | acquire fence in `Core::attempt` | holders that stay: an area that serves another run |
//! | release fence in `Extents::take` | lines that one thread freed and another took |
//! | release fence in `Extents::give` | keys are missed while their segment moves |
//! | release store and acquire load of a slab in `Heads` | a head of a new slab |
//! | release store of the directory, acquire loads in `Table::state` and at the beginning of `Table::find` | keys are missed |
//! | acquire fences in `Table::peek` and `Table::find` | keys are missed |
//!
//! These could be relaxed as far as the models know: loads and stores of slots and of their counts in the table, the second
//! load of the directory in `Table::find`, `Core::width` and `Core::doubts`. They stay, since each makes one step of the
//! argument local (what an entry names is there) and costs nothing where stores are ordered anyway. The pointer of a chunk
//! is not modelled: its release and acquire keep the zeroing of its words, which are no atomics then, from being a race.

mod lookups;
mod pieces;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use kv_blocks::SequenceHash;

/// Explores all schedules with up to `preemptions` preemptions.
fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let deeper = std::env::var("KV_INDEX_PREEMPTIONS").ok().and_then(|number| number.parse().ok());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(deeper.unwrap_or(preemptions));
    builder.max_branches = 100_000;
    // Only from `loom::explore` on: nobody looks while a model is being set up.
    builder.expect_explicit_explore = true;
    let schedules = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&schedules);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    eprintln!("{} schedules", schedules.load(Ordering::Relaxed));
}

/// The namespace of all blocks.
const SPACE: u64 = 0;
/// With these the key of a block is its hash.
const PLAIN: [u64; 2] = [0, 1];

/// Hashes of a chain: all in one segment of the table, each at a position of its own.
fn chain(number: u64, len: u64) -> Vec<SequenceHash> {
    (0..len).map(|at| SequenceHash((number * 64 + at + 1) << 41 | number)).collect()
}
