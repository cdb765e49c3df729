//! Clears in their steps, with stores of other streams between them.

use std::sync::Arc;

use contract_id::contract;
use kv_blocks::{
    BlockSize, DpRank, Moment, Namespace, PromptIdentity, SequenceHash, Target, Tier, WorkerId,
};

use crate::{IndexSettings, KvIndex, MediumStream, Publisher};

const TARGET: Target = Target {
    worker: WorkerId(1),
    rank: DpRank(0),
};
/// Sequences of one block, each in a run of its own: more than one step visits.
const RUNS: u64 = 1500;

fn namespace() -> Namespace {
    Namespace {
        model: Arc::from("m"),
        lora: None,
        salt: None,
        block_size: BlockSize::new(1).expect("not zero"),
        identity: PromptIdentity::Tokens,
    }
}

fn store(index: &KvIndex, by: &MediumStream<'_>, block: u64) {
    let blocks = (None, &[SequenceHash(block)][..]);
    index.store_hashes_from(TARGET, &namespace(), blocks, by);
}

/// Returns how many of the first, the last and a new block are credited.
fn credited(index: &KvIndex) -> usize {
    let is_credited = |block: &u64| {
        let found = index.lookup(&namespace(), &[SequenceHash(*block)], Moment::START);
        !found.is_empty()
    };
    [1, RUNS, RUNS + 1]
        .iter()
        .filter(|it| is_credited(it))
        .count()
}

#[test]
#[contract("MC9")]
fn what_is_stored_between_the_steps_of_another_streams_clear_stays_until_it_is_removed() {
    let engine = MediumStream::of_tier(Publisher::Engine, Tier::Host);
    let [cpu, dram] = ["cpu", "dram"].map(|medium| MediumStream {
        medium,
        ..MediumStream::of_tier(Publisher::Store, Tier::Host)
    });
    for engine_is_alone in [false, true] {
        let index = KvIndex::new(IndexSettings::default());
        index.register(TARGET, Arc::from("m"));
        (1..=RUNS).for_each(|block| store(&index, &engine, block));
        if !engine_is_alone {
            store(&index, &dram, RUNS / 2);
        }
        let step = |from| index.clear_step((TARGET, &engine), None, from);
        let mut next = step(0);
        assert!(next.is_some());
        // In a run that was visited, in one that was not, and a new block.
        let stored = [1, RUNS, RUNS + 1];
        stored.iter().for_each(|block| store(&index, &cpu, *block));
        while let Some(from) = next {
            next = step(from);
        }
        assert_eq!(credited(&index), 3, "alone: {engine_is_alone}");
        let hashes = stored.map(SequenceHash);
        index.remove_hashes_from(TARGET, &namespace(), &hashes, &cpu);
        index.clear_from(TARGET, None, &dram);
        assert_eq!(index.stats().memberships, 0, "alone: {engine_is_alone}");
    }
}

#[test]
#[contract("MC9")]
fn what_is_stored_while_a_tier_with_unknown_blocks_is_emptied_leaves_with_its_stream() {
    let engine = MediumStream::of_tier(Publisher::Engine, Tier::Host);
    let [cpu, dram] = ["cpu", "dram"].map(|medium| MediumStream {
        medium,
        ..MediumStream::of_tier(Publisher::Store, Tier::Host)
    });
    let index = KvIndex::new(IndexSettings::default());
    index.register(TARGET, Arc::from("m"));
    (1..=RUNS).for_each(|block| store(&index, &engine, block));
    store(&index, &cpu, RUNS / 2);
    index.streams.note_unknown_blocks(TARGET, &cpu);
    let step = |from| {
        let tier = (TARGET, Tier::Host);
        index.with(|state, core| index.clear_all_step((state, core), tier, None, from))
    };
    let mut next = step(0);
    assert!(next.is_some());
    let stored = [1, RUNS, RUNS + 1];
    let store_all = || stored.iter().for_each(|block| store(&index, &dram, *block));
    store_all();
    while let Some(from) = next {
        next = step(from);
    }
    // Some of these were emptied with the tier; stored again, they are no one else's.
    store_all();
    assert_eq!(credited(&index), 3);
    let hashes = stored.map(SequenceHash);
    index.remove_hashes_from(TARGET, &namespace(), &hashes, &dram);
    assert_eq!(index.stats().memberships, 0);
}
