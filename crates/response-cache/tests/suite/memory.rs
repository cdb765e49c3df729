//! Replies in memory, and changes at run time.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use contract_id::contract;
use response_cache::{CacheLookup, CacheResult, CacheSelection, CacheStartError, Relief};

use crate::{entry, key, settings, start, try_start};

#[tokio::test]
#[contract("CK79")]
async fn a_reply_in_memory_is_found_without_waiting() {
    let cache = start("capacity: 10");
    cache.insert(key(1), b"answer");
    let one = key(1);
    let mut get = pin!(cache.get(&one));
    assert_eq!(
        get.as_mut().poll(&mut Context::from_waker(Waker::noop())),
        Poll::Ready(CacheLookup::Found(entry(b"answer")))
    );
}

#[tokio::test]
#[contract("CK30", "CH14", "CK23")]
async fn at_capacity_the_least_recently_used_reply_is_evicted() {
    let cache = start("capacity: 3");
    for number in 1..=3 {
        cache.insert(key(number), b"answer");
    }
    assert_ne!(cache.get(&key(1)).await, CacheLookup::NotFound);
    cache.insert(key(4), b"answer");
    cache.insert(key(5), b"answer");
    let mut there = Vec::new();
    for number in 1..=5 {
        if cache.get(&key(number)).await != CacheLookup::NotFound {
            there.push(number);
        }
    }
    assert_eq!(there, [1, 4, 5]);
    let stats = cache.stats().await;
    assert_eq!(
        (stats.entries, stats.capacity, stats.evictions),
        (3, Some(3), 2)
    );
    assert!(stats.entries_are_all && stats.size_bytes > 18);
    assert_eq!(
        cache.metric("continuum_response_cache_evictions_total"),
        2.0
    );
}

#[tokio::test]
#[contract("CK22", "CH14")]
async fn a_disabled_cache_neither_finds_nor_stores_until_it_is_enabled() {
    let cache = try_start("enabled: false").unwrap();
    cache.insert(key(1), b"answer");
    assert_eq!(cache.get(&key(1)).await, CacheLookup::Unavailable);
    assert_eq!(cache.clear(CacheSelection::ALL).await, Ok(0));
    assert!(!cache.settings().enabled);
    cache.reconfigure(&settings("enabled: true"));
    assert_eq!(cache.get(&key(1)).await, CacheLookup::NotFound);
    cache.insert(key(1), b"answer");
    assert_eq!(
        cache.get(&key(1)).await,
        CacheLookup::Found(entry(b"answer"))
    );
    cache.reconfigure(&settings("enabled: false"));
    assert_eq!(cache.get(&key(1)).await, CacheLookup::Unavailable);
    cache.reconfigure(&settings("enabled: true"));
    assert_eq!(
        cache.get(&key(1)).await,
        CacheLookup::NotFound,
        "its entries are removed with it"
    );
}

#[tokio::test]
#[contract("CK22")]
async fn changed_settings_apply_at_once_and_the_backend_stays() {
    let cache = start("capacity: 10");
    (0..10).for_each(|number| cache.insert(key(number), b"answer"));
    cache.reconfigure(&settings(
        "enabled: true, capacity: 4, ttl: 1m, lookup_budget: 9ms, backend: redis, redis: {url: \"redis://127.0.0.1:1\"}",
    ));
    let stats = cache.stats().await;
    assert_eq!(
        (stats.entries, stats.capacity, stats.evictions),
        (4, Some(4), 6)
    );
    assert_eq!((stats.backend_type, stats.redis), ("memory", None));
    let now = cache.settings();
    assert_eq!(now.backend, config::CacheBackend::Memory);
    assert_eq!((now.ttl.as_secs(), now.lookup_budget.as_millis()), (60, 9));
    assert_ne!(
        cache.get(&key(9)).await,
        CacheLookup::NotFound,
        "the last ones are there"
    );
}

#[tokio::test]
async fn bytes_are_bounded_as_well_as_entries() {
    let cache = start("capacity: 1000000, memory_budget: 1MiB");
    for number in 0..40 {
        cache.insert(key(number), &[number; 100_000]);
    }
    let stats = cache.stats().await;
    assert_eq!(stats.entries, 10);
    assert!(stats.size_bytes <= 1 << 20, "{stats:?}");
    assert_eq!(
        cache.metric("continuum_response_cache_size_bytes"),
        stats.size_bytes as f64
    );
}

#[tokio::test]
#[contract("F75")]
async fn under_memory_pressure_half_is_evicted_and_then_writes_stop() {
    let cache = start("capacity: 100");
    (0..100).for_each(|number| cache.insert(key(number), b"answer"));
    cache.relieve(Relief::Shrink);
    assert_eq!(cache.stats().await.entries, 50);
    cache.insert(key(200), b"answer");
    assert_eq!(cache.stats().await.entries, 50, "each new entry evicts one");
    cache.relieve(Relief::StopWrites);
    cache.insert(key(201), b"answer");
    assert_eq!(cache.get(&key(201)).await, CacheLookup::NotFound);
    assert_ne!(
        cache.get(&key(200)).await,
        CacheLookup::NotFound,
        "present entries are still used"
    );
    assert_eq!(cache.metric("warmroute_cache_writes_dropped_total"), 1.0);
    cache.relieve(Relief::Nothing);
    (0..100).for_each(|number| cache.insert(key(number), b"answer"));
    assert_eq!(cache.stats().await.entries, 100);
}

#[tokio::test]
#[contract("CK68")]
async fn outcomes_are_counted_and_the_hit_rate_is_hits_per_lookup() {
    let cache = start("capacity: 1");
    for (what, count) in [
        (CacheResult::Hit, 3),
        (CacheResult::Miss, 1),
        (CacheResult::Skip, 5),
    ] {
        (0..count).for_each(|_| cache.record_result(what));
    }
    let stats = cache.stats().await;
    assert_eq!(
        (stats.hits, stats.misses, stats.skips, stats.hit_rate),
        (3, 1, 5, 0.75)
    );
    assert_eq!(cache.metric("continuum_response_cache_hit_rate"), 0.75);
    assert_eq!(
        cache.metric("continuum_response_cache_requests_total{result=\"skip\"}"),
        5.0
    );
}

#[tokio::test]
#[contract("CH22")]
async fn an_unavailable_backend_is_an_error_at_the_start() {
    let redis = settings("enabled: true, backend: redis, redis: {url: \"redis://127.0.0.1:1\"}");
    let clock = net::Clock::system();
    let error = response_cache::ResponseCache::start(&redis, None, clock, &mut Default::default())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "response_cache needs a Redis server, and there is none: set response_cache.redis.url and start again"
    );
    for endpoint in ["http://me:pass@s3", "http://s3/path", "https://s3?x=y"] {
        let wrong =
            format!("enabled: true, backend: tiered, l2: {{endpoint: \"{endpoint}\", bucket: b}}");
        let error = try_start(&wrong).err().unwrap();
        assert!(
            matches!(
                error,
                CacheStartError::Unusable {
                    key: "response_cache.l2.endpoint",
                    ..
                }
            ),
            "{error}"
        );
        assert!(!error.to_string().contains("pass"), "{error}");
    }
}
