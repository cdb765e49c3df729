//! The protocol between lookups and the writer, in all schedules of small cases, and with every
//! value that the orderings allow a load to return.
//!
//! `lookups.rs` has whole lookups during whole changes; `pieces.rs` has cases that are clearer in
//! one part: the table, the memory, a head. `KV_INDEX_PREEMPTIONS=3` goes deeper than the usual
//! number of preemptions, and takes hours.
//!
//! **Sensitivity.** `check-concurrency weakened` removes each ordering stronger than relaxed, one
//! by one (`weakening.rs`), and shows which model fails then. These are the protocol:
//!
//! | removed | one model that fails |
//! |---|---|
//! | release fence in `RunHeads::begin` | all runs of an answer are of one moment |
//! | release store in `RunHeads::end` | all runs of an answer are of one moment |
//! | acquire load in `RunHeads::read` | all runs of an answer are of one moment |
//! | acquire fence in `RunHeads::read` | unchanged holders, while another needs an area |
//! | acquire fence in `SharedIndex::block_at` | blocks behind a branch |
//! | acquire fence in `SharedIndex::attempt` | unchanged holders, while another needs an area |
//! | release fence in `Extents::take` | lines freed by one thread and taken by another |
//! | release fence in `Extents::give` | an unchanged key |
//! | release store in `RunHeads::add` | a head in a new slab |
//! | release store of the directory | an unchanged key |
//! | acquire load in `BlockTable::state` | an unchanged key |
//! | acquire load at the beginning of `BlockTable::find` | an unchanged key |
//! | acquire fences in `BlockTable::peek` and `BlockTable::find` | an unchanged key |
//!
//! The models pass with these relaxed: loads and stores of slots in the table and of their counts,
//! the second load of the directory in `BlockTable::find`, loads of slabs, `SharedIndex::width`,
//! `SharedIndex::doubts`. They stay: each makes a step of the argument local (the target of an
//! entry is present), and is free on processors that keep stores in order. The pointer of a chunk
//! is a separate case: its release and acquire prevent a race with the zeroing of the words, which
//! are no atomics then.

mod lookups;
mod pieces;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use kv_blocks::SequenceHash;

/// Explores all schedules with up to `preemptions` preemptions.
fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let deeper = std::env::var("KV_INDEX_PREEMPTIONS")
        .ok()
        .and_then(|number| number.parse().ok());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(deeper.unwrap_or(preemptions));
    builder.max_branches = 100_000;
    // Only from `loom::explore` on: no exploration while a model is being set up.
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
/// With these secrets the key of a block is its hash.
const PLAIN: [u64; 2] = [0, 1];

/// Returns the hashes of a chain: all in one segment of the table, each at a position of its own.
fn chain(number: u64, len: u64) -> Vec<SequenceHash> {
    (0..len)
        .map(|at| SequenceHash((number * 64 + at + 1) << 41 | number))
        .collect()
}
