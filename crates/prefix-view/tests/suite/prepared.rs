//! At most one query per prefix in 100 ms, and no failed query fails a request.

use std::{sync::Arc, time::Duration};

use contract_id::contract;
use kv_blocks::Moment;
use prefix_view::{
    ClearedCounts, Holder, PrefixEvent, PrefixHash, PrefixIndex, QueryCache, RecordOutcome,
    Unavailable, ViewStats,
};

use crate::{created, index_with_capacity, prefix};

fn ms(milliseconds: u64) -> Moment {
    Moment::at(Duration::from_millis(milliseconds))
}

#[test]
#[contract("CK63")]
fn an_answer_is_reused_for_100_ms() {
    let (index, prepared) = (index_with_capacity(100), QueryCache::default());
    created(&index, "w1", 1, 64, ms(0));
    assert_eq!(prepared.prepare(&index, &prefix(1), ms(1_000)).len(), 1);
    created(&index, "w2", 1, 64, ms(1_001));
    for later in [1_001, 1_050, 1_099] {
        assert_eq!(prepared.prepare(&index, &prefix(1), ms(later)).len(), 1);
    }
    assert_eq!(index.stats().queries, 1);
    // Another prefix is another query.
    assert_eq!(prepared.prepare(&index, &prefix(2), ms(1_050)).len(), 0);
    assert_eq!(prepared.prepare(&index, &prefix(2), ms(1_051)).len(), 0);
    assert_eq!(index.stats().queries, 2);
    assert_eq!(prepared.prepare(&index, &prefix(1), ms(1_100)).len(), 2);
    assert_eq!(index.stats().queries, 3);
}

#[test]
#[contract("CK63")]
fn concurrent_requests_share_one_query() {
    let (index, prepared) = (index_with_capacity(100), QueryCache::default());
    created(&index, "w1", 1, 64, ms(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for step in 0..1_000 {
                    assert_eq!(
                        prepared
                            .prepare(&index, &prefix(1), ms(1_000 + step % 100))
                            .len(),
                        1
                    );
                }
            });
        }
    });
    assert_eq!(index.stats().queries, 1);
}

#[test]
fn prefixes_beyond_the_capacity_of_the_query_cache_are_answered() {
    let (index, prepared) = (index_with_capacity(100), QueryCache::default());
    for number in 0..100 {
        created(&index, "w1", number, 64, ms(0));
    }
    for number in 0..20_000 {
        assert_eq!(
            prepared.prepare(&index, &prefix(number), ms(1)).len(),
            usize::from(number < 100),
            "{number}"
        );
    }
}

/// A view on another machine that does not answer.
#[derive(Debug)]
struct UnreachableView;

fn unavailable<T>() -> Result<T, Unavailable> {
    Err(Unavailable {
        reason: "connection refused".to_string(),
    })
}

impl PrefixIndex for UnreachableView {
    fn record(
        &self,
        _: &Arc<str>,
        _: &PrefixEvent,
        _: Moment,
    ) -> Result<RecordOutcome, Unavailable> {
        unavailable()
    }

    fn query(&self, _: &PrefixHash, _: Moment) -> Result<Vec<Holder>, Unavailable> {
        unavailable()
    }

    fn remove_backend(&self, _: &str) -> Result<u64, Unavailable> {
        unavailable()
    }

    fn clear(&self) -> Result<ClearedCounts, Unavailable> {
        unavailable()
    }

    fn cleanup_expired(&self, _: Moment) -> u64 {
        0
    }

    fn stats(&self) -> ViewStats {
        ViewStats::default()
    }
}

#[test]
#[contract("CK65")]
fn an_unavailable_view_has_no_holders_and_is_not_queried_for_every_request() {
    let prepared = QueryCache::default();
    for now in [0, 50, 99] {
        assert!(
            prepared
                .prepare(&UnreachableView, &prefix(1), ms(now))
                .is_empty()
        );
    }
    assert_eq!(prepared.failures(), 1);
    // The view answers again.
    let index = index_with_capacity(100);
    created(&index, "w1", 1, 640, ms(0));
    assert_eq!(prepared.prepare(&index, &prefix(1), ms(100)).len(), 1);
}

#[test]
#[contract("CK63")]
fn a_slow_answer_is_reused_as_long_as_any_other() {
    let (index, prepared) = (index_with_capacity(100), QueryCache::default());
    assert_eq!(prepared.cached(&prefix(1), ms(1_000)), None);
    let holder = Holder {
        backend: Arc::from("w1"),
        tokens: 64,
        tier: prefix_view::StorageTier::GpuHot,
    };
    prepared.keep(&prefix(1), [holder].into(), ms(1_000));
    for later in [1_000, 1_099] {
        assert_eq!(
            prepared
                .cached(&prefix(1), ms(later))
                .map(|holders| holders.len()),
            Some(1)
        );
        assert_eq!(prepared.prepare(&index, &prefix(1), ms(later)).len(), 1);
    }
    assert_eq!(prepared.cached(&prefix(1), ms(1_100)), None);
    assert_eq!(index.stats().queries, 0);
    // The number of stored answers is bounded.
    for number in 0..20_000 {
        prepared.keep(&prefix(number), Arc::default(), ms(2_000));
        assert!(prepared.cached(&prefix(number), ms(2_000)).is_some());
    }
}
