//! Tests of orphans: waiting, removal and bounds.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::sync::Arc;

use contract_id::contract;
use kv_blocks::{BlockSize, EngineHash, PromptIdentity, SequenceHash, StoredBlocks};
use proptest::{prelude::*, test_runner::TestCaseError};

use super::*;

const PLENTY: u64 = 1 << 30;

fn size(tokens: u64) -> BlockSize {
    BlockSize::new(tokens).unwrap()
}

/// Returns blocks of two tokens with these engine hashes behind `parent`; a block's tokens are its
/// hash and twice its hash.
fn store(parent: u64, names: &[u64]) -> StoredBlocks {
    StoredBlocks {
        hashes: names.iter().copied().map(EngineHash).collect(),
        parent: Some(EngineHash(parent)),
        tokens: names
            .iter()
            .map(|name| u32::try_from(*name).unwrap())
            .flat_map(|name| [name, 2 * name])
            .collect(),
        block_size: size(2),
        lora: Some(Arc::from("adapter")),
        media: Vec::new(),
        salt: None,
        tier: Tier::Device,
    }
}

fn insert(orphans: &mut Orphans, slot: u32, stored: StoredBlocks) {
    orphans.insert(slot, OrphanBlocks::Named(stored));
}

fn arrived_of(orphans: &mut Orphans, slot: u32, name: u64, size: BlockSize) -> Vec<StoredBlocks> {
    let named = |late| match late {
        OrphanBlocks::Named(stored) | OrphanBlocks::Chunks(stored) => stored,
        OrphanBlocks::Hashed(hashed) => panic!("{hashed:?} has no names"),
    };
    orphans
        .arrived(slot, NumberScope::Size(size.tokens()), name)
        .into_iter()
        .map(named)
        .collect()
}

fn arrived(orphans: &mut Orphans, slot: u32, name: u64) -> Vec<StoredBlocks> {
    arrived_of(orphans, slot, name, size(2))
}

fn removed(orphans: &mut Orphans, slot: u32, name: u64) -> bool {
    orphans.removed(slot, NumberSet::Names, name, Tier::Device)
}

fn namespace(salt: &str) -> Namespace {
    let salt = Some(Arc::from(salt));
    Namespace {
        model: Arc::from("m"),
        lora: None,
        salt,
        block_size: size(2),
        identity: PromptIdentity::Tokens,
    }
}

/// Returns blocks with these hashes behind `parent`, in the namespace of a one-letter salt.
fn hashed(salt: &str, parent: u64, hashes: &[u64]) -> OrphanBlocks {
    OrphanBlocks::Hashed(HashKeyedBlocks {
        namespace: namespace(salt),
        space: salt.as_bytes()[0].into(),
        parent: Some(SequenceHash(parent)),
        hashes: hashes.iter().copied().map(SequenceHash).collect(),
        tier: Tier::Device,
    })
}

#[test]
#[contract("MC13", "MC12")]
fn blocks_with_sequence_hashes_wait_for_their_parents_hash_in_their_namespace() {
    let mut orphans = Orphans::new(PLENTY);
    orphans.insert(0, hashed("a", 1, &[2, 3, 4]));
    orphans.insert(0, hashed("b", 1, &[2]));
    insert(&mut orphans, 0, store(1, &[5]));
    let (a, b) = (
        NumberScope::Space(b'a'.into()),
        NumberScope::Space(b'b'.into()),
    );
    assert_eq!(orphans.arrived(1, a, 1), []);
    assert!(orphans.removed(0, NumberSet::Space(b'a'.into()), 3, Tier::Device));
    assert!(
        !orphans.removed(0, NumberSet::Space(b'a'.into()), 5, Tier::Device),
        "that is an engine hash"
    );
    assert_eq!(orphans.arrived(0, a, 1), [hashed("a", 1, &[2])]);
    assert_eq!(orphans.arrived(0, a, 3), [hashed("a", 3, &[4])]);
    assert_eq!(orphans.arrived(0, b, 1), [hashed("b", 1, &[2])]);
    assert_eq!(arrived(&mut orphans, 0, 1), [store(1, &[5])]);
    assert_eq!((orphans.len(), orphans.bytes()), (0, 0));
}

#[test]
#[contract("MC9")]
fn clearing_a_stream_drops_orphans_that_may_be_of_its_namespace_and_tier() {
    let mut orphans = Orphans::new(PLENTY);
    for salt in ["a", "b"] {
        orphans.insert(0, hashed(salt, 1, &[2]));
        insert(
            &mut orphans,
            0,
            StoredBlocks {
                lora: None,
                salt: Some(Arc::from(salt)),
                ..store(3, &[4])
            },
        );
    }
    insert(
        &mut orphans,
        0,
        StoredBlocks {
            lora: None,
            tier: Tier::Host,
            ..store(3, &[5])
        },
    );
    insert(
        &mut orphans,
        0,
        StoredBlocks {
            lora: None,
            ..store(3, &[6])
        },
    );
    orphans.clear_stream(0, &namespace("a"), Tier::Device);
    assert_eq!(orphans.arrived(0, NumberScope::Space(b'a'.into()), 1), []);
    assert_eq!(
        orphans.arrived(0, NumberScope::Space(b'b'.into()), 1),
        [hashed("b", 1, &[2])]
    );
    let left: Vec<_> = arrived(&mut orphans, 0, 3)
        .into_iter()
        .map(|stored| stored.hashes[0].0)
        .collect();
    assert_eq!(
        left,
        [4, 5],
        "blocks of another salt and of another tier stay"
    );
}

#[test]
#[contract("V9", "DY18", "F57")]
fn blocks_wait_for_their_parents_hash_and_are_returned_once() {
    let mut orphans = Orphans::new(PLENTY);
    assert!(orphans.is_empty());
    insert(&mut orphans, 0, store(1, &[2, 3]));
    assert!(!orphans.is_empty());
    assert_eq!(
        arrived(&mut orphans, 0, 2),
        [],
        "it waits for its own parent"
    );
    assert_eq!(arrived(&mut orphans, 0, 1), [store(1, &[2, 3])]);
    assert_eq!(arrived(&mut orphans, 0, 1), []);
    assert!(orphans.is_empty());
    assert_eq!((orphans.bytes(), orphans.dropped()), (0, 0));
}

#[test]
#[contract("V9")]
fn a_parent_announced_by_another_target_frees_nothing() {
    let mut orphans = Orphans::new(PLENTY);
    insert(&mut orphans, 0, store(1, &[2]));
    assert_eq!(arrived(&mut orphans, 1, 1), []);
    assert_eq!(orphans.len(), 1);
}

#[test]
fn all_orphans_of_one_parent_are_returned_in_order_of_arrival() {
    let mut orphans = Orphans::new(PLENTY);
    insert(&mut orphans, 0, store(1, &[5, 6]));
    insert(&mut orphans, 0, store(1, &[2]));
    insert(&mut orphans, 0, store(1, &[2]));
    assert_eq!(
        arrived(&mut orphans, 0, 1),
        [store(1, &[5, 6]), store(1, &[2]), store(1, &[2])]
    );
}

#[test]
fn a_parent_of_another_block_size_does_not_match() {
    let mut orphans = Orphans::new(PLENTY);
    insert(&mut orphans, 0, store(1, &[2]));
    assert_eq!(arrived_of(&mut orphans, 0, 1, size(4)), []);
    assert_eq!(arrived(&mut orphans, 0, 1).len(), 1);
}

#[test]
fn blocks_behind_an_orphan_wait_for_it() {
    let mut orphans = Orphans::new(PLENTY);
    insert(&mut orphans, 0, store(3, &[4]));
    insert(&mut orphans, 0, store(1, &[2, 3]));
    assert_eq!(arrived(&mut orphans, 0, 1), [store(1, &[2, 3])]);
    assert_eq!(arrived(&mut orphans, 0, 2), []);
    assert_eq!(arrived(&mut orphans, 0, 3), [store(3, &[4])]);
}

#[test]
fn a_removed_orphan_leaves_a_hole_and_blocks_behind_it_wait_for_it() {
    let mut orphans = Orphans::new(PLENTY);
    insert(&mut orphans, 0, store(1, &[2, 3, 4, 5]));
    assert!(removed(&mut orphans, 0, 3));
    assert!(!removed(&mut orphans, 0, 3), "it is already removed");
    assert_eq!(arrived(&mut orphans, 0, 1), [store(1, &[2])]);
    assert_eq!(arrived(&mut orphans, 0, 2), []);
    assert_eq!(arrived(&mut orphans, 0, 3), [store(3, &[4, 5])]);
    assert_eq!((orphans.len(), orphans.bytes()), (0, 0));
}

#[test]
fn orphans_can_be_removed_from_either_end() {
    for order in [[2, 3, 4], [4, 3, 2], [3, 2, 4]] {
        let mut orphans = Orphans::new(PLENTY);
        insert(&mut orphans, 0, store(1, &[2, 3, 4]));
        for name in order {
            assert!(removed(&mut orphans, 0, name));
        }
        assert!(orphans.is_empty());
        assert_eq!(
            (orphans.len(), orphans.bytes(), orphans.dropped()),
            (0, 0, 0)
        );
    }
}

#[test]
fn a_removal_reaches_every_waiting_copy_of_its_own_tier_and_target() {
    let mut orphans = Orphans::new(PLENTY);
    insert(&mut orphans, 0, store(1, &[2]));
    insert(&mut orphans, 0, store(1, &[2, 3]));
    insert(
        &mut orphans,
        0,
        StoredBlocks {
            tier: Tier::Host,
            ..store(1, &[2])
        },
    );
    insert(&mut orphans, 1, store(1, &[2]));
    assert!(removed(&mut orphans, 0, 2));
    assert_eq!(
        arrived(&mut orphans, 0, 1),
        [StoredBlocks {
            tier: Tier::Host,
            ..store(1, &[2])
        }]
    );
    assert_eq!(arrived(&mut orphans, 0, 2), [store(2, &[3])]);
    assert_eq!(arrived(&mut orphans, 1, 1), [store(1, &[2])]);
}

#[test]
fn clearing_drops_one_target_or_one_of_its_tiers() {
    let mut orphans = Orphans::new(PLENTY);
    for slot in 0..2 {
        insert(&mut orphans, slot, store(1, &[2]));
        insert(
            &mut orphans,
            slot,
            StoredBlocks {
                tier: Tier::Host,
                ..store(1, &[3])
            },
        );
    }
    orphans.clear_tier(0, Tier::Device);
    assert_eq!(
        arrived(&mut orphans, 0, 1),
        [StoredBlocks {
            tier: Tier::Host,
            ..store(1, &[3])
        }]
    );
    orphans.clear(1);
    assert!(orphans.is_empty());
    assert_eq!(orphans.dropped(), 0, "no store lacked room");
}

#[test]
fn the_oldest_orphans_are_dropped_at_the_limit() {
    let mut orphans = Orphans::new(PLENTY);
    for name in 0..MAX_WAITING as u64 + 10 {
        insert(&mut orphans, 0, store(name, &[name + 1, name + 2]));
    }
    assert_eq!((orphans.len(), orphans.dropped()), (MAX_WAITING, 20));
    assert_eq!(arrived(&mut orphans, 0, 9), []);
    assert_eq!(arrived(&mut orphans, 0, 10).len(), 1);
}

#[test]
fn an_endlessly_repeated_store_stays_within_the_byte_limit() {
    let allowed = 64 << 10;
    let mut orphans = Orphans::new(allowed);
    for _ in 0..2000 {
        insert(&mut orphans, 0, store(1, &[2, 3, 4]));
        assert!(orphans.bytes() <= allowed);
    }
    assert!(
        orphans.len() > 50 && orphans.dropped() > 3 * 1000,
        "{} wait",
        orphans.len()
    );
}

#[test]
fn a_store_over_the_whole_limit_displaces_nothing() {
    let mut orphans = Orphans::new(4 << 10);
    insert(&mut orphans, 0, store(1, &[2]));
    insert(&mut orphans, 0, store(1, &(0..1000).collect::<Vec<_>>()));
    assert_eq!((orphans.len(), orphans.dropped()), (1, 1000));
}

#[test]
fn a_store_full_of_holes_counts_toward_the_limit() {
    let names: Vec<_> = (2..2 + 4 * MAX_WAITING as u64).collect();
    let mut orphans = Orphans::new(PLENTY);
    insert(&mut orphans, 0, store(1, &names));
    for name in names.iter().step_by(2) {
        removed(&mut orphans, 0, *name);
        assert!(orphans.len() <= MAX_WAITING);
    }
    assert!(orphans.dropped() > 0);
    assert_eq!(
        (orphans.len(), orphans.bytes()),
        (0, 0),
        "they are one store, so they are dropped together"
    );
}

#[test]
fn a_store_without_a_missing_parent_does_not_wait() {
    let mut orphans = Orphans::new(PLENTY);
    insert(
        &mut orphans,
        0,
        StoredBlocks {
            parent: None,
            ..store(1, &[2])
        },
    );
    insert(&mut orphans, 0, store(1, &[]));
    insert(
        &mut orphans,
        0,
        StoredBlocks {
            tokens: vec![1],
            ..store(1, &[2])
        },
    );
    assert!(orphans.is_empty());
}

#[derive(Clone, Debug)]
enum OrphanStep {
    Insert {
        slot: u32,
        parent: u64,
        names: Vec<u64>,
        tier: Tier,
    },
    Arrived {
        slot: u32,
        name: u64,
    },
    Removed {
        slot: u32,
        name: u64,
        tier: Tier,
    },
    Clear {
        slot: u32,
    },
    ClearTier {
        slot: u32,
        tier: Tier,
    },
}

fn step() -> impl Strategy<Value = OrphanStep> {
    let tier = || prop::sample::select(vec![Tier::Device, Tier::Host]);
    let names = || prop::collection::vec(0_u64..12, 1..6);
    prop_oneof![
        6 => (0..2_u32, 0..12_u64, names(), tier())
            .prop_map(|(slot, parent, names, tier)| OrphanStep::Insert { slot, parent, names, tier }),
        3 => (0..2_u32, 0..12_u64).prop_map(|(slot, name)| OrphanStep::Arrived { slot, name }),
        5 => (0..2_u32, 0..12_u64, tier()).prop_map(|(slot, name, tier)| OrphanStep::Removed { slot, name, tier }),
        1 => (0..2_u32).prop_map(|slot| OrphanStep::Clear { slot }),
        1 => (0..2_u32, tier()).prop_map(|(slot, tier)| OrphanStep::ClearTier { slot, tier }),
    ]
}

/// Waiting stores as plain stores, in order of arrival; the remainder of a store after a removal
/// takes its place.
type OrphanModel = Vec<(u32, StoredBlocks)>;

fn without(stored: &StoredBlocks, name: u64) -> Vec<StoredBlocks> {
    let mut pieces = Vec::new();
    let mut parent = stored.parent.unwrap().0;
    let mut names: Vec<u64> = Vec::new();
    for next in stored.hashes.iter().map(|hash| hash.0) {
        if next == name {
            pieces.push(StoredBlocks {
                tier: stored.tier,
                ..store(parent, &std::mem::take(&mut names))
            });
            parent = name;
        } else {
            names.push(next);
        }
    }
    pieces.push(StoredBlocks {
        tier: stored.tier,
        ..store(parent, &names)
    });
    pieces.retain(|piece| !piece.hashes.is_empty());
    pieces
}

fn apply(
    orphans: &mut Orphans,
    model: &mut OrphanModel,
    step: OrphanStep,
) -> Result<(), TestCaseError> {
    match step {
        OrphanStep::Insert {
            slot,
            parent,
            names,
            tier,
        } => {
            let stored = StoredBlocks {
                tier,
                ..store(parent, &names)
            };
            insert(orphans, slot, stored.clone());
            model.push((slot, stored));
        }
        OrphanStep::Arrived { slot, name } => {
            let hit = |(of, stored): &(u32, StoredBlocks)| {
                *of == slot && stored.parent == Some(EngineHash(name))
            };
            let expected: Vec<_> = model
                .iter()
                .filter(|waiting| hit(waiting))
                .map(|(_, stored)| stored.clone())
                .collect();
            model.retain(|waiting| !hit(waiting));
            prop_assert_eq!(arrived(orphans, slot, name), expected);
        }
        OrphanStep::Removed { slot, name, tier } => {
            let hit = |(of, stored): &(u32, StoredBlocks)| {
                *of == slot && stored.tier == tier && stored.hashes.contains(&EngineHash(name))
            };
            prop_assert_eq!(
                orphans.removed(slot, NumberSet::Names, name, tier),
                model.iter().any(hit)
            );
            let split = |waiting: &(u32, StoredBlocks)| {
                if hit(waiting) {
                    without(&waiting.1, name)
                } else {
                    vec![waiting.1.clone()]
                }
            };
            *model = model
                .iter()
                .flat_map(|waiting| split(waiting).into_iter().map(|piece| (waiting.0, piece)))
                .collect();
        }
        OrphanStep::Clear { slot } => {
            orphans.clear(slot);
            model.retain(|(of, _)| *of != slot);
        }
        OrphanStep::ClearTier { slot, tier } => {
            orphans.clear_tier(slot, tier);
            model.retain(|(of, stored)| *of != slot || stored.tier != tier);
        }
    }
    prop_assert_eq!(orphans.len(), model.len());
    prop_assert_eq!(orphans.is_empty(), model.is_empty());
    let blocks: usize = model.iter().map(|(_, stored)| stored.hashes.len()).sum();
    prop_assert_eq!(orphans.by_number.len(), blocks);
    prop_assert_eq!(orphans.bytes() == 0, model.is_empty());
    Ok(())
}

proptest! {
    #[test]
    #[contract("V9", "DY18")]
    fn orphans_equal_a_plain_list_of_split_stores(steps in prop::collection::vec(step(), 1..60)) {
        let mut orphans = Orphans::new(PLENTY);
        let mut model = OrphanModel::new();
        for step in steps {
            apply(&mut orphans, &mut model, step)?;
        }
    }
}
