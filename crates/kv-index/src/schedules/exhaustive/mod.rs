//! The protocol between lookups and the writer, in all schedules of small cases, and with every value that the orderings
//! allow a load to return.
//!
//! `lookups.rs` has whole lookups beside whole changes; `pieces.rs` what is easier to see in a part: the table, the memory,
//! a head. `KV_INDEX_PREEMPTIONS=3` goes deeper than the usual number of preemptions, and takes hours.
//!
//! **What they notice.** `check-concurrency weakened` takes away each ordering stronger than relaxed, one by one
//! (`weakening.rs`), and shows which model fails then. These are the protocol:
//!
//! | taken away | fails, for one |
//! |---|---|
//! | release fence in `Heads::begin` | all runs of an answer are of one moment |
//! | release store in `Heads::end`, acquire load in `Heads::read` | all runs of an answer are of one moment |
//! | acquire fence in `Heads::read` | holders that stay, while another makes an area necessary |
//! | acquire fence in `Core::block_at` | blocks behind a branch |
//! | acquire fence in `Core::attempt` | holders that stay, while another makes an area necessary |
//! | release fence in `Extents::take` | lines that one thread frees and another takes |
//! | release fence in `Extents::give` | a key that stays |
//! | release store in `Heads::add` | a head in a new slab |
//! | release store of the directory, acquire loads in `Table::state` and at the beginning of `Table::find` | a key that stays |
//! | acquire fences in `Table::peek` and `Table::find` | a key that stays |
//!
//! These could be relaxed as far as the models know: loads and stores of slots in the table and of their counts, the second
//! load of the directory in `Table::find`, loads of slabs, `Core::width`, `Core::doubts`. They stay: each makes a step of the
//! argument local (what an entry names is there), and is free on processors that keep stores in order. The pointer of a chunk
//! stands aside: its release and acquire keep the zeroing of the words, which are no atomics then, from being a race.

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
    (0..len)
        .map(|at| SequenceHash((number * 64 + at + 1) << 41 | number))
        .collect()
}
