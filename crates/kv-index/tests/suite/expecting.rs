//! Speculative and predicted entries: their duration, their bounds, and what ends them.

use std::time::Duration;

use contract_id::contract;
use kv_blocks::{IndexUpdate, WorkerId};
use kv_index::{IndexSettings, TierBlocks};

use crate::sequence::*;

#[test]
#[contract("V14", "V15")]
fn a_speculative_entry_counts_until_confirmed_or_expired() {
    let index = index();
    let ttl = Duration::from_secs(2);
    index.speculate(target(0), &plain(), &chain(4), NOW, ttl);
    assert_eq!(
        resident(&index, 0, &plain(), 8),
        TierBlocks {
            speculative: 4,
            ..TierBlocks::default()
        }
    );
    put(&index, 0, store(0..2));
    assert_eq!(
        resident(&index, 0, &plain(), 8),
        TierBlocks {
            device: 2,
            speculative: 2,
            ..TierBlocks::default()
        }
    );
    assert_eq!(
        (index.stats().speculative, index.stats().memberships),
        (2, 2)
    );
    let later = NOW + ttl;
    assert_eq!(
        index.lookup(&plain(), &chain(8), later)[0].blocks.total(),
        2
    );
    index.expire(later);
    assert_eq!(index.stats().speculative, 0);
    // A block that was confirmed and then removed does not become speculative again.
    index.apply(target(0), &IndexUpdate::Cleared);
    assert_eq!(resident(&index, 0, &plain(), 8).total(), 0);
}

#[test]
#[contract("V15")]
fn the_second_request_of_a_burst_finds_the_target_of_the_first() {
    let index = index();
    assert!(index.lookup(&plain(), &chain(3), NOW).is_empty());
    index.speculate(target(1), &plain(), &chain(3), NOW, Duration::from_secs(2));
    let overlaps = index.lookup(&plain(), &chain(3), NOW);
    assert_eq!(
        (
            overlaps.len(),
            overlaps[0].target,
            overlaps[0].blocks.total()
        ),
        (1, target(1), 3)
    );
}

#[test]
fn after_a_hole_in_a_stream_speculative_entries_last_longer_until_a_clear() {
    let index = index();
    let (ttl, long) = (
        Duration::from_secs(2),
        IndexSettings::default().unconfirmed_ttl,
    );
    put(&index, 0, store(8..9));
    index.mark_loss(target(0));
    index.speculate(target(0), &plain(), &chain(4), NOW, ttl);
    // The first two are confirmed; the others may be in the lost batches.
    put(&index, 0, store(0..2));
    let total = |at| {
        index
            .lookup(&plain(), &chain(8), at)
            .first()
            .map_or(0, |found| found.blocks.total())
    };
    assert_eq!(total(NOW + ttl), 4);
    assert_eq!(total(NOW + long), 2);
    // After a restart of the stream, events confirm blocks again.
    index.clear(target(0));
    index.speculate(target(0), &plain(), &chain(4), NOW, ttl);
    assert_eq!(total(NOW + ttl), 0);
}

#[test]
#[contract("DY4")]
fn unconfirmed_entries_are_not_part_of_the_content() {
    let index = index();
    index.predict(
        target(0),
        &plain(),
        &chain(3),
        NOW,
        Duration::from_secs(120),
    );
    assert_eq!((index.stats().predicted, index.stats().speculative), (3, 0));
    assert!(index.digest().is_empty());
    assert_eq!(index.blocks_per_tier(target(0)), [0; 4]);
    assert_eq!(dump(&index), []);
    // A prediction needs no registration: such workers have no stream.
    index.predict(
        target(8),
        &plain(),
        &chain(1),
        NOW,
        Duration::from_secs(120),
    );
    assert_eq!(resident(&index, 8, &plain(), 1).speculative, 1);
    index.remove_worker(WorkerId(8));
    assert_eq!(resident(&index, 8, &plain(), 1).speculative, 0);
}

#[test]
#[contract("DY33")]
fn a_prediction_behind_a_block_counts_where_the_blocks_before_it_do() {
    let index = index();
    let (ttl, all) = (Duration::from_secs(120), chain(6));
    let behind = |worker, from: usize, to: usize| {
        let part = (Some(all[from - 1]), &all[from..to]);
        index.predict_after(target(worker), &plain(), part, NOW, ttl)
    };
    let found = |worker| resident(&index, worker, &plain(), 6).speculative;
    // The index has no such block.
    behind(0, 3, 5);
    assert_eq!((index.stats().predicted, found(0)), (0, 0));
    index.predict(target(0), &plain(), &all[..3], NOW, ttl);
    let second = behind(0, 3, 5);
    behind(0, 5, 6);
    assert_eq!((index.stats().predicted, found(0)), (6, 6));
    // In the middle of known blocks it renews them.
    behind(0, 2, 4);
    assert_eq!((index.stats().predicted, found(0)), (6, 6));
    // This target does not hold the blocks before it.
    behind(1, 3, 5);
    assert_eq!(found(1), 0);
    // A prediction that was renewed since stays.
    index.retract(second);
    assert_eq!((found(0), index.stats().predicted), (4, 7));
}

#[test]
fn several_predictions_have_the_room_that_no_pruning_takes_from_them() {
    let index = index_of(IndexSettings {
        prediction_max_blocks: 10,
        prune_target_ratio: 0.5,
        ..IndexSettings::default()
    });
    let ttl = Duration::from_secs(120);
    assert_eq!(index.prediction_room(), 10);
    index.predict(target(0), &plain(), &chain(3), NOW, ttl);
    assert_eq!(index.prediction_room(), 7);
    index.predict(target(1), &plain(), &chain(6), NOW, ttl);
    // Older ones are pruned for these.
    assert_eq!(index.prediction_room(), 5);
    for worker in 2..7 {
        index.predict(target(worker), &plain(), &chain(1), NOW, ttl);
    }
    let found = |worker| resident(&index, worker, &plain(), 1).speculative;
    assert_eq!([2, 3, 4, 5, 6].map(found), [1; 5]);
}

#[test]
#[contract("DY6", "DY7")]
fn predictions_are_bounded_and_the_least_recently_used_are_evicted_first() {
    let index = index_of(IndexSettings {
        prediction_max_blocks: 10,
        prune_target_ratio: 0.5,
        ..IndexSettings::default()
    });
    let ttl = Duration::from_secs(120);
    for worker in 0..3 {
        index.predict(target(worker), &plain(), &chain(3), NOW, ttl);
    }
    // The oldest is used again, then a fourth does not fit: half are evicted, the ends of chains
    // first.
    index.predict(target(0), &plain(), &chain(3), NOW, ttl);
    index.predict(target(7), &plain(), &chain(3), NOW, ttl);
    let found = |worker| resident(&index, worker, &plain(), 3).speculative;
    assert_eq!([0, 1, 2, 7].map(found), [3, 0, 2, 3]);
    // A chain longer than the bound keeps its front.
    index.predict(target(7), &plain(), &chain(50), NOW, ttl);
    assert_eq!(found(7), 3);
    assert_eq!(resident(&index, 7, &plain(), 50).speculative, 10);
    assert_eq!(index.stats().predicted, 10);
}

#[test]
#[contract("DY6", "DY7")]
fn by_default_1048576_predicted_blocks_are_pruned_to_838860() {
    let index = index();
    let ttl = Duration::from_secs(120);
    let all = chain(8192);
    for prompt in 0..128 {
        let namespace = salted(&prompt.to_string());
        index.predict(target(0), &namespace, &all, NOW, ttl);
    }
    assert_eq!(index.stats().predicted, 1_048_576);
    index.predict(target(0), &plain(), &all[..1], NOW, ttl);
    // The first call prunes a part, and the housekeeping the rest.
    index.expire(NOW);
    // 0.8 of the bound, the new block included or on top.
    let left = index.stats().predicted;
    assert!((838_860..=838_861).contains(&left), "{left} blocks");
}

#[test]
#[contract("DY4")]
fn the_entries_of_a_refused_request_are_retracted() {
    let index = index();
    let ttl = Duration::from_secs(120);
    let speculation = index.predict(target(0), &plain(), &chain(6), NOW, ttl);
    put(&index, 0, store(0..2));
    index.retract(speculation.clone());
    // Blocks that the engine announced stay.
    assert_eq!(
        resident(&index, 0, &plain(), 6),
        TierBlocks {
            device: 2,
            ..TierBlocks::default()
        }
    );
    assert_eq!(index.stats().predicted, 0);
    // A second retraction changes nothing, not even later entries.
    index.predict(target(0), &plain(), &chain(6), NOW, ttl);
    index.retract(speculation);
    assert_eq!(resident(&index, 0, &plain(), 6).speculative, 4);
}

#[test]
#[contract("DY4")]
fn entries_renewed_by_another_request_survive_the_refusal_of_the_first() {
    let index = index();
    let ttl = Duration::from_secs(2);
    let long = index.speculate(target(0), &plain(), &chain(6), NOW, ttl);
    let short = index.speculate(target(0), &plain(), &chain(3), NOW, ttl);
    index.speculate(target(1), &plain(), &chain(6), NOW, ttl);
    index.retract(long);
    assert_eq!(
        [0, 1].map(|worker| resident(&index, worker, &plain(), 6).speculative),
        [3, 6]
    );
    // All requests of a burst are refused, in order: no entry stays.
    index.retract(short);
    assert_eq!(
        [0, 1].map(|worker| resident(&index, worker, &plain(), 6).speculative),
        [0, 6]
    );
}

#[test]
#[contract("DY4", "DY5")]
fn a_prediction_expires_at_the_lookup_and_in_the_statistics() {
    let index = index();
    let ttl = Duration::from_secs(120);
    index.predict(target(0), &plain(), &chain(5), NOW, ttl);
    let just_before = NOW + (ttl - Duration::from_nanos(1));
    assert_eq!(
        index.lookup(&plain(), &chain(5), just_before)[0]
            .blocks
            .speculative,
        5
    );
    assert!(
        index.lookup(&plain(), &chain(5), NOW + ttl).is_empty(),
        "before the cleanup"
    );
    index.expire(just_before);
    assert_eq!(index.stats().predicted, 5);
    index.expire(NOW + ttl);
    assert_eq!((index.stats().predicted, index.stats().namespaces), (0, 0));
}

#[test]
#[contract("DY5")]
fn a_renewal_never_shortens_and_each_block_expires_separately() {
    let index = index();
    let [short, long] = [2, 120].map(Duration::from_secs);
    index.predict(target(0), &plain(), &chain(3), NOW, long);
    // The first three have the longer remaining time.
    index.speculate(target(0), &plain(), &chain(6), NOW, short);
    let later = NOW + short;
    index.expire(later);
    assert_eq!(index.stats().predicted + index.stats().speculative, 3);
    assert_eq!(
        index.lookup(&plain(), &chain(6), later)[0]
            .blocks
            .speculative,
        3
    );
    // The reverse order does not shorten either.
    index.predict(target(0), &plain(), &chain(2), later, long);
    index.expire(NOW + long);
    assert_eq!(
        index.lookup(&plain(), &chain(6), NOW + long)[0]
            .blocks
            .speculative,
        2
    );
}

#[test]
#[contract("DY7")]
fn a_pruned_chain_loses_its_end_before_its_front() {
    let settings = IndexSettings {
        prediction_max_blocks: 100,
        prune_target_ratio: 0.8,
        ..IndexSettings::default()
    };
    let index = index_of(settings);
    let ttl = Duration::from_secs(120);
    index.predict(target(0), &plain(), &chain(90), NOW, ttl);
    index.predict(target(1), &plain(), &chain(20), NOW, ttl);
    // 110 exceed 100: 80 are left, the newest 60 among them.
    let found = |worker| resident(&index, worker, &plain(), 90).speculative;
    assert_eq!(
        (found(0), found(1), index.stats().predicted),
        (60 + 20, 20, 100)
    );
}

#[test]
#[contract("DY6")]
fn many_small_predictions_share_the_bound_of_few_big_ones() {
    let index = index_of(IndexSettings {
        prediction_max_blocks: 1000,
        prune_target_ratio: 0.8,
        ..IndexSettings::default()
    });
    let (one, ttl) = (chain(1), Duration::from_secs(120));
    for number in 0..5000 {
        index.predict(target(0), &salted(&number.to_string()), &one, NOW, ttl);
        assert!(index.stats().predicted <= 1000);
    }
    let stats = index.stats();
    assert!(
        stats.predicted >= 800 && stats.namespaces == stats.predicted,
        "{stats:?}"
    );
    assert!(index.lookup(&salted("0"), &one, NOW).is_empty());
    assert_eq!(index.lookup(&salted("4999"), &one, NOW).len(), 1);
}

#[test]
#[contract("DY4")]
fn a_target_without_a_stream_is_predicted_and_announced_blocks_are_unchanged() {
    let index = index();
    let ttl = Duration::from_secs(120);
    put(&index, 1, store(0..3));
    let speculation = index.predict(target(1), &plain(), &chain(5), NOW, ttl);
    assert_eq!(
        resident(&index, 1, &plain(), 5),
        TierBlocks {
            device: 3,
            speculative: 2,
            ..TierBlocks::default()
        }
    );
    assert_eq!(
        index.stats().predicted,
        2,
        "only blocks that are not announced"
    );
    index.apply(target(1), &remove(&[3], kv_blocks::Tier::Device));
    assert_eq!(
        resident(&index, 1, &plain(), 5).total(),
        2,
        "a removed block is not expected either"
    );
    index.retract(speculation);
    assert_eq!(index.stats().predicted, 0);
}
