//! Sharing of engine hashes between the members of a hash group, and their resolution.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod figures;
mod model;

use std::ops::Range;

use contract_id::contract;

use super::*;

const QWEN: u32 = 0;

fn size(tokens: u64) -> BlockSize {
    BlockSize::new(tokens).unwrap()
}

/// Returns a content hash: no two engines use it for different content.
fn long(number: u64) -> EngineHash {
    EngineHash(number << 40)
}

fn longs(numbers: Range<u64>) -> Vec<EngineHash> {
    numbers.map(long).collect()
}

/// Returns hashes of an engine that numbers its blocks.
fn counted(numbers: Range<u64>) -> Vec<EngineHash> {
    numbers.map(EngineHash).collect()
}

fn block_ref(run: u32, at: u32) -> BlockRef {
    BlockRef { run, at }
}

/// Returns a table with these members of one model.
fn names(members: Range<u32>) -> EngineHashTable {
    let mut names = EngineHashTable::new(7, 1 << 20);
    for member in members {
        names.join(member, QWEN);
    }
    names
}

/// Announces blocks of 16 tokens; the announcement contradicts and moves nothing.
fn announce(names: &mut EngineHashTable, member: u32, reported: &[EngineHash], run: u32, at: u32) {
    assert_eq!(
        names.announce(member, size(16), reported, block_ref(run, at)),
        Ok(AnnounceOutcome::default())
    );
}

/// Announces hashes that the group refuses. The member, which holds `resident`, is split off; then
/// the announcement is accepted.
fn announce_and_split(
    names: &mut EngineHashTable,
    member: u32,
    reported: &[EngineHash],
    run: u32,
    at: u32,
    resident: &[(u32, Range<u32>)],
) {
    let refused = names
        .announce(member, size(16), reported, block_ref(run, at))
        .unwrap_err();
    names.split_group(member, resident.iter().cloned(), refused);
    announce(names, member, reported, run, at);
}

fn resolve(names: &EngineHashTable, member: u32, name: EngineHash) -> Option<(BlockRef, bool)> {
    names
        .resolve(member, name, size(16))
        .map(|resolved| (resolved.block_ref, resolved.proven))
}

fn group(names: &EngineHashTable, member: u32) -> u32 {
    names
        .members()
        .find(|known| known.member == member)
        .unwrap()
        .group
}

#[test]
fn an_engine_hash_resolves_to_its_announced_block() {
    let mut names = names(0..1);
    announce(&mut names, 0, &longs(1..4), 9, 100);
    assert_eq!(resolve(&names, 0, long(2)), Some((block_ref(9, 101), true)));
    assert_eq!(resolve(&names, 0, long(4)), None);
    assert_eq!(
        names.resolve(0, long(2), size(32)),
        None,
        "hashes are kept per block size"
    );
    assert_eq!(resolve(&names, 1, long(2)), None, "nobody");
}

#[test]
#[contract("DY18")]
fn members_with_equal_announcements_share_their_hashes() {
    let mut names = names(0..1);
    announce(&mut names, 0, &longs(0..1000), 0, 0);
    let bytes = names.bytes();
    for member in 1..20 {
        names.join(member, QWEN);
        announce(&mut names, member, &longs(0..1000), 0, 0);
    }
    assert!(
        names.bytes() < bytes + 20 * 1024,
        "{bytes} bytes became {}",
        names.bytes()
    );
    assert_eq!(
        resolve(&names, 7, long(500)),
        Some((block_ref(0, 500), true))
    );
}

#[test]
#[contract("V9")]
fn a_shared_announcement_is_proven_only_by_a_common_long_hash() {
    let mut names = names(0..3);
    announce(&mut names, 0, &longs(1..9), 0, 0);
    announce(&mut names, 0, &counted(1..9), 1, 0);
    assert_eq!(
        resolve(&names, 1, long(1)),
        Some((block_ref(0, 0), false)),
        "it announced nothing"
    );
    announce(&mut names, 1, &counted(1..2), 1, 0);
    assert_eq!(
        resolve(&names, 1, long(1)),
        Some((block_ref(0, 0), false)),
        "two engines may number their blocks alike"
    );
    announce(&mut names, 1, &longs(3..4), 0, 2);
    assert_eq!(resolve(&names, 1, long(1)), Some((block_ref(0, 0), true)));
    assert_eq!(
        resolve(&names, 0, long(1)),
        Some((block_ref(0, 0), true)),
        "its own announcement"
    );
    assert_eq!(resolve(&names, 2, long(1)), Some((block_ref(0, 0), false)));
}

#[test]
fn a_repeated_announcement_of_the_same_member_proves_nothing() {
    let mut names = names(0..2);
    announce(&mut names, 0, &longs(1..3), 0, 0);
    announce(&mut names, 1, &longs(11..13), 1, 0);
    announce(&mut names, 1, &longs(11..13), 1, 0);
    assert_eq!(resolve(&names, 1, long(1)), Some((block_ref(0, 0), false)));
}

#[test]
#[contract("DY18")]
fn engines_with_numbered_blocks_split_at_the_first_contradicting_number() {
    let mut names = names(0..2);
    announce(&mut names, 0, &counted(1..5), 0, 0);
    announce(&mut names, 1, &counted(1..3), 0, 0);
    let refused = names
        .announce(1, size(16), &counted(9..10), block_ref(0, 2))
        .unwrap_err();
    assert_eq!(
        refused,
        HashConflict {
            name: EngineHash(9),
            block_ref: block_ref(0, 2)
        },
        "the block has another hash"
    );
    let refused = names
        .announce(1, size(16), &counted(3..5), block_ref(1, 0))
        .unwrap_err();
    assert_eq!(
        refused,
        HashConflict {
            name: EngineHash(3),
            block_ref: block_ref(1, 0)
        },
        "the hash has another block"
    );
    names.split_group(1, [(0, 0..2)], refused);
    announce(&mut names, 1, &counted(3..5), 1, 0);
    assert_eq!(
        resolve(&names, 0, EngineHash(3)),
        Some((block_ref(0, 2), true))
    );
    assert_eq!(
        resolve(&names, 1, EngineHash(3)),
        Some((block_ref(1, 0), true))
    );
    assert_eq!(
        resolve(&names, 1, EngineHash(2)),
        Some((block_ref(0, 1), false)),
        "its held blocks move with it"
    );
}

#[test]
fn a_refused_announcement_changes_nothing() {
    let mut names = names(0..2);
    announce(&mut names, 0, &counted(1..40), 0, 0);
    let before = names.table.bytes();
    let mut reported = counted(100..130);
    reported.push(EngineHash(20));
    assert!(
        names
            .announce(1, size(16), &reported, block_ref(1, 0))
            .is_err()
    );
    assert_eq!(resolve(&names, 1, EngineHash(100)), None);
    assert_eq!(names.names_of(1).count(), 0);
    assert_eq!(names.table.bytes(), before);
    // A hash that occurs twice in one announcement is also a contradiction.
    assert!(
        names
            .announce(
                1,
                size(16),
                &[EngineHash(100), EngineHash(100)],
                block_ref(1, 0)
            )
            .is_err()
    );
    assert_eq!(names.names_of(1).count(), 0);
}

#[test]
fn a_split_member_joins_a_group_that_agrees_with_it() {
    let mut names = names(0..4);
    announce(&mut names, 0, &longs(1..9), 0, 0);
    announce_and_split(&mut names, 1, &longs(101..109), 0, 0, &[]);
    announce_and_split(&mut names, 2, &longs(101..105), 0, 0, &[]);
    assert_eq!(group(&names, 1), group(&names, 2));
    assert_eq!(
        resolve(&names, 2, long(108)),
        Some((block_ref(0, 7), true)),
        "they have a long hash in common"
    );
    // The next member agrees with the group about this block, but not about its held blocks.
    announce(&mut names, 3, &longs(201..202), 1, 0);
    announce(&mut names, 1, &longs(301..302), 1, 0);
    announce_and_split(&mut names, 3, &longs(101..103), 0, 0, &[(1, 0..1)]);
    assert_ne!(group(&names, 1), group(&names, 3));
    assert_eq!(resolve(&names, 3, long(201)), Some((block_ref(1, 0), true)));
}

#[test]
fn a_member_that_splits_twice_is_alone_and_never_refused() {
    let mut names = names(0..3);
    announce(&mut names, 0, &counted(1..9), 0, 0);
    announce_and_split(&mut names, 1, &counted(101..109), 0, 0, &[]);
    announce_and_split(&mut names, 2, &counted(101..102), 0, 0, &[]);
    assert_eq!(group(&names, 1), group(&names, 2));
    announce_and_split(&mut names, 2, &counted(1..2), 0, 1, &[(0, 0..1)]);
    assert!(group(&names, 2) != group(&names, 1) && group(&names, 2) != group(&names, 0));
    assert_eq!(
        resolve(&names, 2, EngineHash(101)),
        Some((block_ref(0, 0), false)),
        "its held blocks move with it"
    );
    assert_eq!(
        resolve(&names, 2, EngineHash(1)),
        Some((block_ref(0, 1), false))
    );
}

#[test]
fn a_hash_reused_by_its_only_member_moves_and_the_old_block_is_reported() {
    let mut names = names(0..1);
    announce(&mut names, 0, &counted(1..4), 0, 0);
    let announced = names
        .announce(0, size(16), &counted(2..4), block_ref(1, 5))
        .unwrap();
    assert_eq!(announced.moved, [block_ref(0, 1), block_ref(0, 2)]);
    assert_eq!(
        resolve(&names, 0, EngineHash(2)),
        Some((block_ref(1, 5), true))
    );
    assert_eq!(
        resolve(&names, 0, EngineHash(1)),
        Some((block_ref(0, 0), true))
    );
}

#[test]
fn both_hashes_of_a_copy_resolve_and_zero_is_a_valid_hash() {
    let mut names = names(0..1);
    announce(&mut names, 0, &counted(0..2), 0, 0);
    announce(&mut names, 0, &counted(10..12), 0, 0);
    for (name, at) in [(0, 0), (1, 1), (10, 0), (11, 1)] {
        assert_eq!(
            resolve(&names, 0, EngineHash(name)),
            Some((block_ref(0, at), true))
        );
    }
    names.forget(0, 0..2);
    assert!((0..12).all(|name| resolve(&names, 0, EngineHash(name)).is_none()));
}

#[test]
fn the_hashes_of_one_block_are_bounded() {
    let mut names = names(0..1);
    for name in 1..1000 {
        announce(&mut names, 0, &counted(name..name + 1), 0, 0);
    }
    let known = (1..1000).filter(|name| resolve(&names, 0, EngineHash(*name)).is_some());
    assert_eq!(
        known.collect::<Vec<_>>(),
        [1, 993, 994, 995, 996, 997, 998, 999],
        "the first and the newest hash stay"
    );
}

#[test]
fn a_cleared_member_starts_empty_and_others_keep_the_shared_hashes() {
    let mut names = names(0..2);
    announce(&mut names, 0, &counted(1..4), 0, 0);
    announce(&mut names, 1, &counted(1..2), 0, 0);
    names.clear(0);
    assert_eq!(
        resolve(&names, 0, EngineHash(1)),
        Some((block_ref(0, 0), false)),
        "now another member's announcement, whether it made the same one or not"
    );
    names.remove_member(1);
    assert_eq!(resolve(&names, 1, EngineHash(1)), None);
    names.clear(0);
    assert_eq!(
        resolve(&names, 0, EngineHash(1)),
        None,
        "no member is left that announced it"
    );
}

#[test]
fn hashes_of_an_ended_group_are_freed_in_slices() {
    let mut names = names(0..1);
    let blocks = u64::from(RUN_BLOCKS);
    announce(&mut names, 0, &longs(0..blocks), 0, 0);
    let full = names.bytes();
    names.remove_member(0);
    assert_eq!(names.bytes(), full);
    let mut slices = 1;
    while names.tidy() {
        slices += 1;
    }
    assert_eq!(slices, 1 + blocks / SLICE as u64);
    assert_eq!(
        names.table.bytes(),
        EngineHashTable::new(7, 1 << 20).table.bytes()
    );
    assert_eq!(names.names_of(0).count(), 0);
}

#[test]
fn hashes_of_an_ended_group_are_freed_as_new_ones_arrive() {
    let mut names = names(0..2);
    for round in 0..20 {
        names.remove_member(0);
        names.join(0, QWEN + 1);
        let reported = longs(round * 1000..(round + 1) * 1000);
        announce(&mut names, 0, &reported, 0, 0);
    }
    assert!(
        names.run_hashes.bytes() + names.table.bytes() < 200 << 10,
        "{} bytes",
        names.bytes()
    );
}

#[test]
fn a_reused_run_number_has_no_hashes() {
    let mut names = names(0..1);
    announce(&mut names, 0, &longs(1..9), 3, 0);
    names.forget(3, 4..8);
    assert_eq!(resolve(&names, 0, long(4)), Some((block_ref(3, 3), true)));
    assert_eq!(resolve(&names, 0, long(5)), None);
    names.forget(3, 0..4);
    assert_eq!(names.names_of(3).count(), 0);
    announce(&mut names, 0, &longs(101..103), 3, 0);
    assert_eq!(resolve(&names, 0, long(101)), Some((block_ref(3, 0), true)));
    assert_eq!(resolve(&names, 0, long(1)), None);
}

#[test]
fn a_removal_finds_a_hash_in_every_block_size_of_the_member() {
    let mut names = names(0..2);
    announce(&mut names, 0, &longs(1..40), 0, 0);
    names
        .announce(0, size(256), &longs(1..3), block_ref(1, 0))
        .unwrap();
    let mut found = Vec::new();
    names.resolve_any(0, &[long(39), long(99), long(2)], |at, size, resolved| {
        found.push((at, size.tokens(), resolved.block_ref));
    });
    found.sort_unstable();
    assert_eq!(
        found,
        [
            (0, 16, block_ref(0, 38)),
            (2, 16, block_ref(0, 1)),
            (2, 256, block_ref(1, 1))
        ]
    );
}

#[test]
fn a_member_may_announce_eight_block_sizes() {
    let mut names = names(0..1);
    for tokens in 1..=8 {
        names
            .announce(
                0,
                size(tokens),
                &longs(1..2),
                block_ref(u32::try_from(tokens).unwrap(), 0),
            )
            .unwrap();
    }
    assert!(!names.admits(0, size(9)) && names.admits(0, size(3)));
    names
        .announce(0, size(9), &longs(1..2), block_ref(9, 0))
        .unwrap();
    assert_eq!(names.resolve(0, long(1), size(9)), None);
    names.clear(0);
    assert!(names.admits(0, size(9)));
}

#[test]
fn an_unused_hash_is_freed_unless_other_members_may_need_it() {
    let mut names = names(0..1);
    announce(&mut names, 0, &counted(1..3), 0, 0);
    names.remove_hash(0, EngineHash(1), size(16));
    assert_eq!(resolve(&names, 0, EngineHash(1)), None);
    names.join(1, QWEN);
    names.remove_hash(0, EngineHash(2), size(16));
    assert_eq!(
        resolve(&names, 0, EngineHash(2)),
        Some((block_ref(0, 1), true))
    );
}

#[test]
fn members_and_hashes_survive_a_restore() {
    let mut before = names(0..4);
    announce(&mut before, 0, &longs(0..100), 0, 0);
    announce(&mut before, 1, &longs(0..50), 0, 0);
    announce_and_split(&mut before, 2, &counted(1..9), 0, 0, &[]);
    announce(&mut before, 2, &counted(11..13), 0, 0);
    before.forget(0, 30..40);
    let mut after = EngineHashTable::new(8, 1 << 20);
    let mut groups: Vec<GroupMembership> = Vec::new();
    for was in before.members() {
        let relative = groups
            .iter()
            .find(|relative| relative.group == was.group)
            .map(|relative| relative.member);
        after.restore_member(QWEN, was, relative);
        groups.push(was);
    }
    for stretch in before.names_of(0) {
        let member = groups
            .iter()
            .find(|member| member.group == stretch.group)
            .unwrap()
            .member;
        after.restore_hashes(member, 0, &stretch);
    }
    for member in 0..4 {
        for name in longs(0..101).into_iter().chain(counted(0..20)) {
            let block_ref = |names: &EngineHashTable| {
                resolve(names, member, name).map(|(block_ref, _)| block_ref)
            };
            assert_eq!(
                block_ref(&after),
                block_ref(&before),
                "{name:?} of {member}"
            );
        }
    }
    assert_eq!(
        resolve(&after, 1, long(70)),
        Some((block_ref(0, 70), true)),
        "the hash was proven"
    );
    assert_eq!(
        resolve(&after, 0, long(70)),
        Some((block_ref(0, 70), false)),
        "the announcing member is not known any more"
    );
    assert_eq!(group(&after, 3), group(&after, 0));
}
