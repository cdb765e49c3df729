//! The exported state in pieces: applying all of them gives the same content, whatever holes it
//! has.

use std::sync::Arc;

use kv_blocks::{EngineHash, IndexUpdate, NamedBlocks, Target, Tier};
use kv_index::{BlockChange, ChangeKind, ExportCursor, ExportedBlocks, IndexSettings, KvIndex};
use proptest::prelude::*;

use crate::sequence::*;

fn exported_blocks(index: &KvIndex, selected: &dyn Fn(Target) -> bool) -> Vec<ExportedBlocks> {
    let mut cursor = ExportCursor::default();
    std::iter::from_fn(|| index.export(&mut cursor, selected))
        .flatten()
        .collect()
}

fn apply_change(index: &KvIndex, change: &BlockChange) {
    let applied = index.store_hashes(
        change.target,
        &change.namespace,
        change.parent,
        &change.hashes,
        change.tier,
    );
    assert_eq!(
        applied.applied as usize,
        change.hashes.len(),
        "the blocks in front are known: {change:?}"
    );
}

fn rebuilt(exported_blocks: &[ExportedBlocks]) -> KvIndex {
    let index = index_of(IndexSettings {
        secret: 7,
        ..IndexSettings::default()
    });
    for ExportedBlocks {
        change: stored,
        lead,
    } in exported_blocks
    {
        lead.iter().for_each(|part| apply_change(&index, part));
        apply_change(&index, stored);
        for part in lead {
            index.remove_hashes(part.target, &part.namespace, &part.hashes, part.tier);
        }
    }
    index
}

#[test]
fn a_range_behind_a_hole_is_exported_with_the_blocks_before_it() {
    let index = index();
    put(&index, 0, store(0..6));
    index.apply(target(0), &remove(&[3, 4], Tier::Device));
    let exported = exported_blocks(&index, &|_| true);
    let seen: Vec<_> = exported
        .iter()
        .map(|it| (it.change.depth, it.change.hashes.len(), it.lead.len()))
        .collect();
    assert_eq!(seen, [(0, 2, 0), (4, 2, 1)]);
    let lead = &exported[1].lead[0];
    assert_eq!(
        (lead.depth, &lead.hashes[..], lead.parent),
        (2, &chain(4)[2..], Some(chain(2)[1]))
    );
    assert_eq!(rebuilt(&exported).digest(), index.digest());
}

#[test]
fn a_block_in_two_tiers_is_reported_as_new_once() {
    let index = index();
    put(&index, 0, store(0..4));
    let names = vec![EngineHash(2), EngineHash(3)];
    index.apply(
        target(0),
        &IndexUpdate::Named(NamedBlocks {
            hashes: names,
            tier: Tier::Host,
        }),
    );
    index.apply(target(0), &remove(&[3], Tier::Device));
    let exported = exported_blocks(&index, &|_| true);
    let mut seen: Vec<_> = exported
        .iter()
        .map(|it| (it.change.tier, it.change.depth, it.change.kind))
        .collect();
    seen.sort_by_key(|(tier, depth, _)| (*tier, *depth));
    let stored = |elsewhere| ChangeKind::Stored { elsewhere };
    assert_eq!(
        seen,
        [
            (Tier::Device, 0, stored(false)),
            (Tier::Device, 3, stored(false)),
            (Tier::Host, 1, stored(true)),
            (Tier::Host, 2, stored(false)),
        ]
    );
}

#[test]
fn a_clear_is_distinguished_from_a_removal() {
    let index = index();
    put(&index, 0, store(0..2));
    let mut changes = index.subscribe().unwrap();
    index.apply(target(0), &remove(&[2], Tier::Device));
    index.clear(target(0));
    let exported = changes.take(9).unwrap();
    let seen: Vec<_> = exported
        .iter()
        .map(|change| (change.depth, change.cleared))
        .collect();
    assert_eq!(seen, [(1, false), (0, true)]);
}

/// Draws stores and removals of a small fleet: worker, branch, first block, number of blocks, tier,
/// and whether it is a store.
fn steps() -> impl Strategy<Value = Vec<(u32, u32, u32, u32, Tier, bool)>> {
    let tier = prop_oneof![3 => Just(Tier::Device), 1 => Just(Tier::Host)];
    prop::collection::vec(
        (
            0_u32..3,
            0_u32..4,
            0_u32..40,
            1_u32..24,
            tier,
            prop::bool::weighted(0.6),
        ),
        1..60,
    )
}

/// Returns the hash of block `n` of a branch; the branches share 16 blocks.
fn name(branch: u32, block: u32) -> u64 {
    let branch = if block < 16 { 0 } else { branch };
    u64::from(branch) << 32 | u64::from(block + 1)
}

fn branch_tokens(branch: u32, blocks: std::ops::Range<u32>) -> Vec<u32> {
    blocks
        .flat_map(|block| {
            (0..4).map(move |at| (name(branch, block) >> 32) as u32 * 100_000 + block * 4 + at)
        })
        .collect()
}

fn do_step(
    index: &KvIndex,
    (worker, branch, from, blocks, tier, stores): (u32, u32, u32, u32, Tier, bool),
) {
    let names = (from..from + blocks).map(|block| name(branch, block));
    if stores {
        let mut stored = store(from..from + blocks);
        stored.hashes = names.map(EngineHash).collect();
        stored.parent = from
            .checked_sub(1)
            .map(|before| EngineHash(name(branch, before)));
        stored.tokens = branch_tokens(branch, from..from + blocks);
        stored.tier = tier;
        put(index, worker, stored);
    } else {
        index.apply(target(worker), &remove(&names.collect::<Vec<_>>(), tier));
    }
}

proptest! {
    #[test]
    fn applying_all_pieces_gives_the_same_content(steps in steps(), only in prop::option::of(0_u32..3)) {
        let index = index();
        steps.into_iter().for_each(|step| do_step(&index, step));
        let selected = |it: Target| only.is_none_or(|worker| it == target(worker));
        let mut digest = index.digest();
        digest.retain(|row| selected(row.target));
        prop_assert_eq!(rebuilt(&exported_blocks(&index, &selected)).digest(), digest);
    }
}

#[test]
fn a_large_state_is_exported_in_pieces_with_the_lock_free_between_them() {
    let index = index_of(IndexSettings {
        memory_budget: 64 << 20,
        ..IndexSettings::default()
    });
    for worker in 0..3 {
        put(&index, worker, store(0..9000));
    }
    let mut cursor = ExportCursor::default();
    let mut pieces = 0;
    let mut exported = Vec::new();
    while let Some(piece) = index.export(&mut cursor, &|_| true) {
        pieces += 1;
        exported.extend(piece);
        // This deadlocks if the lock is held.
        index.register(target(9), Arc::from("m"));
    }
    assert!(pieces > 5, "{pieces}");
    assert_eq!(rebuilt(&exported).digest(), index.digest());
}
