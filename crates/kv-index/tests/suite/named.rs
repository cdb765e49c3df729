//! Blocks announced only by engine hash: placeholders of an offload tier, or of a store beside the
//! engines.

use std::sync::Arc;

use contract_id::contract;
use kv_blocks::{EngineHash, HashScheme, IndexUpdate, NamedBlocks, Tier};
use kv_index::{IndexSettings, KvIndex, UpdateOutcome};

use crate::sequence::*;

fn named(names: impl IntoIterator<Item = u64>, tier: Tier) -> IndexUpdate {
    IndexUpdate::Named(NamedBlocks {
        hashes: names.into_iter().map(EngineHash).collect(),
        tier,
    })
}

fn host(index: &KvIndex, worker: u32) -> (u32, u32) {
    let blocks = resident(index, worker, &plain(), 8);
    (blocks.device, blocks.host)
}

#[test]
#[contract("V20", "MC4")]
fn a_block_named_in_another_tier_stays_there_when_it_leaves_the_device() {
    let index = index();
    put(&index, 0, store(0..4));
    assert_eq!(
        index.apply(target(0), &named(1..=4, Tier::Host)),
        UpdateOutcome {
            applied: 4,
            orphans: 0,
            ignored: 0,
            moved: 4
        }
    );
    assert_eq!(
        index.lookup(&plain(), &chain(4), NOW)[0].present,
        [4, 4, 0, 0]
    );
    index.apply(target(0), &remove(&[4, 3], Tier::Device));
    assert_eq!(host(&index, 0), (2, 2));
    // The block returns to the device, again by its hash only.
    index.apply(target(0), &named([3], Tier::Device));
    assert_eq!(host(&index, 0), (3, 1));
    index.apply(target(0), &remove(&[1, 2, 3, 4], Tier::Host));
    assert_eq!(host(&index, 0), (3, 0));
}

#[test]
#[contract("V9")]
fn unannounced_hashes_credit_nothing() {
    let index = index();
    put(&index, 0, store(0..2));
    assert_eq!(
        index.apply(target(0), &named([7, 8], Tier::Host)),
        UpdateOutcome {
            applied: 0,
            orphans: 0,
            ignored: 2,
            moved: 0
        }
    );
    assert_eq!(
        index.apply(target(9), &named([1], Tier::Host)),
        UpdateOutcome {
            applied: 0,
            orphans: 0,
            ignored: 1,
            moved: 0
        }
    );
    assert_eq!(index.stats().memberships, 2);
}

#[test]
#[contract("V9")]
fn another_targets_hash_credits_nothing_until_both_are_proven_alike() {
    let index = index();
    put(&index, 0, store(0..4));
    assert_eq!(
        index.apply(target(1), &named([1, 2], Tier::Host)).applied,
        0
    );
    // A long hash that both gave to the same block proves that they hash alike.
    let long = |block: u64| EngineHash(block.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut stored = store(4..6);
    stored.parent = Some(EngineHash(4));
    stored.hashes = vec![long(5), long(6)];
    put(&index, 0, stored);
    let mut whole = store(0..6);
    whole.hashes = (1..=4).map(EngineHash).chain([long(5), long(6)]).collect();
    put(&index, 1, whole);
    put(&index, 0, {
        let mut more = store(6..7);
        more.parent = Some(long(6));
        more.hashes = vec![long(7)];
        more
    });
    assert_eq!(
        index
            .apply(target(1), &named([long(7).0], Tier::Disk))
            .applied,
        1
    );
}

#[test]
#[contract("A11")]
fn hashes_in_a_full_index_never_credit_more_than_is_held() {
    let budget = 64 << 10;
    let index = index_of(IndexSettings {
        memory_budget: budget,
        ..IndexSettings::default()
    });
    for salt in 0..200_u64 {
        let mut stored = store(0..8);
        stored.salt = Some(Arc::from(salt.to_string()));
        stored.hashes = (0..8).map(|block| EngineHash(salt << 32 | block)).collect();
        put(&index, 0, stored);
        // Every other block, so that each needs its own words.
        index.apply(
            target(0),
            &named(
                (0..8).step_by(2).map(|block| salt << 32 | block),
                Tier::Host,
            ),
        );
        assert!(index.stats().bytes <= budget);
    }
    let tokens = HashScheme::default().chain(None, &tokens(0..8), size());
    for salt in 0..200_u64 {
        for overlap in index.lookup(&salted(&salt.to_string()), &tokens, NOW) {
            assert!(
                overlap.present[Tier::Host.index()] <= 4 && overlap.blocks.total() <= 8,
                "{overlap:?}"
            );
        }
    }
    assert!(index.stats().shed > 0);
}
