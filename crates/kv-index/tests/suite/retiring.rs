//! A retired target: its credit ends at once, and its blocks are removed in slices.

use std::{collections::BTreeSet, time::Duration};

use contract_id::contract;
use kv_blocks::Tier;
use kv_index::{ChangeFeed, ChangeKind, KvIndex};

use crate::sequence::*;

/// Namespaces, each with a chain of its own: more runs than one slice of a sweep looks at.
const CHAINS: u32 = 3000;

/// An index in which two targets hold the same blocks in many chains.
fn large() -> KvIndex {
    let index = index();
    for worker in 0..2 {
        for number in 0..CHAINS {
            index.store_hashes(
                target(worker),
                &salted(&number.to_string()),
                None,
                &chain(2),
                Tier::Device,
            );
        }
    }
    index
}

fn sweep_to_the_end(index: &KvIndex) -> u32 {
    let mut slices = 1;
    while index.sweep() {
        slices += 1;
    }
    slices
}

#[test]
#[contract("F60", "I7")]
fn a_retired_target_loses_all_credit_before_its_blocks_are_removed() {
    let index = large();
    let all = index.stats().memberships;
    index.retire(target(0));
    assert_eq!(index.stats().memberships, all, "no block was visited");
    assert_eq!(index.blocks_per_tier(target(0)), [0; 4]);
    for number in [0, CHAINS / 2, CHAINS - 1] {
        let namespace = salted(&number.to_string());
        assert_eq!(
            (
                resident(&index, 0, &namespace, 2).total(),
                resident(&index, 1, &namespace, 2).total()
            ),
            (0, 2)
        );
    }
    assert!(
        index
            .digest()
            .iter()
            .all(|digest| digest.target == target(1))
    );
    assert!(sweep_to_the_end(&index) > 1, "it takes several slices");
    assert_eq!(index.stats().memberships, all / 2);
}

#[test]
#[contract("F60")]
fn blocks_stored_while_the_old_ones_are_removed_stay() {
    let index = large();
    index.retire(target(0));
    assert!(index.sweep());
    // Some of them are in runs that are already swept, some in runs that are not.
    let stored: Vec<_> = (0..CHAINS)
        .step_by(7)
        .map(|number| salted(&number.to_string()))
        .collect();
    for namespace in &stored {
        index.store_hashes(target(0), namespace, None, &chain(2), Tier::Device);
    }
    put(&index, 0, store(0..4));
    // The target is retired a second time, then stores blocks.
    index.retire(target(0));
    for namespace in stored.iter().take(5) {
        index.store_hashes(target(0), namespace, None, &chain(1), Tier::Host);
    }
    sweep_to_the_end(&index);
    assert_eq!(index.blocks_per_tier(target(0)), [0, 5, 0, 0]);
    let credited = stored
        .iter()
        .filter(|namespace| resident(&index, 0, namespace, 2).total() > 0)
        .count();
    assert_eq!(credited, 5);
    put(&index, 0, store(0..4));
    assert_eq!(
        resident(&index, 0, &plain(), 4).device,
        4,
        "it stays registered"
    );
}

#[test]
fn speculative_blocks_of_a_retired_target_are_removed_and_its_trust_stays() {
    let index = index();
    let speculation = index.speculate(target(0), &plain(), &chain(4), NOW, Duration::from_secs(60));
    index.trust(target(0), false);
    index.retire(target(0));
    assert_eq!(resident(&index, 0, &plain(), 4).total(), 0);
    put(&index, 0, store(0..2));
    assert_eq!(
        resident(&index, 0, &plain(), 4).total(),
        0,
        "its announcements do not count"
    );
    index.trust(target(0), true);
    assert_eq!(resident(&index, 0, &plain(), 4).device, 2);
    sweep_to_the_end(&index);
    index.retract(speculation);
    assert_eq!(index.stats().speculative, 0);
    assert_eq!(resident(&index, 0, &plain(), 4).device, 2);
}

#[test]
fn a_removed_worker_can_be_registered_again_before_its_blocks_are_removed() {
    let index = large();
    index.retire_worker(target(0).worker);
    assert_eq!(
        put(&index, 0, store(0..2)).applied,
        0,
        "it is not registered"
    );
    index.register(target(0), std::sync::Arc::from("m"));
    put(&index, 0, store(0..2));
    sweep_to_the_end(&index);
    assert_eq!(index.blocks_per_tier(target(0)), [2, 0, 0, 0]);
}

/// Blocks by target, tier and salt, as a follower knows them.
type FollowerBlocks = BTreeSet<(u32, usize, String, u64)>;

fn follow_on(known: &mut FollowerBlocks, changes: &mut ChangeFeed) {
    while let taken @ [_, ..] = &changes.take(100).unwrap()[..] {
        for change in taken {
            let salt = change
                .namespace
                .salt
                .as_deref()
                .unwrap_or_default()
                .to_owned();
            for hash in &change.hashes {
                let block = (
                    change.target.worker.0,
                    change.tier.index(),
                    salt.clone(),
                    hash.0,
                );
                match change.kind {
                    ChangeKind::Stored { .. } => {
                        assert!(known.insert(block), "only new blocks are reported")
                    }
                    ChangeKind::Removed { .. } => {
                        assert!(known.remove(&block), "only held blocks are removed")
                    }
                }
            }
        }
    }
}

fn of_dump(index: &KvIndex) -> FollowerBlocks {
    let row = |row: kv_index::DumpRow| {
        (
            row.target.worker.0,
            row.tier.index(),
            row.namespace.salt.as_deref().unwrap_or_default().to_owned(),
            row.hash.0,
        )
    };
    dump(index).into_iter().map(row).collect()
}

#[test]
fn a_follower_ends_with_the_content_of_the_index_wherever_it_starts() {
    let index = large();
    let mut early = (FollowerBlocks::default(), index.subscribe().unwrap());
    early.0 = of_dump(&index);
    index.retire(target(0));
    index.sweep();
    let mut late = (FollowerBlocks::default(), index.subscribe().unwrap());
    late.0 = of_dump(&index);
    for number in (0..CHAINS).step_by(3) {
        index.store_hashes(
            target(0),
            &salted(&number.to_string()),
            None,
            &chain(2),
            Tier::Device,
        );
    }
    sweep_to_the_end(&index);
    let last = of_dump(&index);
    assert_eq!(last.len() as u64, index.stats().memberships);
    for (known, changes) in [&mut early, &mut late] {
        follow_on(known, changes);
        assert_eq!(*known, last);
    }
}

#[test]
fn a_snapshot_omits_blocks_being_removed() {
    let index = large();
    index.retire(target(0));
    put(&index, 0, store(0..3));
    let mut file = Vec::new();
    index.save(&mut file).unwrap();
    let other = KvIndex::new(kv_index::IndexSettings::default());
    other.load(&mut &file[..]).unwrap();
    sweep_to_the_end(&index);
    assert_eq!(other.digest(), index.digest());
}
