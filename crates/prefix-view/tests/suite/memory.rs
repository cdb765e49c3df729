//! Bounds and lifetimes of the view in memory.

use std::sync::Arc;

use contract_id::contract;
use prefix_view::{
    BackendStats, ClearedCounts, EventKind::*, MemoryPrefixIndex, Offloading, PrefixHolders,
    PrefixIndex, RecordOutcome, StorageTier::*,
};

use crate::{
    BOTH_TIERS, TTL_S, created, event, holders, index_with_capacity, prefix, record, second,
    settings,
};

#[test]
#[contract("CK50", "CK61")]
fn more_tokens_rank_higher_and_device_memory_breaks_ties() {
    let index = MemoryPrefixIndex::new(settings(BOTH_TIERS));
    created(&index, "warm", 1, 512, second(1));
    record(&index, "warm", event(Offloaded, 1, None), second(1));
    created(&index, "hot", 1, 512, second(1));
    created(&index, "also-hot", 1, 512, second(1));
    created(&index, "less", 1, 511, second(1));
    created(&index, "most", 1, 2048, second(1));
    record(&index, "most", event(Offloaded, 1, None), second(1));
    let expected = [
        ("most", 2048, StorageWarm),
        ("also-hot", 512, GpuHot),
        ("hot", 512, GpuHot),
        ("warm", 512, StorageWarm),
        ("less", 511, GpuHot),
    ];
    assert_eq!(
        holders(&index, 1, second(1)),
        expected.map(|(name, tokens, tier)| (name.to_string(), tokens, tier))
    );
}

#[test]
fn an_empty_answer_allocates_no_memory() {
    let index = index_with_capacity(100);
    assert_eq!(index.query(&prefix(1), second(1)).unwrap().capacity(), 0);
    created(&index, "w1", 1, 64, second(1));
    assert_eq!(
        index
            .query(&prefix(1), second(1 + TTL_S))
            .unwrap()
            .capacity(),
        0
    );
}

#[test]
#[contract("CK51", "A11")]
fn a_full_view_evicts_the_least_recently_used_tenth() {
    let index = index_with_capacity(100);
    for number in 0..100 {
        created(&index, "w1", number, 64, second(1 + number));
        created(&index, "w2", number, 64, second(1 + number));
    }
    // A query and an event are uses; a query for a prefix without holders is not.
    assert_eq!(holders(&index, 3, second(101)).len(), 2);
    created(&index, "w1", 5, 64, second(101));
    assert_eq!(holders(&index, 1_000, second(101)), []);
    // More backends of a known prefix need no room.
    created(&index, "w3", 0, 64, second(1));
    assert_eq!(index.stats().prefixes, 100);

    created(&index, "w1", 100, 64, second(102));
    let gone: Vec<u64> = (0..=100)
        .filter(|number| holders(&index, *number, second(103)).is_empty())
        .collect();
    assert_eq!(gone, [0, 1, 2, 4, 6, 7, 8, 9, 10, 11]);
    let stats = index.stats();
    assert_eq!((stats.prefixes, stats.entries), (91, 181));
    assert_eq!(
        (
            stats.evicted_prefixes,
            stats.evicted_entries,
            stats.expired_entries
        ),
        (10, 21, 0)
    );
}

#[test]
#[contract("CK51")]
fn prefixes_last_used_at_the_same_moment_are_evicted_in_the_same_number() {
    let index = index_with_capacity(100);
    for number in 0..=100 {
        created(&index, "w1", number, 64, second(1));
    }
    assert_eq!(
        (index.stats().prefixes, index.stats().evicted_prefixes),
        (91, 10)
    );
}

#[test]
#[contract("CK51")]
fn expired_entries_are_evicted_before_old_ones() {
    let index = index_with_capacity(100);
    for number in 0..5 {
        created(&index, "w1", number, 64, second(1));
    }
    for number in 5..100 {
        created(&index, "w1", number, 64, second(10));
    }
    // Used last, and expired soon after.
    assert_eq!(holders(&index, 0, second(TTL_S)).len(), 1);
    created(&index, "w1", 100, 64, second(1 + TTL_S));
    let stats = index.stats();
    assert_eq!(
        (
            stats.expired_entries,
            stats.evicted_prefixes,
            stats.prefixes
        ),
        (5, 5, 91)
    );
}

#[test]
#[contract("CK51", "A11")]
fn an_entry_without_confirming_events_expires_after_its_time_to_live() {
    let index = index_with_capacity(100);
    created(&index, "w1", 1, 64, second(1));
    created(&index, "w2", 1, 64, second(2));
    assert_eq!(holders(&index, 1, second(TTL_S)).len(), 2);
    // Queries do not confirm entries.
    assert_eq!(
        holders(&index, 1, second(1 + TTL_S)),
        [("w2".to_string(), 64, GpuHot)]
    );
    // The query dropped the expired entry.
    assert_eq!(
        (index.stats().entries, index.stats().expired_entries),
        (1, 1)
    );
    created(&index, "w2", 1, 64, second(1 + TTL_S));
    assert_eq!(holders(&index, 1, second(2 * TTL_S)).len(), 1);
    assert_eq!(holders(&index, 1, second(1 + 2 * TTL_S)), []);
    assert_eq!(
        (
            index.stats().prefixes,
            index.stats().entries,
            index.stats().expired_entries
        ),
        (0, 0, 2)
    );
}

#[test]
#[contract("CK51")]
fn a_clean_up_drops_only_expired_entries() {
    let index = index_with_capacity(100);
    for number in 0..50 {
        created(&index, "w1", number, 64, second(1 + number));
        created(&index, "w2", number, 64, second(100));
    }
    assert_eq!(index.cleanup_expired(second(TTL_S)), 0);
    assert_eq!(index.cleanup_expired(second(20 + TTL_S)), 20);
    assert_eq!((index.stats().prefixes, index.stats().entries), (50, 80));
    assert_eq!(index.cleanup_expired(second(100 + TTL_S)), 80);
    let stats = index.stats();
    assert_eq!(
        (
            stats.prefixes,
            stats.entries,
            stats.expired_entries,
            stats.evicted_entries
        ),
        (0, 0, 100, 0)
    );
}

#[test]
fn a_removed_backend_is_forgotten_and_may_return() {
    let index = index_with_capacity(100);
    for number in 0..20 {
        created(&index, "w1", number, 64, second(1));
        if number % 2 == 0 {
            created(&index, "w2", number, 32, second(1));
        }
    }
    assert_eq!(index.remove_backend("w1"), Ok(20));
    assert_eq!(index.remove_backend("w1"), Ok(0));
    assert_eq!(
        holders(&index, 0, second(1)),
        [("w2".to_string(), 32, GpuHot)]
    );
    let stats = index.stats();
    assert_eq!((stats.prefixes, stats.entries), (10, 10));
    assert_eq!(
        stats
            .backends
            .iter()
            .map(|backend| &*backend.backend)
            .collect::<Vec<_>>(),
        ["w2"]
    );
    created(&index, "w1", 0, 64, second(2));
    assert_eq!(holders(&index, 0, second(2)).len(), 2);
}

#[test]
fn a_clear_removes_and_counts_every_entry() {
    let index = index_with_capacity(100);
    for number in 0..20 {
        created(&index, "w1", number, 64, second(1));
        created(&index, "w2", number, 64, second(1));
    }
    assert_eq!(
        index.clear(),
        Ok(ClearedCounts {
            prefixes: 20,
            entries: 40
        })
    );
    assert_eq!(index.clear(), Ok(ClearedCounts::default()));
    assert_eq!(holders(&index, 0, second(1)), []);
    let stats = index.stats();
    assert_eq!((stats.evicted_entries, stats.expired_entries), (0, 0));
    assert_eq!(
        (stats.backends[0].hot, stats.backends[0].events[0]),
        (0, 20)
    );
    created(&index, "w1", 0, 64, second(2));
    assert_eq!(index.stats().entries, 1);
}

#[test]
fn the_totals_count_entries_by_tier_and_events_by_kind() {
    let index = MemoryPrefixIndex::new(settings(BOTH_TIERS));
    for number in 0..3 {
        created(&index, "w1", number, 64, second(1));
    }
    created(&index, "w1", 0, 96, second(1));
    record(&index, "w1", event(Offloaded, 1, None), second(1));
    record(&index, "w1", event(Purged, 2, None), second(1));
    record(&index, "w1", event(Purged, 2, None), second(1));
    record(&index, "w2", event(Reloaded, 0, 64), second(1));
    record(&index, "w2", event(Evicted, 0, None), second(1));
    assert_eq!(holders(&index, 0, second(1)).len(), 2);
    assert_eq!(holders(&index, 2, second(1)), []);
    let stats = index.stats();
    assert_eq!(
        (
            stats.prefixes,
            stats.entries,
            stats.queries,
            stats.hits,
            stats.ignored_events
        ),
        (2, 3, 2, 1, 1)
    );
    let expected = [
        BackendStats {
            backend: Arc::from("w1"),
            events: [4, 0, 1, 0, 1],
            hot: 1,
            warm: 1,
        },
        BackendStats {
            backend: Arc::from("w2"),
            events: [0, 1, 0, 1, 0],
            hot: 0,
            warm: 1,
        },
    ];
    assert_eq!(stats.backends, expected);
}

#[test]
fn backends_beyond_the_bound_are_ignored_and_counted() {
    let index = MemoryPrefixIndex::new(settings(Offloading::Off));
    for number in 0..1024 {
        created(&index, &format!("w{number}"), 1, 64, second(1));
    }
    assert_eq!(
        record(&index, "one-more", event(Created, 1, 64), second(1)),
        RecordOutcome::Ignored
    );
    assert_eq!(
        (index.stats().entries, index.stats().ignored_events),
        (1024, 1)
    );
    index.remove_backend("w0").unwrap();
    created(&index, "one-more", 1, 64, second(1));
}

#[test]
fn all_entries_can_be_listed_part_by_part() {
    let index = index_with_capacity(100_000);
    for number in 0..500 {
        created(&index, "w1", number, 64, second(1));
        created(&index, "w2", number, 96, second(100));
    }
    created(&index, "w1", 500, 64, second(1));
    let all = |now| -> Vec<PrefixHolders> {
        (0..index.parts())
            .flat_map(|part| index.live_entries(part, now))
            .collect()
    };
    let entries = all(second(200));
    assert_eq!(entries.len(), 501);
    for entry in entries {
        let names: Vec<&str> = entry
            .holders
            .iter()
            .map(|holder| &*holder.backend)
            .collect();
        let both = entry.prefix != prefix(500);
        assert_eq!(
            names,
            if both { vec!["w2", "w1"] } else { vec!["w1"] },
            "best first"
        );
        assert_eq!(
            entry.left.as_secs(),
            if both { 500 } else { 401 },
            "as long as the last of them"
        );
    }
    // An expired entry is not held, whether it was swept or not.
    let entries = all(second(601));
    assert_eq!((entries.len(), entries[0].holders.len()), (500, 1));
    assert_eq!(all(second(700)), []);
    assert_eq!(
        (
            index.live_entries(index.parts(), second(1)),
            index.stats().queries
        ),
        (Vec::new(), 0)
    );
}
