//! The blocks that the index credits, and those that it does not.

use std::{collections::HashMap, sync::Arc};

use contract_id::contract;
use kv_blocks::{
    BlockSize, EngineHash, HashScheme, IndexUpdate, Namespace, PromptIdentity, StoredBlocks, Tier,
};
use kv_index::{DumpCursor, KvIndex, TierBlocks, UpdateOutcome};

use crate::sequence::*;

#[test]
#[contract("V9", "DY18")]
fn sequence_hashes_count_and_engine_hashes_only_resolve_parents() {
    let index = index();
    put(&index, 0, store(0..2));
    // The same content with other engine hashes, on another target.
    let mut renamed = store(0..2);
    renamed.hashes = vec![EngineHash(900), EngineHash(901)];
    put(&index, 1, renamed);
    put(&index, 0, store(2..3));
    assert_eq!(resident(&index, 0, &plain(), 8).device, 3);
    assert_eq!(resident(&index, 1, &plain(), 8).device, 2);
    assert_eq!(index.stats().distinct, 3);
}

#[test]
#[contract("V9")]
fn a_parent_announced_only_by_another_target_is_unknown() {
    let index = index();
    put(&index, 0, store(0..2));
    let applied = put(&index, 1, store(2..4));
    assert_eq!(
        applied,
        UpdateOutcome {
            applied: 0,
            orphans: 2,
            ignored: 0,
            moved: 0
        }
    );
    assert_eq!(index.stats().orphans, 2);
    assert!(
        index
            .lookup(&plain(), &chain(4), NOW)
            .iter()
            .all(|overlap| overlap.target == target(0))
    );
    // It is not attached to the root either.
    let alone = HashScheme::default().chain(None, &tokens(2..4), size());
    assert!(index.lookup(&plain(), &alone, NOW).is_empty());
}

#[test]
#[contract("V7")]
fn a_block_missing_in_the_middle_ends_the_run() {
    let index = index();
    put(&index, 0, store(0..4));
    index.apply(target(0), &remove(&[2], Tier::Device));
    assert_eq!(resident(&index, 0, &plain(), 4).total(), 1);
    put(&index, 0, store(1..2));
    assert_eq!(resident(&index, 0, &plain(), 4).total(), 4);
}

#[test]
#[contract("V12", "V20")]
fn a_removal_affects_no_other_tier_or_target() {
    let index = index();
    for worker in 0..2 {
        put(&index, worker, store(0..2));
    }
    put(
        &index,
        0,
        StoredBlocks {
            tier: Tier::Host,
            ..store(0..2)
        },
    );
    assert_eq!(index.blocks_per_tier(target(0)), [2, 2, 0, 0]);
    assert_eq!(
        resident(&index, 0, &plain(), 2),
        TierBlocks {
            device: 2,
            ..TierBlocks::default()
        }
    );

    let applied = index.apply(target(0), &remove(&[1], Tier::Device));
    assert_eq!(
        applied,
        UpdateOutcome {
            applied: 1,
            orphans: 0,
            ignored: 0,
            moved: 0
        }
    );
    assert_eq!(
        resident(&index, 0, &plain(), 2),
        TierBlocks {
            device: 1,
            host: 1,
            ..TierBlocks::default()
        }
    );
    assert_eq!(resident(&index, 1, &plain(), 2).device, 2);

    // A clear concerns only the device.
    index.apply(target(0), &IndexUpdate::Cleared);
    assert_eq!(resident(&index, 0, &plain(), 2).host, 2);
    assert_eq!(resident(&index, 1, &plain(), 2).device, 2);
    index.clear(target(0));
    assert_eq!(resident(&index, 0, &plain(), 2).total(), 0);
}

#[test]
fn removals_of_unknown_blocks_are_ignored_and_the_others_applied() {
    let index = index();
    put(&index, 0, store(0..2));
    let applied = index.apply(target(0), &remove(&[77, 2, 78], Tier::Device));
    assert_eq!(
        applied,
        UpdateOutcome {
            applied: 1,
            orphans: 0,
            ignored: 2,
            moved: 0
        }
    );
    assert_eq!(index.apply(target(0), &remove(&[1], Tier::Disk)).ignored, 1);
    assert_eq!(
        index.apply(target(9), &remove(&[1], Tier::Device)).ignored,
        1
    );
    assert_eq!(resident(&index, 0, &plain(), 2).device, 1);
}

#[test]
fn with_one_of_two_copies_removed_the_parent_still_resolves() {
    let index = index();
    put(&index, 0, store(0..2));
    // The engine computes the last block twice; one copy is removed, and decoding continues behind
    // the other.
    put(&index, 0, store(1..2));
    index.apply(target(0), &remove(&[2], Tier::Device));
    assert_eq!(put(&index, 0, store(2..3)).orphans, 0);
    put(&index, 0, store(1..2));
    assert_eq!(resident(&index, 0, &plain(), 3).device, 3);
}

#[test]
#[contract("MC12", "D2", "S54")]
fn salts_and_adapters_are_inherited_and_keep_tokens_apart() {
    let index = index();
    put(
        &index,
        0,
        StoredBlocks {
            media: Vec::new(),
            salt: Some(Arc::from("a")),
            ..store(0..2)
        },
    );
    put(&index, 0, store(2..3));
    assert_eq!(resident(&index, 0, &salted("a"), 3).device, 3);
    assert!(index.lookup(&plain(), &chain(3), NOW).is_empty());
    assert!(index.lookup(&salted("b"), &chain(3), NOW).is_empty());
    let with_adapter = Namespace {
        lora: Some(Arc::from("ad")),
        ..plain()
    };
    put(
        &index,
        1,
        StoredBlocks {
            lora: Some(Arc::from("ad")),
            ..store(0..1)
        },
    );
    assert_eq!(resident(&index, 1, &with_adapter, 3).device, 1);
    assert_eq!(index.stats().namespaces, 2);
    // A child with another salt than its parent has the wrong parent.
    assert_eq!(
        put(
            &index,
            0,
            StoredBlocks {
                media: Vec::new(),
                salt: Some(Arc::from("b")),
                ..store(3..4)
            }
        )
        .orphans,
        1
    );
    assert_eq!(
        put(
            &index,
            0,
            StoredBlocks {
                lora: Some(Arc::from("ad")),
                ..store(3..4)
            }
        )
        .orphans,
        1
    );
    assert_eq!(
        put(
            &index,
            0,
            StoredBlocks {
                media: Vec::new(),
                salt: Some(Arc::from("a")),
                ..store(3..4)
            }
        )
        .applied,
        1
    );
}

#[test]
#[contract("MC12", "F63")]
fn models_and_block_sizes_are_kept_apart() {
    let index = index();
    index.register(target(5), Arc::from("other"));
    put(&index, 5, store(0..2));
    assert!(index.lookup(&plain(), &chain(2), NOW).is_empty());
    // A store beside the engine names its chunks by the engine's hashes.
    put(&index, 0, store(0..2));
    let big = BlockSize::new(8).unwrap();
    let chunk = StoredBlocks {
        hashes: vec![EngineHash(2)],
        block_size: big,
        tier: Tier::Host,
        ..store(0..2)
    };
    put(&index, 0, chunk);
    assert_eq!(index.blocks_per_tier(target(0)), [2, 2, 0, 0]);
    let of_its_size = Namespace {
        block_size: big,
        ..plain()
    };
    let hashes = HashScheme::default().chain(None, &tokens(0..2), big);
    assert!(index.lookup(&of_its_size, &hashes, NOW).is_empty());
    index.apply(target(0), &remove(&[2], Tier::Host));
    assert_eq!(index.blocks_per_tier(target(0)), [2, 0, 0, 0]);
    assert_eq!(resident(&index, 0, &plain(), 2).device, 2);
}

#[test]
#[contract("MC12")]
fn queries_create_no_state() {
    let index = index();
    put(&index, 0, store(0..2));
    let before = index.stats();
    for number in 0..100 {
        assert!(
            index
                .lookup(&salted(&number.to_string()), &chain(8), NOW)
                .is_empty()
        );
        index.blocks_per_tier(target(number));
    }
    assert_eq!(index.stats(), before);
}

#[test]
fn a_reused_engine_hash_removes_its_old_block() {
    let index = index();
    put(&index, 0, store(0..1));
    let mut other = store(0..1);
    other.tokens = vec![9; 4];
    put(&index, 0, other);
    // No event could remove the old block any more.
    assert_eq!(resident(&index, 0, &plain(), 1).total(), 0);
    assert_eq!(index.stats().memberships, 1);
}

#[test]
fn unregistered_targets_and_wrong_lengths_are_ignored() {
    let index = index();
    assert_eq!(put(&index, 42, store(0..2)).ignored, 2);
    let mut short = store(0..2);
    short.tokens.pop();
    assert_eq!(put(&index, 0, short).ignored, 2);
    assert_eq!(index.stats().memberships, 0);
}

#[test]
fn a_target_that_changes_its_model_starts_empty() {
    let index = index();
    put(&index, 0, store(0..2));
    index.register(target(0), Arc::from("m"));
    assert_eq!(index.blocks_per_tier(target(0))[0], 2);
    index.register(target(0), Arc::from("other"));
    assert_eq!(index.blocks_per_tier(target(0))[0], 0);
}

#[test]
fn digests_depend_on_content_only() {
    let one = index();
    put(&one, 0, store(0..3));
    let two = index();
    let mut renamed = store(0..1);
    renamed.hashes = vec![EngineHash(500)];
    put(&two, 0, renamed);
    let mut rest = store(1..3);
    rest.parent = Some(EngineHash(500));
    put(&two, 0, rest);
    assert_eq!(one.digest(), two.digest());
    assert_eq!((one.digest().len(), one.digest()[0].blocks), (1, 3));
    two.apply(target(0), &remove(&[3], Tier::Device));
    assert_ne!(one.digest(), two.digest());
    // Equal tokens with another salt are different content.
    let other = index();
    put(
        &other,
        0,
        StoredBlocks {
            media: Vec::new(),
            salt: Some(Arc::from("s")),
            ..store(0..3)
        },
    );
    assert_ne!(one.digest(), other.digest());
}

#[test]
fn a_dump_shows_chains_and_hides_salts() {
    let index = index();
    put(
        &index,
        0,
        StoredBlocks {
            media: Vec::new(),
            salt: Some(Arc::from("secret")),
            ..store(0..2)
        },
    );
    let mut rows = Vec::new();
    for row in dump(&index) {
        let digest = row.salt_digest.unwrap();
        assert!(!digest.contains("secret"));
        assert_eq!(digest.len(), 16);
        rows.push((row.depth, row.hash, row.parent, row.tier, row.target));
    }
    rows.sort_unstable();
    let chain = chain(2);
    assert_eq!(
        rows,
        [
            (0, chain[0], None, Tier::Device, target(0)),
            (1, chain[1], Some(chain[0]), Tier::Device, target(0)),
        ]
    );
}

#[test]
fn a_dump_has_small_pieces_and_allows_updates_between_them() {
    let index = index();
    put(&index, 0, store(0..20_000));
    let mut cursor = DumpCursor::default();
    let mut seen = HashMap::new();
    let (mut next, mut pieces) = (20_000, 0);
    while let Some(rows) = index.dump(&mut cursor) {
        pieces += 1;
        assert!(rows.len() <= 256, "{}", rows.len());
        for row in rows {
            *seen.entry(row.hash).or_insert(0) += 1;
        }
        // Blocks change meanwhile: the even ones of the first thousand are removed, others are
        // added at the end.
        if pieces <= 10 {
            let even: Vec<_> = (0..50)
                .map(|number| 2 * (50 * (pieces - 1) + number))
                .collect();
            index.apply(target(0), &remove(&even, Tier::Device));
            put(&index, 0, store(next..next + 500));
            next += 500;
        }
    }
    assert!(pieces > 20);
    assert!(
        seen.values().all(|times| *times == 1),
        "no row occurs twice"
    );
    let stayed = chain(20_000)
        .into_iter()
        .enumerate()
        .filter(|(block, _)| *block >= 1000 || block % 2 == 0);
    assert!(
        stayed.into_iter().all(|(_, hash)| seen.contains_key(&hash)),
        "no unchanged row is missing"
    );
}

#[test]
fn a_dump_of_blocks_with_hundreds_of_holders_has_small_pieces_too() {
    let index = index();
    for worker in 0..300 {
        index.register(target(worker), Arc::from("m"));
        put(&index, worker, store(0..50 + worker % 7));
        put(
            &index,
            worker,
            StoredBlocks {
                tier: Tier::Host,
                ..store(0..2)
            },
        );
    }
    let mut cursor = DumpCursor::default();
    let mut rows = Vec::new();
    while let Some(piece) = index.dump(&mut cursor) {
        assert!(piece.len() <= 256 + 600, "{}", piece.len());
        rows.extend(
            piece
                .into_iter()
                .map(|row| (row.target, row.tier, row.depth, row.parent)),
        );
    }
    let resident: u32 = (0..300).map(|worker| 50 + worker % 7 + 2).sum();
    assert_eq!(rows.len(), resident as usize);
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), resident as usize, "no row occurs twice");
    let chain = chain(60);
    assert!(
        rows.iter()
            .all(|(_, _, depth, parent)| *parent
                == depth.checked_sub(1).map(|at| chain[at as usize]))
    );
}

#[test]
fn text_blocks_and_token_blocks_are_kept_apart() {
    let index = index();
    put(&index, 0, store(0..2));
    let text = Namespace {
        identity: PromptIdentity::TextPrefix,
        ..plain()
    };
    assert!(index.lookup(&text, &chain(2), NOW).is_empty());
}

#[test]
fn the_index_is_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<KvIndex>();
}
