//! The form of the answer that the router uses.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use contract_id::contract;
use kv_blocks::{
    DpRank, HashScheme, IndexUpdate, MediaHash, Namespace, SequenceHash, StoredBlocks, Target,
    Tier, WorkerId,
};
use kv_index::{KvIndex, Matches, Overlap, TargetSlot};
use proptest::{collection::vec, prelude::*};

use crate::sequence::*;

#[test]
fn slots_are_assigned_in_order_and_reused_after_their_worker_is_removed() {
    let index = index();
    assert_eq!(
        [0, 1, 2].map(|worker| index.slot(target(worker))),
        [0, 1, 2].map(|slot| Some(TargetSlot(slot)))
    );
    assert_eq!(
        (index.slot(target(3)), index.target(TargetSlot(3))),
        (None, None)
    );
    assert_eq!(index.target(TargetSlot(1)), Some(target(1)));
    put(&index, 1, store(0..2));
    index.remove_worker(WorkerId(1));
    assert_eq!(
        (index.slot(target(1)), index.target(TargetSlot(1))),
        (None, None)
    );
    index.register(target(7), Arc::from("m"));
    assert_eq!(
        (index.slot(target(7)), index.target(TargetSlot(1))),
        (Some(TargetSlot(1)), Some(target(7)))
    );
    assert!(
        index.lookup(&plain(), &chain(2), NOW).is_empty(),
        "a reused slot has none of its last owner's blocks"
    );
}

#[test]
#[contract("V7", "DY18")]
fn every_slot_has_the_length_of_its_run() {
    let index = index();
    put(&index, 0, store(0..4));
    put(&index, 1, store(0..6));
    index.apply(target(1), &remove(&[3], Tier::Device));
    let matches = look_up(&index, &plain(), &chain(6));
    let mut listed: Vec<_> = matches.iter().collect();
    listed.sort_unstable();
    assert_eq!(listed, [(TargetSlot(0), 4), (TargetSlot(1), 2)]);
    assert_eq!(
        (
            matches.best(),
            matches.of(TargetSlot(0)),
            matches.of(TargetSlot(1)),
            matches.of(TargetSlot(2))
        ),
        (4, 4, 2, 0)
    );
}

#[test]
#[contract("D2")]
fn blocks_with_different_multimodal_items_never_match() {
    let index = index();
    let [cat, dog] = ["cat", "dog"].map(|name| MediaHash::of([(name, 1)]));
    let media = vec![None, cat];
    put(
        &index,
        0,
        StoredBlocks {
            media,
            ..store(0..4)
        },
    );
    put(&index, 1, store(0..4));
    let scheme = HashScheme::default();
    let chain = |media: [Option<MediaHash>; 4]| {
        let mut chain: Vec<SequenceHash> = Vec::new();
        for ((tokens, _), media) in store(0..4).blocks().zip(media) {
            chain.push(scheme.extend_with(chain.last().copied(), tokens, media));
        }
        chain
    };
    for (media, want) in [
        ([None, cat, None, None], [4, 1]),
        ([None, dog, None, None], [1, 1]),
        ([None; 4], [1, 4]),
        ([cat, cat, None, None], [0, 0]),
    ] {
        let matches = look_up(&index, &plain(), &chain(media));
        assert_eq!(
            [0, 1].map(|slot| matches.of(TargetSlot(slot))),
            want,
            "{media:?}"
        );
    }
    let late = StoredBlocks {
        media: vec![dog],
        ..store(5..7)
    };
    put(&index, 0, late);
    assert_eq!(
        look_up(&index, &plain(), &chain([None, cat, None, None])).best(),
        4
    );
    put(&index, 0, store(4..5));
    let mut long: Vec<_> = chain([None, cat, None, None]);
    for ((tokens, _), media) in store(4..7).blocks().zip([None, dog, None]) {
        long.push(scheme.extend_with(long.last().copied(), tokens, media));
    }
    assert_eq!(
        look_up(&index, &plain(), &long).of(TargetSlot(0)),
        7,
        "items wait with the blocks whose parent comes later"
    );
}

#[test]
fn an_empty_chain_has_no_holder() {
    let index = index();
    put(&index, 0, store(0..4));
    let mut matches = look_up(&index, &plain(), &chain(4));
    index.lookup_into(index.namespace_key(&plain()), &[], NOW, &mut matches);
    assert_eq!(
        (
            matches.iter().count(),
            matches.best(),
            matches.of(TargetSlot(0))
        ),
        (0, 0, 0),
        "the matches are empty"
    );
    let mut batch = [Matches::default(), matches];
    index.lookup_batch(
        index.namespace_key(&plain()),
        &[&chain(4), &[]],
        NOW,
        &mut batch,
    );
    assert_eq!(batch.map(|matches| matches.best()), [4, 0]);
}

#[test]
#[contract("MC4")]
fn a_block_in_two_tiers_counts_in_both() {
    let index = index();
    // The first block is in two tiers, the second in two others.
    put(&index, 0, store(0..1));
    put(
        &index,
        0,
        StoredBlocks {
            tier: Tier::Host,
            ..store(0..2)
        },
    );
    put(
        &index,
        0,
        StoredBlocks {
            tier: Tier::Disk,
            ..store(1..3)
        },
    );
    put(
        &index,
        0,
        StoredBlocks {
            tier: Tier::Remote,
            ..store(4..6)
        },
    );
    let overlap = index.lookup(&plain(), &chain(6), NOW)[0];
    assert_eq!(
        (overlap.blocks.total(), overlap.present),
        (3, [1, 2, 2, 0]),
        "blocks behind the gap do not count"
    );
    assert_eq!(
        (
            overlap.blocks.device,
            overlap.blocks.host,
            overlap.blocks.disk
        ),
        (1, 1, 1),
        "once in the best tier"
    );
}

fn look_up(index: &KvIndex, namespace: &Namespace, chain: &[SequenceHash]) -> Matches {
    let mut matches = Matches::default();
    index.lookup_into(index.namespace_key(namespace), chain, NOW, &mut matches);
    matches
}

/// Returns a prompt: its first blocks are from the sequence, the others from one of a few
/// continuations.
fn prompt(fork: u32, other: u32) -> Vec<u32> {
    (0..30)
        .flat_map(|block| [block * 10 + if block < fork { 0 } else { other }; 4])
        .collect()
}

fn hashes(tokens: &[u32]) -> Vec<SequenceHash> {
    kv_blocks::HashScheme::default().chain(None, tokens, size())
}

#[derive(Clone, Debug)]
enum NativeStep {
    Store {
        worker: u32,
        fork: u32,
        other: u32,
        blocks: std::ops::Range<usize>,
        tier: Tier,
    },
    Remove {
        worker: u32,
        fork: u32,
        other: u32,
        blocks: std::ops::Range<usize>,
        tier: Tier,
    },
    Expect {
        worker: u32,
        fork: u32,
        other: u32,
        blocks: usize,
    },
    Trust {
        worker: u32,
        trusted: bool,
    },
    Clear {
        worker: u32,
    },
}

fn step() -> impl Strategy<Value = NativeStep> {
    // Up to 200 targets: their bits need several words.
    let worker = || prop_oneof![0..4_u32, 0..200_u32];
    let range =
        || (0..30_usize, 1..31_usize).prop_map(|(from, count)| from..(from + count).min(30));
    let fork = || prop::sample::select(vec![0_u32, 8, 9, 20, 30]);
    let tier = || prop::sample::select(vec![Tier::Device, Tier::Device, Tier::Host, Tier::Disk]);
    prop_oneof![
        8 => (worker(), fork(), 1..4_u32, range(), tier())
            .prop_map(|(worker, fork, other, blocks, tier)| NativeStep::Store { worker, fork, other, blocks, tier }),
        3 => (worker(), fork(), 1..4_u32, range(), tier())
            .prop_map(|(worker, fork, other, blocks, tier)| NativeStep::Remove { worker, fork, other, blocks, tier }),
        2 => (worker(), fork(), 1..4_u32, 1..31_usize)
            .prop_map(|(worker, fork, other, blocks)| NativeStep::Expect { worker, fork, other, blocks }),
        1 => (worker(), any::<bool>()).prop_map(|(worker, trusted)| NativeStep::Trust { worker, trusted }),
        1 => worker().prop_map(|worker| NativeStep::Clear { worker }),
    ]
}

fn apply(index: &KvIndex, step: NativeStep) {
    match step {
        NativeStep::Store {
            worker,
            fork,
            other,
            blocks,
            tier,
        } => {
            index.register(target(worker), Arc::from("m"));
            let chain = hashes(&prompt(fork, other));
            let parent = blocks.start.checked_sub(1).map(|at| chain[at]);
            index.store_hashes(target(worker), &plain(), parent, &chain[blocks], tier);
        }
        NativeStep::Remove {
            worker,
            fork,
            other,
            blocks,
            tier,
        } => {
            index.remove_hashes(
                target(worker),
                &plain(),
                &hashes(&prompt(fork, other))[blocks],
                tier,
            );
        }
        NativeStep::Expect {
            worker,
            fork,
            other,
            blocks,
        } => {
            let chain = hashes(&prompt(fork, other));
            index.speculate(
                target(worker),
                &plain(),
                &chain[..blocks],
                NOW,
                Duration::from_secs(1),
            );
        }
        NativeStep::Trust { worker, trusted } => index.trust(target(worker), trusted),
        NativeStep::Clear { worker } => index.clear(target(worker)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[contract("V7", "V12", "DY18", "MC4")]
    fn all_forms_of_a_lookup_agree(steps in vec(step(), 1..60)) {
        let index = KvIndex::new(kv_index::IndexSettings::default());
        let mut distrusted = std::collections::BTreeSet::new();
        for step in steps {
            match step {
                NativeStep::Trust { worker, trusted: false } => { distrusted.insert(target(worker)); }
                NativeStep::Trust { worker, trusted: true } => { distrusted.remove(&target(worker)); }
                _ => {}
            }
            apply(&index, step);
        }
        let chains: Vec<_> = [(0, 1), (8, 1), (8, 2), (9, 3), (20, 1), (30, 1)]
            .iter()
            .flat_map(|(fork, other)| [1, 8, 9, 10, 29, 30].map(|blocks| hashes(&prompt(*fork, *other))[..blocks].to_vec()))
            .collect();
        let borrowed: Vec<_> = chains.iter().map(Vec::as_slice).collect();
        let mut batch: Vec<_> = chains.iter().map(|_| Matches::default()).collect();
        index.lookup_batch(index.namespace_key(&plain()), &borrowed, NOW, &mut batch);
        let mut one = Matches::default();
        for (chain, of_batch) in chains.iter().zip(&batch) {
            let listed = index.lookup(&plain(), chain, NOW);
            let trusted = |overlap: &&Overlap| !distrusted.contains(&overlap.target);
            let expected: BTreeMap<Target, u32> =
                listed.iter().filter(trusted).map(|overlap| (overlap.target, overlap.blocks.total())).collect();
            index.lookup_into(index.namespace_key(&plain()), chain, NOW, &mut one);
            for matches in [&one, of_batch] {
                let listed: Vec<_> = matches.iter().map(|(slot, blocks)| (index.target(slot).unwrap(), blocks)).collect();
                prop_assert_eq!(listed.len(), expected.len(), "each slot once");
                prop_assert_eq!(&listed.into_iter().collect::<BTreeMap<_, _>>(), &expected);
                let mut each = BTreeMap::new();
                matches.each(|slot, blocks| { each.insert(index.target(slot).unwrap(), blocks); });
                prop_assert_eq!(&each, &expected);
                prop_assert_eq!(matches.best(), expected.values().copied().max().unwrap_or(0));
                for worker in 0..200 {
                    let length = index.slot(target(worker)).map_or(0, |slot| matches.of(slot));
                    prop_assert_eq!(length, expected.get(&target(worker)).copied().unwrap_or(0));
                }
            }
            for overlap in listed {
                let in_tiers = overlap.present.iter().sum::<u32>() + overlap.blocks.speculative;
                prop_assert!(in_tiers >= overlap.blocks.total(), "{overlap:?}: each block is in a tier");
                prop_assert!(overlap.present.iter().all(|blocks| *blocks <= overlap.blocks.total()));
            }
        }
    }
}

#[test]
#[contract("DY17")]
fn the_matches_of_a_requests_tokens_are_the_leading_blocks_of_each_rank() {
    let index = index();
    let rank = |rank: u32| Target {
        rank: DpRank(rank),
        ..target(0)
    };
    index.register(rank(1), Arc::from("m"));
    put(&index, 0, store(0..4));
    index.apply(rank(1), &IndexUpdate::Stored(store(0..2)));
    put(&index, 1, store(0..6));
    index.apply(target(1), &remove(&[2], Tier::Device));
    put(&index, 2, store(8..9));
    // Five blocks and a part of the sixth.
    let mut prompt = tokens(0..6);
    prompt.pop();
    assert_eq!(
        index.find_matches(&plain(), &prompt, NOW),
        [(rank(0), 4), (rank(1), 2), (target(1), 1)]
    );
    assert_eq!(index.find_matches(&plain(), &prompt[1..], NOW), []);
}
