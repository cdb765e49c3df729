//! What the index credits, and what it refuses to.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::{collections::HashMap, sync::Arc, time::Duration};

use contract_id::contract;
use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, Identity, IndexUpdate, Moment, Namespace, Removed, SequenceHash, Stored,
    Target, Tier, WorkerId,
};
use kv_index::{Applied, DumpPlace, DumpRow, IndexSettings, KvIndex, TierBlocks};

const NOW: Moment = Moment::START;

fn target(worker: u32) -> Target {
    Target { worker: WorkerId(worker), rank: DpRank(0) }
}

fn size() -> BlockSize {
    BlockSize::new(4).unwrap()
}

fn tokens(blocks: std::ops::Range<u32>) -> Vec<u32> {
    (blocks.start * 4..blocks.end * 4).collect()
}

fn chain(blocks: u32) -> Vec<SequenceHash> {
    HashScheme::default().chain(None, &tokens(0..blocks), size())
}

fn plain() -> Namespace {
    Namespace { model: Arc::from("m"), lora: None, salt: None, block_size: size(), identity: Identity::Tokens }
}

fn salted(salt: &str) -> Namespace {
    Namespace { salt: Some(Arc::from(salt)), ..plain() }
}

/// Blocks of the sequence of tokens 0, 1, 2 and so on; the engine calls block n `n + 1`.
fn store(blocks: std::ops::Range<u32>) -> Stored {
    Stored {
        hashes: blocks.clone().map(|block| EngineHash(u64::from(block) + 1)).collect(),
        parent: (blocks.start > 0).then(|| EngineHash(blocks.start.into())),
        tokens: tokens(blocks),
        block_size: size(),
        lora: None,
        salt: None,
        tier: Tier::Device,
    }
}

fn remove(names: &[u64], tier: Tier) -> IndexUpdate {
    IndexUpdate::Removed(Removed { hashes: names.iter().map(|name| EngineHash(*name)).collect(), tier })
}

fn index_of(settings: IndexSettings) -> KvIndex {
    let index = KvIndex::new(settings);
    for worker in 0..3 {
        index.register(target(worker), Arc::from("m"));
    }
    index
}

fn index() -> KvIndex {
    index_of(IndexSettings::default())
}

fn put(index: &KvIndex, worker: u32, stored: Stored) -> Applied {
    index.apply(target(worker), &IndexUpdate::Stored(stored))
}

fn held(index: &KvIndex, worker: u32, namespace: &Namespace, blocks: u32) -> TierBlocks {
    let overlaps = index.lookup(namespace, &chain(blocks), NOW);
    overlaps.iter().find(|overlap| overlap.target == target(worker)).map_or(TierBlocks::default(), |found| found.blocks)
}

fn dump(index: &KvIndex) -> Vec<DumpRow> {
    let mut place = DumpPlace::default();
    std::iter::from_fn(|| index.dump(&mut place)).flatten().collect()
}

#[test]
#[contract("V9", "DY18")]
fn own_hashes_count_and_engine_names_only_resolve_parents() {
    let index = index();
    put(&index, 0, store(0..2));
    // The same content under other names, on another target.
    let mut renamed = store(0..2);
    renamed.hashes = vec![EngineHash(900), EngineHash(901)];
    put(&index, 1, renamed);
    put(&index, 0, store(2..3));
    assert_eq!(held(&index, 0, &plain(), 8).device, 3);
    assert_eq!(held(&index, 1, &plain(), 8).device, 2);
    assert_eq!(index.stats().distinct, 3);
}

#[test]
#[contract("V9")]
fn a_parent_known_only_to_another_target_is_unknown() {
    let index = index();
    put(&index, 0, store(0..2));
    let applied = put(&index, 1, store(2..4));
    assert_eq!(applied, Applied { applied: 0, orphans: 2, ignored: 0 });
    assert_eq!(index.stats().orphans, 2);
    assert!(index.lookup(&plain(), &chain(4), NOW).iter().all(|overlap| overlap.target == target(0)));
    // Nor is it attached to the root.
    let alone = HashScheme::default().chain(None, &tokens(2..4), size());
    assert!(index.lookup(&plain(), &alone, NOW).is_empty());
}

#[test]
#[contract("V7")]
fn a_block_missing_in_the_middle_ends_the_run() {
    let index = index();
    put(&index, 0, store(0..4));
    index.apply(target(0), &remove(&[2], Tier::Device));
    assert_eq!(held(&index, 0, &plain(), 4).total(), 1);
    put(&index, 0, store(1..2));
    assert_eq!(held(&index, 0, &plain(), 4).total(), 4);
}

#[test]
#[contract("V12", "V20")]
fn a_removal_leaves_other_tiers_and_other_targets_alone() {
    let index = index();
    for worker in 0..2 {
        put(&index, worker, store(0..2));
    }
    put(&index, 0, Stored { tier: Tier::Host, ..store(0..2) });
    assert_eq!(index.blocks_per_tier(target(0)), [2, 2, 0, 0]);
    assert_eq!(held(&index, 0, &plain(), 2), TierBlocks { device: 2, ..TierBlocks::default() });

    let applied = index.apply(target(0), &remove(&[1], Tier::Device));
    assert_eq!(applied, Applied { applied: 1, orphans: 0, ignored: 0 });
    assert_eq!(held(&index, 0, &plain(), 2), TierBlocks { device: 1, host: 1, ..TierBlocks::default() });
    assert_eq!(held(&index, 1, &plain(), 2).device, 2);

    // Clearing speaks of the device alone.
    index.apply(target(0), &IndexUpdate::Cleared);
    assert_eq!(held(&index, 0, &plain(), 2).host, 2);
    assert_eq!(held(&index, 1, &plain(), 2).device, 2);
    index.clear(target(0));
    assert_eq!(held(&index, 0, &plain(), 2).total(), 0);
}

#[test]
fn removals_of_unknown_blocks_are_ignored_and_the_rest_is_done() {
    let index = index();
    put(&index, 0, store(0..2));
    let applied = index.apply(target(0), &remove(&[77, 2, 78], Tier::Device));
    assert_eq!(applied, Applied { applied: 1, orphans: 0, ignored: 2 });
    assert_eq!(index.apply(target(0), &remove(&[1], Tier::Disk)).ignored, 1);
    assert_eq!(index.apply(target(9), &remove(&[1], Tier::Device)).ignored, 1);
    assert_eq!(held(&index, 0, &plain(), 2).device, 1);
}

#[test]
fn one_of_two_copies_gone_still_names_the_parent_of_what_follows() {
    let index = index();
    put(&index, 0, store(0..2));
    // The engine computed the last block twice; one copy goes, and decoding goes on behind the other.
    put(&index, 0, store(1..2));
    index.apply(target(0), &remove(&[2], Tier::Device));
    assert_eq!(put(&index, 0, store(2..3)).orphans, 0);
    put(&index, 0, store(1..2));
    assert_eq!(held(&index, 0, &plain(), 3).device, 3);
}

#[test]
#[contract("MC12")]
fn salts_and_adapters_are_inherited_and_keep_tokens_apart() {
    let index = index();
    put(&index, 0, Stored { salt: Some(Arc::from("a")), ..store(0..2) });
    put(&index, 0, store(2..3));
    assert_eq!(held(&index, 0, &salted("a"), 3).device, 3);
    assert!(index.lookup(&plain(), &chain(3), NOW).is_empty());
    assert!(index.lookup(&salted("b"), &chain(3), NOW).is_empty());
    let with_adapter = Namespace { lora: Some(Arc::from("ad")), ..plain() };
    put(&index, 1, Stored { lora: Some(Arc::from("ad")), ..store(0..1) });
    assert_eq!(held(&index, 1, &with_adapter, 3).device, 1);
    assert_eq!(index.stats().namespaces, 2);
    // A child that names another salt than its parent has the wrong parent.
    assert_eq!(put(&index, 0, Stored { salt: Some(Arc::from("b")), ..store(3..4) }).orphans, 1);
    assert_eq!(put(&index, 0, Stored { lora: Some(Arc::from("ad")), ..store(3..4) }).orphans, 1);
    assert_eq!(put(&index, 0, Stored { salt: Some(Arc::from("a")), ..store(3..4) }).applied, 1);
}

#[test]
#[contract("MC12")]
fn models_and_block_sizes_are_kept_apart() {
    let index = index();
    index.register(target(5), Arc::from("other"));
    put(&index, 5, store(0..2));
    assert!(index.lookup(&plain(), &chain(2), NOW).is_empty());
    // A store attached to the engine names its chunks by the engine's hashes.
    put(&index, 0, store(0..2));
    let big = BlockSize::new(8).unwrap();
    let chunk = Stored { hashes: vec![EngineHash(2)], block_size: big, tier: Tier::Host, ..store(0..2) };
    put(&index, 0, chunk);
    assert_eq!(index.blocks_per_tier(target(0)), [2, 1, 0, 0]);
    index.apply(target(0), &remove(&[2], Tier::Host));
    assert_eq!(index.blocks_per_tier(target(0)), [2, 0, 0, 0]);
    assert_eq!(held(&index, 0, &plain(), 2).device, 2);
}

#[test]
#[contract("MC12")]
fn queries_create_no_state() {
    let index = index();
    put(&index, 0, store(0..2));
    let before = index.stats();
    for number in 0..100 {
        assert!(index.lookup(&salted(&number.to_string()), &chain(8), NOW).is_empty());
        index.blocks_per_tier(target(number));
    }
    assert_eq!(index.stats(), before);
}

#[test]
fn salts_leave_with_their_blocks() {
    let index = index();
    let empty = index.stats().bytes;
    for number in 0..10_000 {
        put(&index, 0, Stored { salt: Some(Arc::from(format!("salt {number}"))), ..store(0..1) });
        index.apply(target(0), &IndexUpdate::Cleared);
    }
    let stats = index.stats();
    assert_eq!((stats.namespaces, stats.bytes), (0, empty));
}

#[test]
fn a_name_that_means_something_else_now_takes_its_old_block_along() {
    let index = index();
    put(&index, 0, store(0..1));
    let mut other = store(0..1);
    other.tokens = vec![9; 4];
    put(&index, 0, other);
    // Nothing could remove the old block any more.
    assert_eq!(held(&index, 0, &plain(), 1).total(), 0);
    assert_eq!(index.stats().memberships, 1);
}

#[test]
fn names_of_departed_blocks_are_bounded() {
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
    assert!(index.stats().bytes < settled + 4200 * 64, "{}", index.stats().bytes);
}

#[test]
fn at_the_budget_blocks_are_shed_and_nothing_is_credited_that_is_not_there() {
    let index = index_of(IndexSettings { memory_budget: 10_000, ..IndexSettings::default() });
    let applied = put(&index, 0, store(0..200));
    assert!(applied.applied > 0 && applied.ignored > 0, "{applied:?}");
    assert_eq!(applied.applied + applied.ignored, 200);
    let stats = index.stats();
    assert_eq!(stats.shed, u64::from(applied.ignored));
    assert!(stats.bytes <= stats.budget_bytes);
    assert_eq!(held(&index, 0, &plain(), 200).device, applied.applied);
    // What is held may be announced again, and removals make room.
    assert_eq!(put(&index, 0, store(0..1)).applied, 1);
    index.apply(target(0), &IndexUpdate::Cleared);
    assert_eq!(put(&index, 0, store(0..1)).applied, 1);
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
#[contract("V14", "V15")]
fn a_speculative_entry_counts_until_confirmed_or_expired() {
    let index = index();
    let ttl = Duration::from_secs(2);
    index.speculate(target(0), &plain(), &chain(4), NOW, ttl);
    assert_eq!(held(&index, 0, &plain(), 8), TierBlocks { speculative: 4, ..TierBlocks::default() });
    put(&index, 0, store(0..2));
    assert_eq!(held(&index, 0, &plain(), 8), TierBlocks { device: 2, speculative: 2, ..TierBlocks::default() });
    assert_eq!((index.stats().speculative, index.stats().memberships), (2, 2));
    let later = NOW + ttl;
    assert_eq!(index.lookup(&plain(), &chain(8), later)[0].blocks.total(), 2);
    index.expire(later);
    assert_eq!(index.stats().speculative, 0);
    // What was confirmed and then removed does not come back as an expectation.
    index.apply(target(0), &IndexUpdate::Cleared);
    assert_eq!(held(&index, 0, &plain(), 8).total(), 0);
}

#[test]
#[contract("V15")]
fn a_second_request_of_a_burst_finds_the_first_ones_target() {
    let index = index();
    assert!(index.lookup(&plain(), &chain(3), NOW).is_empty());
    index.speculate(target(1), &plain(), &chain(3), NOW, Duration::from_secs(2));
    let overlaps = index.lookup(&plain(), &chain(3), NOW);
    assert_eq!((overlaps.len(), overlaps[0].target, overlaps[0].blocks.total()), (1, target(1), 3));
}

#[test]
fn unconfirmed_entries_are_no_content() {
    let index = index();
    index.predict(target(0), &plain(), &chain(3), NOW, Duration::from_secs(120));
    assert_eq!((index.stats().predicted, index.stats().speculative), (3, 0));
    assert!(index.digest().is_empty());
    assert_eq!(index.blocks_per_tier(target(0)), [0; 4]);
    assert_eq!(dump(&index), []);
    // Prediction needs no registration: such workers have no stream.
    index.predict(target(8), &plain(), &chain(1), NOW, Duration::from_secs(120));
    assert_eq!(held(&index, 8, &plain(), 1).speculative, 1);
    index.remove_worker(WorkerId(8));
    assert_eq!(held(&index, 8, &plain(), 1).speculative, 0);
}

#[test]
fn predictions_are_bounded_and_the_least_recently_used_go_first() {
    let index =
        index_of(IndexSettings { prediction_max_blocks: 10, prune_target_ratio: 0.5, ..IndexSettings::default() });
    let ttl = Duration::from_secs(120);
    for worker in 0..3 {
        index.predict(target(worker), &plain(), &chain(3), NOW, ttl);
    }
    // The oldest is used again, then a fourth does not fit: half is left, the ends of chains first.
    index.predict(target(0), &plain(), &chain(3), NOW, ttl);
    index.predict(target(7), &plain(), &chain(3), NOW, ttl);
    let found = |worker| held(&index, worker, &plain(), 3).speculative;
    assert_eq!([0, 1, 2, 7].map(found), [3, 0, 2, 3]);
    // A chain longer than the bound keeps its front.
    index.predict(target(7), &plain(), &chain(50), NOW, ttl);
    assert_eq!(found(7), 3);
    assert_eq!(held(&index, 7, &plain(), 50).speculative, 10);
    assert_eq!(index.stats().predicted, 10);
}

#[test]
fn confirmed_blocks_push_unconfirmed_ones_out_of_the_budget() {
    let index = index_of(IndexSettings { memory_budget: 20_000, ..IndexSettings::default() });
    index.predict(target(1), &plain(), &chain(1000), NOW, Duration::from_secs(120));
    assert!(index.stats().predicted > 0);
    assert!(index.stats().bytes <= 20_000);
    let applied = put(&index, 0, store(0..200));
    assert!(applied.applied > 50);
    assert_eq!(index.stats().predicted, 0);
}

#[test]
fn digests_tell_content_and_nothing_else() {
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
    // Equal tokens under another salt are other content.
    let other = index();
    put(&other, 0, Stored { salt: Some(Arc::from("s")), ..store(0..3) });
    assert_ne!(one.digest(), other.digest());
}

#[test]
fn a_dump_shows_chains_and_hides_salts() {
    let index = index();
    put(&index, 0, Stored { salt: Some(Arc::from("secret")), ..store(0..2) });
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
        [(0, chain[0], None, Tier::Device, target(0)), (1, chain[1], Some(chain[0]), Tier::Device, target(0)),]
    );
}

#[test]
fn a_dump_comes_in_small_pieces_and_lets_updates_in_between() {
    let index = index();
    put(&index, 0, store(0..20_000));
    let mut place = DumpPlace::default();
    let mut seen = HashMap::new();
    let (mut next, mut pieces) = (20_000, 0);
    while let Some(rows) = index.dump(&mut place) {
        pieces += 1;
        assert!(rows.len() < 200, "{}", rows.len());
        for row in rows {
            *seen.entry(row.hash).or_insert(0) += 1;
        }
        // Blocks come and go meanwhile: the even ones of the first thousand leave, others join at the end.
        if pieces <= 500 {
            index.apply(target(0), &remove(&[2 * pieces], Tier::Device));
            put(&index, 0, store(next..next + 5));
            next += 5;
        }
    }
    assert!(seen.values().all(|times| *times == 1), "nothing comes twice");
    let stayed = chain(20_000).into_iter().enumerate().filter(|(block, _)| *block >= 1000 || block % 2 == 0);
    assert!(stayed.into_iter().all(|(_, hash)| seen.contains_key(&hash)), "nothing that stayed is missing");
}

#[test]
fn what_a_refused_request_promised_is_taken_back() {
    let index = index();
    let ttl = Duration::from_secs(120);
    let promised = index.predict(target(0), &plain(), &chain(6), NOW, ttl);
    put(&index, 0, store(0..2));
    index.retract(promised.clone());
    // What the engine has said stays.
    assert_eq!(held(&index, 0, &plain(), 6), TierBlocks { device: 2, ..TierBlocks::default() });
    assert_eq!(index.stats().predicted, 0);
    // Once more changes nothing, not even what came in since.
    index.predict(target(0), &plain(), &chain(6), NOW, ttl);
    index.retract(promised);
    assert_eq!(held(&index, 0, &plain(), 6).speculative, 4);
}

#[test]
fn what_another_request_renewed_stays_when_the_first_one_is_refused() {
    let index = index();
    let ttl = Duration::from_secs(2);
    let long = index.speculate(target(0), &plain(), &chain(6), NOW, ttl);
    let short = index.speculate(target(0), &plain(), &chain(3), NOW, ttl);
    index.speculate(target(1), &plain(), &chain(6), NOW, ttl);
    index.retract(long);
    assert_eq!([0, 1].map(|worker| held(&index, worker, &plain(), 6).speculative), [3, 6]);
    // All of a burst refused, in the order it was sent: nothing stays.
    index.retract(short);
    assert_eq!([0, 1].map(|worker| held(&index, worker, &plain(), 6).speculative), [0, 6]);
}

#[test]
fn a_big_target_is_forgotten_whole_and_nobody_else_with_it() {
    let index = index();
    let ttl = Duration::from_secs(120);
    for worker in 0..2 {
        put(&index, worker, store(0..10_000));
        put(&index, worker, Stored { tier: Tier::Host, ..store(0..3) });
        let other = salted("s");
        for from in 0..20 {
            index.predict(target(worker), &other, &chain(20_000)[from * 1000..][..1000], NOW, ttl);
        }
    }
    index.apply(target(0), &IndexUpdate::Cleared);
    assert_eq!(index.blocks_per_tier(target(0)), [0, 3, 0, 0]);
    assert_eq!(index.stats().predicted, 20_000);
    index.clear(target(0));
    assert_eq!(index.blocks_per_tier(target(0)), [0; 4]);
    assert_eq!(index.blocks_per_tier(target(1)), [10_000, 3, 0, 0]);
    index.remove_worker(WorkerId(1));
    let stats = index.stats();
    assert_eq!((stats.bytes, stats.memberships, stats.predicted), (0, 0, 0));
}

#[test]
fn text_and_tokens_never_meet() {
    let index = index();
    put(&index, 0, store(0..2));
    let text = Namespace { identity: Identity::TextPrefix, ..plain() };
    assert!(index.lookup(&text, &chain(2), NOW).is_empty());
}

#[test]
fn it_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<KvIndex>();
}
