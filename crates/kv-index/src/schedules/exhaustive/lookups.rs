//! Complete lookups during complete changes.

use std::sync::Arc;

use kv_blocks::{BlockSize, Namespace, PromptIdentity, SequenceHash};
use loom::thread;

use super::{PLAIN, SPACE, chain, check};
use crate::{
    Matches, TargetSlot,
    arena::LineChunks,
    lookup::{ChainQuery, CreditSource, SharedIndex},
    namespaces::{NamespaceTable, RunNamespace},
    runs::{RunHeads, TierSpan},
    table::{BlockRef, BlockTable},
    writer::{ChainPart, RunHolder, TreeWriter},
};

/// A small structure and its writer.
struct Small {
    core: Arc<SharedIndex>,
    writer: TreeWriter,
    home: RunNamespace,
}

impl Small {
    fn new() -> Self {
        let core = SharedIndex::new(
            RunHeads::new(1, 2),
            LineChunks::new(1, 4),
            BlockTable::new(1, PLAIN),
            BlockTable::new(1, PLAIN),
        );
        let namespace = Namespace {
            model: Arc::from("qwen"),
            lora: None,
            salt: None,
            block_size: BlockSize::new(1).unwrap(),
            identity: PromptIdentity::Tokens,
        };
        let home = RunNamespace {
            key: SPACE,
            id: NamespaceTable::new(0).enter(&namespace).id,
        };
        Self {
            writer: TreeWriter::new(&core, 1 << 20),
            core: Arc::new(core),
            home,
        }
    }

    /// Makes new blocks, held by `slot` on the device.
    fn store(&mut self, slot: u32, last: Option<BlockRef>, chain: &[SequenceHash]) -> BlockRef {
        let holder = RunHolder::Confirmed { slot, tier: 0 };
        let part = ChainPart {
            namespace: self.home,
            parent: last,
            hashes: chain,
        };
        let made = self.writer.make(&self.core, part, holder).unwrap();
        made.first()
    }

    /// Adds the first blocks of a run in a tier for `slot`.
    fn cover(&mut self, slot: u32, run: u32, tier: u32, end: u32) {
        let span = TierSpan {
            slot,
            tier,
            start: 0,
            end,
        };
        self.writer.cover(&self.core, run, span, true).unwrap();
    }

    /// Removes the first blocks of a run on the device from `slot`.
    fn uncover(&mut self, slot: u32, run: u32, end: u32) {
        let span = TierSpan {
            slot,
            tier: 0,
            start: 0,
            end,
        };
        self.writer.uncover(&self.core, run, span);
    }
}

/// Returns the result of a lookup for the first slots.
fn lookup<const N: usize>(core: &SharedIndex, chain: &[SequenceHash]) -> [u32; N] {
    let mut matches = Matches::default();
    let query = ChainQuery {
        space: SPACE,
        hashes: chain,
        now: 0,
    };
    core.lookup(query, CreditSource::Trusted, &mut matches);
    std::array::from_fn(|slot| matches.of(TargetSlot(slot as u32)))
}

#[test]
fn a_chain_during_its_store_is_credited_to_its_holder_only() {
    check(3, || {
        let mut small = Small::new();
        small.store(0, None, &chain(2, 1));
        let core = Arc::clone(&small.core);
        loom::explore();
        let reader = thread::spawn(move || {
            let [nobody, blocks] = lookup(&core, &chain(1, 2));
            assert!(blocks <= 2 && nobody == 0, "{blocks} {nobody}");
        });
        small.store(1, None, &chain(1, 2));
        reader.join().unwrap();
        loom::stop_exploring();
        assert_eq!(lookup(&small.core, &chain(1, 2)), [0, 2]);
    });
}

#[test]
fn unchanged_blocks_are_found_while_their_array_moves_and_its_lines_are_reused() {
    check(2, || {
        let mut small = Small::new();
        let run = small.store(0, None, &chain(1, 8)).run;
        let core = Arc::clone(&small.core);
        loom::explore();
        let reader = thread::spawn(move || {
            let [blocks, nobody] = lookup(&core, &chain(1, 9));
            assert!(
                (8..=9).contains(&blocks) && nobody == 0,
                "{blocks} {nobody}"
            );
        });
        small.store(0, Some(BlockRef { run, at: 7 }), &chain(1, 9)[8..]);
        small.store(1, None, &chain(2, 4));
        reader.join().unwrap();
        loom::stop_exploring();
        assert_eq!(lookup(&small.core, &chain(1, 9)), [9, 0]);
    });
}

#[test]
fn blocks_behind_a_branch_are_found_while_their_array_moves_and_its_lines_are_reused() {
    check(1, || {
        let mut small = Small::new();
        let root = small.store(0, None, &chain(1, 1)).run;
        small.cover(1, root, 0, 1);
        let leaf = small
            .store(0, Some(BlockRef { run: root, at: 0 }), &chain(2, 8))
            .run;
        let core = Arc::clone(&small.core);
        loom::explore();
        let reader = thread::spawn(move || {
            // The last block is unknown; the search for the one before it starts when the root is
            // found.
            let query = [chain(1, 1), chain(2, 1), chain(4, 1)].concat();
            assert_eq!(lookup(&core, &query), [2, 1, 0]);
        });
        small.store(0, Some(BlockRef { run: leaf, at: 7 }), &chain(2, 9)[8..]);
        small.store(2, None, &chain(3, 4));
        reader.join().unwrap();
    });
}

#[test]
fn a_run_that_changes_holders_is_credited_to_one_of_them() {
    check(1, || {
        let mut small = Small::new();
        let block_ref = small.store(0, None, &chain(1, 1));
        let core = Arc::clone(&small.core);
        loom::explore();
        let reader = thread::spawn(move || {
            let [one, other] = lookup(&core, &chain(1, 1));
            assert!(one == 0 || other == 0, "{one} {other}");
        });
        small.uncover(0, block_ref.run, 1);
        let again = small.store(1, None, &chain(1, 1));
        assert_eq!(again.run, block_ref.run, "the number is reused");
        reader.join().unwrap();
    });
}

#[test]
fn a_run_whose_number_array_and_lines_are_reused_is_credited_to_no_target() {
    check(0, || {
        let mut small = Small::new();
        let block_ref = small.store(0, None, &chain(1, 2));
        let core = Arc::clone(&small.core);
        loom::explore();
        let reader = thread::spawn(move || {
            // The last block is unknown; the presence of the one before it is read from the array.
            let [one, other] = lookup(&core, &[chain(1, 1), chain(3, 1)].concat());
            assert!(one <= 1 && other == 0, "{one} {other}");
        });
        small.uncover(0, block_ref.run, 2);
        let again = small.store(1, None, &chain(2, 1));
        assert_eq!(again.run, block_ref.run, "the number is reused");
        reader.join().unwrap();
    });
}

#[test]
fn all_runs_of_an_answer_are_of_one_moment() {
    check(2, || {
        let mut small = Small::new();
        let root = small.store(0, None, &chain(1, 1)).run;
        small.cover(1, root, 0, 1);
        let leaf = small
            .store(0, Some(BlockRef { run: root, at: 0 }), &chain(2, 1))
            .run;
        let core = Arc::clone(&small.core);
        loom::explore();
        let reader = thread::spawn(move || {
            let found = lookup(&core, &[chain(1, 1), chain(2, 1)].concat());
            assert!([[2, 1], [2, 2], [0, 2]].contains(&found), "{found:?}");
        });
        small.cover(1, leaf, 0, 1);
        small.uncover(0, root, 1);
        reader.join().unwrap();
    });
}

#[test]
fn unchanged_holders_are_credited_while_another_needs_an_area_and_leaves() {
    check(2, || {
        let mut small = Small::new();
        let run = small.store(0, None, &chain(1, 1)).run;
        (1..4).for_each(|slot| small.cover(slot, run, 0, 1));
        let core = Arc::clone(&small.core);
        loom::explore();
        let reader = thread::spawn(move || {
            let [a, b, c, d, guest, nobody] = lookup(&core, &chain(1, 1));
            assert!([a, b, c, d, nobody] == [1, 1, 1, 1, 0] && guest <= 1);
        });
        small.cover(4, run, 0, 1);
        small.uncover(4, run, 1);
        small.store(5, None, &chain(2, 1));
        reader.join().unwrap();
    });
}

#[test]
fn unchanged_holders_are_credited_while_their_area_moves_and_its_lines_are_reused() {
    check(2, || {
        let mut small = Small::new();
        let run = small.store(0, None, &chain(1, 2)).run;
        for slot in 1..4 {
            small.cover(slot, run, 0, 2);
            small.cover(slot, run, 1, 2);
        }
        small.cover(4, run, 1, 2);
        small.cover(5, run, 1, 1);
        let core = Arc::clone(&small.core);
        loom::explore();
        let reader = thread::spawn(move || {
            let [a, b, c, d, e, f, guest, nobody] = lookup(&core, &chain(1, 2));
            assert_eq!([a, b, c, d, e, f, nobody], [2, 2, 2, 2, 2, 1, 0]);
            assert!(guest <= 2);
        });
        small.cover(6, run, 1, 2);
        small.store(7, None, &chain(2, 1));
        reader.join().unwrap();
    });
}
