//! Memory: what is freed, and what is evicted at the budget.

use std::{ops::Range, sync::Arc, time::Duration};

use contract_id::contract;
use kv_blocks::{EngineHash, HashScheme, IndexUpdate, StoredBlocks, Tier, WorkerId};
use kv_index::{IndexSettings, IndexStats, KvIndex};

use crate::sequence::*;

const SMALL: u64 = 64 << 10;

fn small() -> KvIndex {
    index_of(IndexSettings {
        memory_budget: SMALL,
        ..IndexSettings::default()
    })
}

/// Returns a store of blocks in a namespace with its own salt.
fn under(salt: u32, blocks: Range<u32>) -> StoredBlocks {
    let name = |hash: EngineHash| EngineHash(u64::from(salt + 1) << 32 | hash.0);
    let stored = store(blocks);
    let hashes = stored.hashes.into_iter().map(name).collect();
    StoredBlocks {
        hashes,
        parent: stored.parent.map(name),
        media: Vec::new(),
        salt: Some(Arc::from(salt.to_string())),
        ..stored
    }
}

#[test]
fn at_the_budget_blocks_are_shed_and_only_held_blocks_are_credited() {
    let index = small();
    let applied = put(&index, 0, store(0..9000));
    assert!(applied.applied > 500 && applied.ignored > 0, "{applied:?}");
    assert_eq!(applied.applied + applied.ignored, 9000);
    let stats = index.stats();
    assert!(
        stats.shed >= u64::from(applied.ignored),
        "refused or evicted: {stats:?}"
    );
    assert!(stats.bytes <= stats.budget_bytes);
    assert_eq!(stats.distinct + stats.shed, 9000);
    assert_eq!(
        u64::from(resident(&index, 0, &plain(), 9000).device),
        stats.distinct
    );
    // Held blocks may be announced again, and removals free memory.
    assert_eq!(put(&index, 0, store(0..1)).applied, 1);
    index.apply(target(0), &IndexUpdate::Cleared);
    assert_eq!(put(&index, 0, under(1, 0..500)).applied, 500);
    assert_eq!(index.stats().shed, stats.shed);
}

#[test]
fn at_the_budget_the_oldest_chain_ends_are_evicted_first() {
    let index = small();
    let chains = 400;
    // All chains share a beginning: it is the oldest part and stays, because all others continue
    // it.
    put(&index, 0, store(0..8));
    for chain in 0..chains {
        let mut behind = store(8..16);
        behind.hashes = (0..8)
            .map(|block| EngineHash(1000 + u64::from(chain) * 8 + block))
            .collect();
        behind.tokens = (0..32).map(|token| 1000 + chain * 100 + token).collect();
        put(&index, 0, behind);
        let stats = index.stats();
        assert!(stats.bytes <= stats.budget_bytes, "{stats:?}");
    }
    let behind = |chain: u32| {
        let mut tokens = tokens(0..8);
        tokens.extend((0..32).map(|token| 1000 + chain * 100 + token));
        index.lookup(
            &plain(),
            &HashScheme::default().chain(None, &tokens, size()),
            NOW,
        )[0]
        .blocks
        .device
    };
    // The first block is no end: it continues the run that all others continue.
    let whole: Vec<_> = (1..chains).filter(|chain| behind(*chain) == 16).collect();
    let youngest = whole.iter().filter(|chain| **chain >= chains - 63).count();
    assert!(
        whole.len() < 350 && youngest == 63,
        "the oldest of 64 ends is evicted, so never one of the last 63: {whole:?}"
    );
    assert!(whole[0] > 200, "{whole:?}");
    assert!(
        (0..chains).all(|chain| behind(chain) >= 8),
        "a front is evicted after all blocks behind it"
    );
}

#[test]
#[contract("DY6")]
fn confirmed_blocks_evict_unconfirmed_ones() {
    let index = small();
    index.predict(
        target(1),
        &plain(),
        &chain(1000),
        NOW,
        Duration::from_secs(120),
    );
    assert!(index.stats().predicted > 500);
    assert!(index.stats().bytes <= SMALL);
    let applied = put(&index, 0, under(1, 0..1000));
    assert!(applied.applied > 500, "{applied:?}");
    assert_eq!(index.stats().predicted, 0);
    // The reverse evicts nothing: a speculative block never displaces a confirmed one.
    let known = index.blocks_per_tier(target(0));
    index.predict(
        target(1),
        &plain(),
        &chain(4000),
        NOW,
        Duration::from_secs(120),
    );
    assert_eq!(index.blocks_per_tier(target(0)), known);
    assert!(index.stats().bytes <= SMALL);
}

#[test]
fn a_long_chain_after_many_short_ones_is_stored_in_pieces() {
    let index = small();
    for salt in 0..300 {
        put(&index, 0, under(salt, 0..4));
    }
    let shed = index.stats().shed;
    let applied = put(&index, 1, store(0..600)).applied;
    assert_eq!(resident(&index, 1, &plain(), 600).device, applied);
    assert!(applied > 400, "{applied} of 600");
    assert!(index.stats().shed > shed);
}

#[test]
fn engine_hashes_of_removed_blocks_are_bounded() {
    let index = index();
    put(&index, 0, store(0..1));
    let settled = index.stats().bytes;
    for name in 10..20_000 {
        let mut once = store(1..2);
        once.hashes = vec![EngineHash(name)];
        once.tokens = vec![u32::try_from(name).unwrap(); 4];
        put(&index, 0, once);
        index.apply(target(0), &remove(&[name], Tier::Device));
    }
    assert_eq!(index.stats().memberships, 1);
    assert!(
        index.stats().bytes < settled + 4200 * 64,
        "{}",
        index.stats().bytes
    );
}

/// The figures of an index that once held blocks: memory from the system is kept.
fn at_rest() -> IndexStats {
    let index = index();
    put(&index, 0, store(0..1));
    index.apply(target(0), &IndexUpdate::Cleared);
    index.stats()
}

#[test]
fn namespaces_are_freed_with_their_blocks() {
    let index = index();
    for number in 0..10_000 {
        put(&index, 0, under(number, 0..1));
        index.apply(target(0), &IndexUpdate::Cleared);
    }
    assert_eq!(index.stats(), at_rest());
}

#[test]
fn forgetting_a_big_target_removes_all_its_blocks_and_no_others() {
    let index = index();
    let ttl = Duration::from_secs(120);
    for worker in 0..2 {
        put(&index, worker, store(0..10_000));
        put(
            &index,
            worker,
            StoredBlocks {
                tier: Tier::Host,
                ..store(0..3)
            },
        );
        let other = salted("s");
        for from in 0..20 {
            index.predict(
                target(worker),
                &other,
                &chain(20_000)[from * 1000..][..1000],
                NOW,
                ttl,
            );
        }
    }
    index.apply(target(0), &IndexUpdate::Cleared);
    assert_eq!(index.blocks_per_tier(target(0)), [0, 3, 0, 0]);
    assert_eq!(index.stats().predicted, 20_000);
    index.clear(target(0));
    assert_eq!(index.blocks_per_tier(target(0)), [0; 4]);
    assert_eq!(index.blocks_per_tier(target(1)), [10_000, 3, 0, 0]);
    index.remove_worker(WorkerId(1));
    let (stats, rest) = (index.stats(), at_rest());
    assert_eq!(
        (
            stats.namespaces,
            stats.distinct,
            stats.memberships,
            stats.predicted
        ),
        (0, 0, 0, 0)
    );
    assert!(
        stats.bytes < rest.bytes + 4096,
        "{} bytes, {} at rest",
        stats.bytes,
        rest.bytes
    );
}
