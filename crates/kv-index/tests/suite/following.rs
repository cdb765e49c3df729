//! The change feed: a follower that starts with a dump ends with the content of the index.

use std::{collections::BTreeSet, sync::Arc};

use kv_blocks::{EngineHash, IndexUpdate, NamedBlocks, Target, Tier};
use kv_index::{BlockChange, ChangeFeed, ChangeKind, IndexSettings, KvIndex};
use proptest::prelude::*;

use crate::sequence::*;

/// The memberships that a follower knows: target, tier, salt and block.
type FollowedBlocks = BTreeSet<(Target, Tier, Option<Arc<str>>, u64)>;

fn content(index: &KvIndex) -> FollowedBlocks {
    dump(index)
        .into_iter()
        .map(|row| (row.target, row.tier, row.namespace.salt.clone(), row.hash.0))
        .collect()
}

fn follow_on(resident: &mut FollowedBlocks, changes: &mut ChangeFeed) {
    loop {
        let taken = changes.take(7).unwrap();
        if taken.is_empty() {
            return;
        }
        for change in taken {
            let BlockChange {
                target,
                tier,
                kind,
                namespace,
                hashes,
                ..
            } = &*change;
            for hash in hashes {
                let entry = (*target, *tier, namespace.salt.clone(), hash.0);
                match kind {
                    ChangeKind::Stored { .. } => {
                        assert!(resident.insert(entry), "only new blocks are reported")
                    }
                    ChangeKind::Removed { .. } => {
                        assert!(resident.remove(&entry), "only held blocks are removed")
                    }
                }
            }
        }
    }
}

#[test]
fn a_change_gives_its_depth_and_whether_other_tiers_hold_the_blocks() {
    let index = index();
    put(&index, 0, store(0..2));
    let mut changes = index.subscribe().unwrap();
    put(&index, 0, store(2..4));
    index.apply(
        target(0),
        &IndexUpdate::Named(NamedBlocks {
            hashes: vec![EngineHash(3), EngineHash(4)],
            tier: Tier::Host,
        }),
    );
    index.apply(target(0), &remove(&[4], Tier::Device));
    index.apply(target(0), &remove(&[4], Tier::Host));
    let received: Vec<_> = changes.take(9).unwrap();
    let whole = chain(4);
    let seen: Vec<_> = received
        .iter()
        .map(|c| (c.tier, c.kind, c.depth, c.parent, c.hashes.len()))
        .collect();
    let stored = |elsewhere| ChangeKind::Stored { elsewhere };
    let removed = |elsewhere| ChangeKind::Removed { elsewhere };
    assert_eq!(
        seen,
        [
            (Tier::Device, stored(false), 2, Some(whole[1]), 2),
            (Tier::Host, stored(true), 2, Some(whole[1]), 2),
            (Tier::Device, removed(true), 3, Some(whole[2]), 1),
            (Tier::Host, removed(false), 3, Some(whole[2]), 1),
        ]
    );
    assert_eq!(received[0].hashes, whole[2..]);
}

#[test]
fn a_slow_follower_gets_an_error_and_the_writer_never_waits() {
    let index = index_of(IndexSettings {
        memory_budget: 256 << 20,
        ..IndexSettings::default()
    });
    let mut changes = index.subscribe().unwrap();
    for salt in 0..150_000_u32 {
        let mut stored = store(0..1);
        stored.salt = Some(Arc::from(salt.to_string()));
        stored.hashes = vec![EngineHash(u64::from(salt))];
        put(&index, 0, stored);
    }
    let lagged = changes.take(1).unwrap_err();
    assert!(lagged.lost > 0);
    assert!(
        lagged
            .to_string()
            .contains("begin with the standing state again"),
        "{lagged}"
    );
    let mut left = 0;
    while let taken @ 1.. = changes.take(4096).unwrap().len() as u64 {
        left += taken;
    }
    assert_eq!(lagged.lost + left, 150_000);
}

#[test]
fn nothing_is_kept_for_dropped_followers() {
    let index = index();
    drop(index.subscribe().unwrap());
    put(&index, 0, store(0..4));
    let mut changes = index.subscribe().unwrap();
    assert!(changes.take(9).unwrap().is_empty(), "only later changes");
}

/// One step of a small fleet.
#[derive(Clone, Debug)]
enum FleetStep {
    Store {
        worker: u32,
        salt: u8,
        from: u32,
        to: u32,
        tier: Tier,
    },
    Named {
        worker: u32,
        salt: u8,
        from: u32,
        to: u32,
        tier: Tier,
    },
    Remove {
        worker: u32,
        salt: u8,
        from: u32,
        to: u32,
        tier: Tier,
    },
    Clear {
        worker: u32,
    },
    Cleared {
        worker: u32,
    },
}

fn steps() -> impl Strategy<Value = Vec<FleetStep>> {
    let tier = prop_oneof![4 => Just(Tier::Device), 2 => Just(Tier::Host), 1 => Just(Tier::Disk)];
    let span = (0_u32..3, 0_u8..3, 0_u32..24, 1_u32..12, tier);
    let step = prop_oneof![
        6 => span.clone().prop_map(|(worker, salt, from, len, tier)| FleetStep::Store { worker, salt, from, to: from + len, tier }),
        2 => span.clone().prop_map(|(worker, salt, from, len, tier)| FleetStep::Named { worker, salt, from, to: from + len, tier }),
        5 => span.prop_map(|(worker, salt, from, len, tier)| FleetStep::Remove { worker, salt, from, to: from + len, tier }),
        1 => (0_u32..3).prop_map(|worker| FleetStep::Clear { worker }),
        1 => (0_u32..3).prop_map(|worker| FleetStep::Cleared { worker }),
    ];
    prop::collection::vec(step, 1..80)
}

fn name(salt: u8, block: u32) -> EngineHash {
    EngineHash(u64::from(salt) << 32 | u64::from(block + 1))
}

fn apply(index: &KvIndex, step: &FleetStep) {
    let names = |salt: u8, from: u32, to: u32| {
        (from..to)
            .map(|block| name(salt, block))
            .collect::<Vec<_>>()
    };
    match *step {
        FleetStep::Store {
            worker,
            salt,
            from,
            to,
            tier,
        } => {
            let mut stored = store(from..to);
            stored.hashes = names(salt, from, to);
            stored.parent = from.checked_sub(1).map(|before| name(salt, before));
            stored.salt = (salt > 0).then(|| Arc::from(salt.to_string()));
            stored.tier = tier;
            put(index, worker, stored);
        }
        FleetStep::Named {
            worker,
            salt,
            from,
            to,
            tier,
        } => {
            index.apply(
                target(worker),
                &IndexUpdate::Named(NamedBlocks {
                    hashes: names(salt, from, to),
                    tier,
                }),
            );
        }
        FleetStep::Remove {
            worker,
            salt,
            from,
            to,
            tier,
        } => {
            let hashes: Vec<_> = names(salt, from, to).iter().map(|name| name.0).collect();
            index.apply(target(worker), &remove(&hashes, tier));
        }
        FleetStep::Clear { worker } => index.clear(target(worker)),
        FleetStep::Cleared { worker } => {
            index.apply(target(worker), &IndexUpdate::Cleared);
        }
    }
}

proptest! {
    #[test]
    fn a_follower_ends_with_the_content_of_the_index(steps in steps(), at in 0_usize..80, small in any::<bool>()) {
        // With little memory blocks are also shed.
        let memory_budget = if small { 48 << 10 } else { 64 << 20 };
        let index = index_of(IndexSettings { memory_budget, ..IndexSettings::default() });
        let at = at.min(steps.len());
        steps[..at].iter().for_each(|step| apply(&index, step));
        let mut changes = index.subscribe().unwrap();
        let mut resident = content(&index);
        for step in &steps[at..] {
            apply(&index, step);
            follow_on(&mut resident, &mut changes);
            prop_assert_eq!(&resident, &content(&index), "after {:?}", step);
        }
    }
}
