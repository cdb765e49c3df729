//! Several streams of one target in one tier: a block stays until the last of them has removed it.

use std::collections::BTreeSet;

use contract_id::contract;
use kv_blocks::{BlockSize, EngineHash, IndexUpdate, NamedBlocks, StoredBlocks, Tier};
use kv_index::{IndexSettings, KvIndex, LabelledPrefix, MediumStream, Publisher};

use crate::sequence::*;

const ENGINE: Publisher = Publisher::Engine;
const STORE: Publisher = Publisher::Store;

fn stream<'a>(publisher: Publisher, backend: &'a str, medium: &'a str) -> MediumStream<'a> {
    MediumStream {
        backend,
        medium,
        ..MediumStream::of_tier(publisher, Tier::Host)
    }
}

fn on_disk<'a>(backend: &'a str, medium: &'a str, unlisted: bool) -> MediumStream<'a> {
    MediumStream {
        tier: Tier::Disk,
        unlisted,
        ..stream(STORE, backend, medium)
    }
}

/// An index whose worker 0 has blocks 0 and 1 on its device, so that lookups reach both.
fn index_with_device() -> KvIndex {
    let index = index_of(IndexSettings {
        memory_budget: 1 << 20,
        ..IndexSettings::default()
    });
    put(&index, 0, store(0..2));
    index
}

/// Returns how many of blocks 0 and 1 worker 0 has in host memory and on disk.
fn present(index: &KvIndex) -> [u32; 2] {
    let overlaps = index.lookup(&plain(), &chain(2), NOW);
    let found = overlaps
        .iter()
        .find(|found| found.target == target(0))
        .unwrap();
    [found.present[1], found.present[2]]
}

fn add(index: &KvIndex, by: &MediumStream<'_>, blocks: u32) {
    index.store_hashes_from(target(0), &plain(), (None, &chain(blocks)), by);
}

fn drop_block(index: &KvIndex, by: &MediumStream<'_>, block: usize) {
    index.remove_hashes_from(target(0), &plain(), &[chain(2)[block]], by);
}

fn clear(index: &KvIndex, by: &MediumStream<'_>) {
    index.clear_from(target(0), Some(&plain()), by);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Store,
    /// Removes the first block.
    Remove,
    Clear,
}

/// Carries out a step of a stream; `named`: by the names of an engine, with tokens.
fn carry_out(index: &KvIndex, by: &MediumStream<'_>, step: Step, named: bool) {
    match (step, named) {
        (Step::Store, false) => add(index, by, 2),
        (Step::Remove, false) => drop_block(index, by, 0),
        (Step::Clear, _) => clear(index, by),
        (Step::Store, true) => {
            let stored = StoredBlocks {
                tier: by.tier,
                ..store(0..2)
            };
            index.apply_from(target(0), &IndexUpdate::Stored(stored), by);
        }
        (Step::Remove, true) => {
            index.apply_from(target(0), &remove(&[1], by.tier), by);
        }
    }
}

/// All orders of five steps by three streams, beside plain sets: one for each stream.
#[test]
#[contract("MC9", "MC8", "MC4")]
fn a_block_is_present_as_long_as_one_stream_holds_it() {
    let engine = MediumStream::of_tier(ENGINE, Tier::Host);
    let named_engine = stream(ENGINE, "worker-0", "cpu");
    let (cpu, dram) = (
        stream(STORE, "mooncake-1", "cpu"),
        stream(STORE, "mooncake-1", "dram"),
    );
    let other_store = stream(STORE, "mooncake-2", "cpu");
    for (streams, names) in [
        ([engine, cpu, dram], [true, false, false]),
        ([named_engine, cpu, other_store], [true, false, true]),
        ([named_engine, cpu, dram], [false, false, false]),
    ] {
        let index = index_with_device();
        let steps: Vec<_> = (0..3)
            .flat_map(|of| [Step::Store, Step::Remove, Step::Clear].map(|step| (of, step)))
            .collect();
        for number in 0..steps.len().pow(5) {
            let order = (0..5).map(|at| steps[number / steps.len().pow(at) % steps.len()]);
            let order: Vec<(usize, Step)> = order.collect();
            let mut held: [BTreeSet<u32>; 3] = Default::default();
            for (of, step) in &order {
                carry_out(&index, &streams[*of], *step, names[*of]);
                match step {
                    Step::Store => held[*of].extend([0, 1]),
                    Step::Remove => _ = held[*of].remove(&0),
                    Step::Clear => held[*of].clear(),
                }
                let all: BTreeSet<_> = held.iter().flatten().collect();
                assert_eq!(present(&index)[0] as usize, all.len(), "{order:?}");
            }
            for stream in &streams {
                clear(&index, stream);
            }
            assert_eq!(present(&index), [0, 0], "{order:?}");
        }
    }
}

#[test]
#[contract("MC9", "MC4")]
fn two_backends_on_media_of_one_unknown_name_count_once_and_beside_the_disk() {
    let index = index_with_device();
    let tapes = ["pool-1", "pool-2"].map(|backend| on_disk(backend, "tape", true));
    let disk = on_disk("pool-1", "ssd", false);
    let on_media = |tape: u32, alone: u32| LabelledPrefix {
        labels: (tape > 0)
            .then(|| ("tape".into(), tape))
            .into_iter()
            .collect(),
        blocks: alone,
    };
    let labelled = || index.labelled_prefix(target(0), &plain(), &chain(2));
    for tape in &tapes {
        add(&index, tape, 2);
        assert_eq!((present(&index)[1], labelled()), (2, on_media(2, 2)));
    }
    add(&index, &disk, 1);
    assert_eq!((present(&index)[1], labelled()), (2, on_media(2, 1)));
    drop_block(&index, &tapes[0], 1);
    assert_eq!((present(&index)[1], labelled()), (2, on_media(2, 1)));
    clear(&index, &disk);
    assert_eq!((present(&index)[1], labelled()), (2, on_media(2, 2)));
    clear(&index, &tapes[1]);
    assert_eq!((present(&index)[1], labelled()), (1, on_media(1, 1)));
    clear(&index, &on_disk("pool-3", "tape", true));
    assert_eq!(present(&index), [0, 1], "another backend has nothing there");
    clear(&index, &tapes[0]);
    assert_eq!((present(&index)[1], labelled()), (0, on_media(0, 0)));
}

#[test]
#[contract("MC9", "MC6")]
fn a_clear_leaves_other_namespaces_ranks_and_tiers_of_its_stream() {
    let index = index_with_device();
    let (one, other) = (stream(STORE, "a", "cpu"), stream(STORE, "b", "cpu"));
    for space in [plain(), salted("s")] {
        for by in [&one, &other] {
            index.store_hashes_from(target(0), &space, (None, &chain(2)), by);
        }
    }
    index.store_hashes_from(target(1), &plain(), (None, &chain(2)), &one);
    add(&index, &on_disk("a", "ssd", false), 2);
    // The first one of the tier, then the second.
    for by in [&one, &other] {
        clear(&index, by);
    }
    assert_eq!(present(&index), [0, 2]);
    assert_eq!(resident(&index, 0, &salted("s"), 2).host, 2);
    assert_eq!(resident(&index, 1, &plain(), 2).host, 2);
    index.clear_from(target(0), Some(&salted("s")), &one);
    assert_eq!(resident(&index, 0, &salted("s"), 2).host, 2);
    index.clear_from(target(0), Some(&salted("s")), &other);
    assert_eq!(resident(&index, 0, &salted("s"), 2).host, 0);
}

#[test]
#[contract("MC9", "MC10")]
fn a_clear_without_a_medium_empties_those_of_its_backend() {
    let index = index_with_device();
    for by in [
        stream(STORE, "a", "cpu"),
        stream(STORE, "a", "dram"),
        stream(STORE, "b", "cpu"),
        on_disk("a", "tape", true),
        on_disk("a", "ssd", false),
    ] {
        add(&index, &by, if by.backend == "b" { 1 } else { 2 });
    }
    assert_eq!(present(&index), [2, 2]);
    for tier in [Tier::Host, Tier::Disk] {
        let of_backend = MediumStream {
            tier,
            ..stream(STORE, "a", "")
        };
        index.clear_backend(target(0), &plain(), &of_backend);
    }
    assert_eq!(present(&index), [1, 0]);
}

#[test]
#[contract("MC9", "MC2")]
fn a_restarted_engine_loses_its_own_blocks_and_those_named_by_it() {
    let engine = MediumStream::of_tier(ENGINE, Tier::Host);
    let master = MediumStream::of_tier(Publisher::StoreMaster, Tier::Host);
    let named = IndexUpdate::Named(NamedBlocks {
        hashes: vec![EngineHash(1)],
        tier: Tier::Host,
    });
    let cpu = stream(STORE, "mooncake-1", "cpu");
    // Whoever was first in the tier.
    for store_is_first in [false, true] {
        let index = index_with_device();
        let engine_stores = || {
            carry_out(&index, &engine, Step::Store, true);
            index.apply_from(target(0), &named, &master);
        };
        if !store_is_first {
            engine_stores();
        }
        add(&index, &cpu, 1);
        if store_is_first {
            engine_stores();
        }
        assert_eq!(present(&index), [2, 0]);
        index.clear_engine(target(0));
        let left = resident(&index, 0, &plain(), 2);
        assert_eq!((left.device, left.host), (0, 1));
        drop_block(&index, &cpu, 0);
        assert_eq!(index.stats().memberships, 0);
    }
    let index = index_with_device();
    index.apply_from(target(0), &named, &master);
    index.clear_engine(target(0));
    assert_eq!(index.stats().memberships, 0);
}

#[test]
#[contract("MC9", "MC2")]
fn a_restarted_engine_leaves_no_block_that_waited_for_its_parent_beside_a_store() {
    let index = index_with_device();
    let cpu = stream(STORE, "mooncake-1", "cpu");
    add(&index, &cpu, 1);
    let late = StoredBlocks {
        tier: Tier::Host,
        ..store(3..4)
    };
    assert_eq!(put(&index, 0, late).orphans, 1);
    put(&index, 0, store(2..3));
    assert_eq!(index.blocks_per_tier(target(0)), [3, 2, 0, 0]);
    index.clear_engine(target(0));
    drop_block(&index, &cpu, 0);
    assert_eq!(index.stats().memberships, 0);
}

#[test]
#[contract("MC9", "DY18")]
fn no_name_of_an_engines_earlier_life_is_a_parent_because_a_store_holds_its_block() {
    let index = index_with_device();
    let cpu = stream(STORE, "mooncake-1", "cpu");
    add(&index, &cpu, 2);
    index.clear_engine(target(0));
    assert_eq!(present(&index), [2, 0], "in the store");
    // Name 2 now stands for another block, whose event was missed.
    let behind_other = StoredBlocks {
        hashes: vec![EngineHash(50)],
        ..store(2..3)
    };
    assert_eq!(put(&index, 0, behind_other).orphans, 1);
    assert_eq!(index.blocks_per_tier(target(0)), [0, 2, 0, 0]);
    put(&index, 0, store(0..2));
    assert_eq!(resident(&index, 0, &plain(), 2).device, 2);
}

#[test]
#[contract("MC9", "DY18")]
fn blocks_that_a_store_has_named_by_a_hasher_of_its_own_end_with_the_engine() {
    let index = index_with_device();
    let (cpu, dram) = (stream(STORE, "a", "cpu"), stream(STORE, "a", "dram"));
    add(&index, &cpu, 1);
    carry_out(&index, &dram, Step::Store, true);
    assert_eq!(present(&index), [2, 0]);
    index.clear_engine(target(0));
    assert_eq!(index.blocks_per_tier(target(0)), [0, 1, 0, 0]);
}

#[test]
#[contract("MC9", "V17")]
fn a_cleared_engine_leaves_no_chunk_that_takes_a_block_stored_again_by_another() {
    let index = index_with_device();
    let cpu = stream(STORE, "mooncake-1", "cpu");
    let chunk = |name, blocks| {
        IndexUpdate::Stored(StoredBlocks {
            hashes: vec![EngineHash(name)],
            block_size: BlockSize::new(4 * u64::from(blocks)).unwrap(),
            tier: Tier::Host,
            ..store(0..blocks)
        })
    };
    index.apply(target(0), &chunk(900, 2));
    add(&index, &cpu, 1);
    index.apply(target(0), &IndexUpdate::ClearedTier(Tier::Host));
    assert_eq!(present(&index), [1, 0]);
    index.apply(target(0), &chunk(901, 3));
    let outcome = index.apply(target(0), &remove(&[900], Tier::Host));
    assert_eq!(outcome.applied, 0);
    assert_eq!(index.blocks_per_tier(target(0))[1], 3);
}

#[test]
#[contract("MC9", "MC10")]
fn a_store_that_names_blocks_removes_only_what_it_has_named() {
    let index = index_with_device();
    let (engine, master) = (
        MediumStream::of_tier(ENGINE, Tier::Host),
        MediumStream::of_tier(Publisher::StoreMaster, Tier::Host),
    );
    let named = IndexUpdate::Named(NamedBlocks {
        hashes: vec![EngineHash(1), EngineHash(2)],
        tier: Tier::Host,
    });
    carry_out(&index, &engine, Step::Store, true);
    let outcome = index.apply_from(target(0), &remove(&[1], Tier::Host), &master);
    assert_eq!((outcome.applied, outcome.ignored), (0, 1), "not its block");
    index.apply_from(target(0), &named, &master);
    let outcome = index.apply_from(target(0), &remove(&[1], Tier::Host), &master);
    assert_eq!((outcome.applied, outcome.ignored), (1, 0));
    assert_eq!(present(&index), [2, 0]);
    index.apply(target(0), &remove(&[1, 2], Tier::Host));
    assert_eq!(resident(&index, 0, &plain(), 2).device, 2);
    assert_eq!(present(&index), [1, 0], "the second one is in the store");
    let cleared = IndexUpdate::ClearedTier(Tier::Host);
    index.apply_from(target(0), &cleared, &master);
    assert_eq!(present(&index), [0, 0]);
}

#[test]
#[contract("MC9", "V17")]
fn chunks_of_an_engine_and_blocks_of_a_store_leave_one_by_one() {
    let chunk = IndexUpdate::Stored(StoredBlocks {
        hashes: vec![EngineHash(900)],
        block_size: BlockSize::new(8).unwrap(),
        tier: Tier::Host,
        ..store(0..2)
    });
    let cpu = stream(STORE, "mooncake-1", "cpu");
    let all_blocks = |index: &KvIndex| {
        index.remove_hashes_from(target(0), &plain(), &chain(2), &cpu);
    };
    for chunk_is_first in [false, true] {
        for chunk_leaves_first in [false, true] {
            let index = index_with_device();
            if chunk_is_first {
                index.apply(target(0), &chunk);
            }
            add(&index, &cpu, 2);
            if !chunk_is_first {
                index.apply(target(0), &chunk);
            }
            let chunk_leaves = || index.apply(target(0), &remove(&[900], Tier::Host));
            if chunk_leaves_first {
                chunk_leaves();
            } else {
                all_blocks(&index);
            }
            let case = (chunk_is_first, chunk_leaves_first);
            assert_eq!(present(&index), [2, 0], "{case:?}");
            if chunk_leaves_first {
                all_blocks(&index);
            } else {
                chunk_leaves();
            }
            assert_eq!(present(&index), [0, 0], "{case:?}");
        }
    }
}

#[test]
#[contract("MC9")]
fn a_removal_of_one_stream_leaves_the_blocks_of_another_that_wait_for_their_parent() {
    let index = index_with_device();
    let (one, other) = (stream(STORE, "a", "cpu"), stream(STORE, "b", "cpu"));
    let chain = chain(4);
    for by in [&one, &other] {
        index.store_hashes_from(target(0), &plain(), (Some(chain[2]), &chain[3..]), by);
    }
    index.remove_hashes_from(target(0), &plain(), &chain[3..], &one);
    index.store_hashes_from(target(0), &plain(), (None, &chain[..3]), &one);
    assert_eq!(resident(&index, 0, &plain(), 4).host, 2);
    index.clear_from(target(0), Some(&plain()), &other);
    assert_eq!(index.lookup(&plain(), &chain, NOW)[0].blocks.total(), 3);
}

#[test]
#[contract("MC9", "MC2")]
fn after_a_removed_worker_its_streams_begin_anew() {
    let index = index_with_device();
    let (one, other) = (stream(STORE, "a", "cpu"), stream(STORE, "b", "cpu"));
    add(&index, &one, 2);
    add(&index, &other, 2);
    index.remove_worker(target(0).worker);
    assert_eq!(index.stats().memberships, 0);
    index.register(target(0), "m".into());
    put(&index, 0, store(0..2));
    add(&index, &other, 2);
    drop_block(&index, &other, 0);
    assert_eq!(present(&index), [1, 0]);
}

#[test]
#[contract("MC9")]
fn a_loaded_index_credits_a_block_too_few_rather_than_one_too_many() {
    let saved = index_with_device();
    let (one, other) = (stream(STORE, "a", "cpu"), stream(STORE, "b", "cpu"));
    add(&saved, &one, 2);
    add(&saved, &other, 2);
    let mut snapshot = Vec::new();
    saved.save(&mut snapshot).unwrap();
    let load = || {
        let index = KvIndex::new(IndexSettings::default());
        index.load(&mut &snapshot[..]).unwrap();
        index
    };
    let index = load();
    assert_eq!(present(&index), [2, 0]);
    drop_block(&index, &other, 0);
    assert_eq!(present(&index), [1, 0]);
    clear(&index, &one);
    assert_eq!(present(&index), [0, 0]);
    // Only that worker's: another one's blocks are not the store's.
    let index = load();
    index.register(target(1), "m".into());
    let engine = MediumStream::of_tier(ENGINE, Tier::Host);
    index.store_hashes_from(target(1), &plain(), (None, &chain(2)), &engine);
    index.remove_hashes_from(target(1), &plain(), &chain(2)[1..], &other);
    index.clear_from(target(1), None, &other);
    assert_eq!(index.blocks_per_tier(target(1)), [0, 2, 0, 0]);
    // What is announced since then stays for the stream that announced it.
    let index = load();
    add(&index, &one, 1);
    add(&index, &other, 2);
    drop_block(&index, &one, 0);
    assert_eq!(present(&index), [2, 0]);
}
