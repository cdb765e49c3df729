//! Streams that name blocks by their sequence hashes, which may be wrong.

use contract_id::contract;
use kv_blocks::{IndexUpdate, SequenceHash, StoredBlocks, Tier};
use kv_index::{KvIndex, Overlap, UpdateOutcome};
use proptest::{collection::vec, prelude::*};

use crate::sequence::*;

const DEVICE: Tier = Tier::Device;

fn apply(
    index: &KvIndex,
    worker: u32,
    parent: Option<SequenceHash>,
    hashes: &[SequenceHash],
) -> UpdateOutcome {
    index.store_hashes(target(worker), &plain(), parent, hashes, DEVICE)
}

#[test]
#[contract("MC9", "MC13")]
fn a_block_announced_again_by_its_hash_is_gone_after_one_removal() {
    let (index, chain) = (index(), chain(4));
    apply(&index, 0, None, &chain);
    apply(&index, 0, Some(chain[0]), &chain[1..]);
    apply(&index, 0, Some(chain[1]), &chain[2..]);
    index.remove_hashes(target(0), &plain(), &chain[3..], DEVICE);
    assert_eq!(resident(&index, 0, &plain(), 8).device, 3);
    assert_eq!(index.depth_of(&plain(), chain[2]), Some(2));
    assert_eq!(index.depth_of(&plain(), SequenceHash(9)), None);
}

#[test]
#[contract("MC13")]
fn blocks_named_by_sequence_hash_are_found_by_tokens_beside_other_blocks() {
    let index = index();
    let chain = chain(6);
    put(&index, 1, store(0..4));
    assert_eq!(apply(&index, 0, None, &chain[..3]).applied, 3);
    assert_eq!(apply(&index, 0, Some(chain[2]), &chain[3..]).applied, 3);
    assert_eq!(
        (
            resident(&index, 0, &plain(), 8).device,
            resident(&index, 1, &plain(), 8).device
        ),
        (6, 4)
    );
    assert_eq!(index.stats().distinct, 6);
    let removed = index.remove_hashes(
        target(0),
        &plain(),
        &[chain[5], SequenceHash(9), chain[4]],
        DEVICE,
    );
    assert_eq!(
        removed,
        UpdateOutcome {
            applied: 2,
            orphans: 0,
            ignored: 1,
            moved: 0
        }
    );
    assert_eq!(
        (
            resident(&index, 0, &plain(), 8).device,
            resident(&index, 1, &plain(), 8).device
        ),
        (4, 4)
    );
    assert_eq!(
        index
            .remove_hashes(target(0), &salted("s"), &chain, DEVICE)
            .applied,
        0,
        "another namespace"
    );
}

#[test]
#[contract("MC13")]
fn blocks_behind_an_unknown_hash_wait_for_it() {
    let index = index();
    let chain = chain(9);
    assert_eq!(
        apply(&index, 0, Some(chain[6]), &chain[7..]),
        UpdateOutcome {
            orphans: 2,
            ..UpdateOutcome::default()
        }
    );
    assert_eq!(
        apply(&index, 0, Some(chain[2]), &chain[3..6]),
        UpdateOutcome {
            orphans: 3,
            ..UpdateOutcome::default()
        }
    );
    assert_eq!(
        index
            .remove_hashes(target(0), &plain(), &[chain[4]], DEVICE)
            .applied,
        1,
        "waiting blocks can also be removed"
    );
    assert!(index.lookup(&plain(), &chain, NOW).is_empty());
    // The same blocks of another target or namespace do not count for this target.
    apply(&index, 1, None, &chain[..7]);
    index.store_hashes(target(0), &salted("s"), None, &chain[..7], DEVICE);
    assert_eq!(resident(&index, 0, &plain(), 9).device, 0);
    apply(&index, 0, None, &chain[..3]);
    assert_eq!(
        resident(&index, 0, &plain(), 9).device,
        4,
        "up to the removed one"
    );
    apply(&index, 0, Some(chain[3]), &chain[4..7]);
    assert_eq!(resident(&index, 0, &plain(), 9).device, 9);
    assert_eq!(index.stats().orphans, 5);
}

#[test]
#[contract("MC9")]
fn clearing_a_stream_drops_blocks_and_orphans_of_its_tier_and_namespace() {
    let index = index();
    let chain = chain(8);
    for salt in ["a", "b"] {
        for tier in [DEVICE, Tier::Host] {
            index.store_hashes(target(0), &salted(salt), None, &chain[..4], tier);
            index.store_hashes(target(0), &salted(salt), Some(chain[5]), &chain[6..], tier);
        }
        index.store_hashes(target(1), &salted(salt), None, &chain[..4], DEVICE);
    }
    index.clear_stream(target(0), &salted("a"), DEVICE);
    assert_eq!(index.blocks_per_tier(target(0)), [4, 8, 0, 0]);
    assert_eq!(index.blocks_per_tier(target(1)), [8, 0, 0, 0]);
    let present = |salt| index.lookup(&salted(salt), &chain, NOW)[0].present;
    assert_eq!((present("a"), present("b")), ([0, 4, 0, 0], [4, 4, 0, 0]));
    // Of the orphans only those of that tier and namespace are dropped.
    for salt in ["a", "b"] {
        for tier in [DEVICE, Tier::Host] {
            index.store_hashes(target(0), &salted(salt), None, &chain[..6], tier);
        }
    }
    assert_eq!(index.blocks_per_tier(target(0)), [6 + 8, 8 + 8, 0, 0]);
    index.clear_stream(target(0), &salted("nobody's"), DEVICE);
    assert_eq!(index.blocks_per_tier(target(0)), [6 + 8, 8 + 8, 0, 0]);
}

#[test]
#[contract("MC13")]
fn a_repeated_or_contradicting_hash_truncates_a_store() {
    let index = index();
    let chain = chain(6);
    put(&index, 1, store(0..6));
    let made_up = [1, 2, 3].map(SequenceHash);
    let lie = [made_up[0], made_up[1], made_up[0], made_up[2]];
    assert_eq!(
        apply(&index, 0, None, &lie),
        UpdateOutcome {
            applied: 2,
            orphans: 0,
            ignored: 2,
            moved: 0
        }
    );
    let lie = [made_up[2], chain[3], chain[4]];
    assert_eq!(
        apply(&index, 0, Some(made_up[1]), &lie),
        UpdateOutcome {
            applied: 1,
            orphans: 0,
            ignored: 2,
            moved: 0
        }
    );
    assert_eq!(apply(&index, 0, Some(chain[1]), &chain[4..]).applied, 0);
    assert_eq!(index.stats().distinct, 6 + 3);
    assert_eq!(resident(&index, 1, &plain(), 6).device, 6);
    index.remove_worker(target(0).worker);
    assert_eq!(
        (
            index.stats().distinct,
            resident(&index, 1, &plain(), 6).device
        ),
        (6, 6)
    );
}

#[derive(Clone, Debug)]
enum FalseEvent {
    Store {
        parent: Option<usize>,
        hashes: Vec<usize>,
        tier: Tier,
    },
    Remove {
        hashes: Vec<usize>,
        tier: Tier,
    },
    Cleared,
}

fn lie() -> impl Strategy<Value = FalseEvent> {
    let tier = || prop::sample::select(vec![DEVICE, Tier::Host]);
    // 0 to 39 are real, the others belong to no block; runs of them, and single ones.
    let hashes = || {
        let piece = prop_oneof![
            (0..50_usize, 1..12_usize)
                .prop_map(|(from, count)| (from..from + count).collect::<Vec<_>>()),
            vec(0..60_usize, 1..4),
        ];
        vec(piece, 1..4).prop_map(|pieces| pieces.concat())
    };
    prop_oneof![
        5 => (prop::option::of(0..60_usize), hashes(), tier())
            .prop_map(|(parent, hashes, tier)| FalseEvent::Store { parent, hashes, tier }),
        3 => (hashes(), tier()).prop_map(|(hashes, tier)| FalseEvent::Remove { hashes, tier }),
        1 => Just(FalseEvent::Cleared),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[contract("MC13")]
    fn a_false_stream_never_changes_lookups_of_other_targets(lies in vec(lie(), 1..30)) {
        let index = index();
        let chain = chain(40);
        // Two true streams, with a hole and a second tier; their held blocks end at several depths.
        put(&index, 1, store(0..40));
        index.apply(target(1), &remove(&[31], DEVICE));
        put(&index, 1, StoredBlocks { tier: Tier::Host, ..store(10..20) });
        apply(&index, 2, None, &chain[..17]);
        let truth = || {
            let ends = (1..=chain.len()).map(|end| index.lookup(&plain(), &chain[..end], NOW));
            let others = |overlap: &Overlap| overlap.target != target(0);
            ends.map(|found| found.into_iter().filter(others).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        let before = truth();
        let name = |number: &usize| chain.get(*number).copied().unwrap_or(SequenceHash(*number as u64));
        for lie in lies {
            match lie {
                FalseEvent::Store { parent, hashes, tier } => {
                    let hashes: Vec<_> = hashes.iter().map(name).collect();
                    index.store_hashes(target(0), &plain(), parent.as_ref().map(name), &hashes, tier);
                }
                FalseEvent::Remove { hashes, tier } => {
                    index.remove_hashes(target(0), &plain(), &hashes.iter().map(name).collect::<Vec<_>>(), tier);
                }
                FalseEvent::Cleared => {
                    index.apply(target(0), &IndexUpdate::Cleared);
                }
            }
            prop_assert_eq!(&truth(), &before);
        }
        index.remove_worker(target(0).worker);
        prop_assert_eq!(&truth(), &before);
    }
}
