//! The object store stopped, silent, slow, rejecting requests, and truncating its answers.

use std::time::Duration;

use contract_id::contract;
use net::Clock;
use response_cache::{CacheLookup, CacheSelection};

use crate::{StartedCache, key, proxy::DelayProxy, s3_server::S3Server, start, until};

fn cache_at(l2: &str) -> StartedCache {
    start(&format!(
        "backend: tiered, l1: {{max_value_size: 1000}}, l2: {{{l2}}}"
    ))
}

/// Too long for the first tier.
fn long() -> Vec<u8> {
    vec![b'x'; 100_000]
}

fn errors(cache: &StartedCache, code: &str) -> f64 {
    cache.metric(&format!("warmroute_s3_errors_total{{code=\"{code}\"}}"))
}

#[tokio::test(flavor = "multi_thread")]
#[contract("F50")]
async fn an_object_store_that_rejects_requests_is_rarely_queried_and_the_first_tier_serves() {
    let server = S3Server::start();
    for (status, code) in [
        (503, "503"),
        (500, "500"),
        (403, "403"),
        (429, "503"),
        (418, "other"),
    ] {
        let cache = cache_at(&server.l2());
        server.answer(status);
        cache.insert_and_find(key(1), b"near").await;
        until("the refusal to be counted", async || {
            errors(&cache, code) > 0.0
        })
        .await;
        let before = server.requests();
        let start = Clock::system().now();
        for _ in 0..2_000 {
            assert_eq!(cache.get(&key(9)).await, CacheLookup::NotFound);
        }
        let took = Clock::system().now().since(start);
        assert!(took < Duration::from_secs(10), "{status}: {took:?}");
        let storm = server.requests() - before;
        assert!(storm <= 10, "{status}: {storm} requests in {took:?}");
        assert_eq!(
            cache.get(&key(1)).await,
            CacheLookup::Found(crate::entry(b"near"))
        );
        let fault = cache.clear(CacheSelection::ALL).await.unwrap_err();
        assert!(
            !fault.to_string().contains("AKIASECRET"),
            "what it quotes is not passed on: {fault}"
        );
        server.recover();
        until("it to be used again", async || {
            cache.insert(key(2), &long());
            cache.get(&key(2)).await != CacheLookup::NotFound
        })
        .await;
        assert!(cache.clear(CacheSelection::ALL).await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("F50", "F48")]
async fn a_stopped_object_store_costs_nothing_and_is_used_again_when_it_returns() {
    let mut server = S3Server::start();
    let cache = cache_at(&server.l2());
    cache.insert(key(1), &long());
    cache.until_found(key(1), &long()).await;
    server.stop();
    until("the loss to be counted", async || {
        assert_ne!(
            cache.get(&key(1)).await,
            CacheLookup::Unavailable,
            "the first tier was queried"
        );
        errors(&cache, "connection") > 0.0
    })
    .await;
    cache.insert_and_find(key(2), b"near").await;
    server.start_again();
    cache.until_found(key(1), &long()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("F50", "F44", "G6")]
async fn a_hanging_object_store_delays_only_one_lookup() {
    let server = S3Server::start();
    let cache = cache_at(&server.l2());
    cache.insert(key(1), &long());
    cache.until_found(key(1), &long()).await;
    let before = cache.metric("warmroute_cache_lookups_abandoned_total");
    server.hang();
    let start = Clock::system().now();
    for _ in 0..500 {
        assert_eq!(cache.get(&key(1)).await, CacheLookup::NotFound);
    }
    assert!(
        Clock::system().now().since(start) < Duration::from_secs(15),
        "each alone would take 50 ms"
    );
    // One lookup, and a second if an answer from before the silence arrived in between.
    let waited = cache.metric("warmroute_cache_lookups_abandoned_total") - before;
    assert!((1.0..=3.0).contains(&waited), "{waited}");
    until("it to be given up", async || {
        errors(&cache, "timeout") > 0.0
    })
    .await;
    server.recover();
    cache.until_found(key(1), &long()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("F44", "CH24")]
async fn a_late_answer_of_a_slow_object_store_serves_later_lookups() {
    let server = S3Server::start();
    let proxy = DelayProxy::start(server.port());
    let cache = cache_at(&server.l2_at(proxy.port()));
    // Written by another router.
    let other = cache_at(&server.l2());
    other.insert(key(1), b"near");
    until("it to be there", async || server.names().len() == 1).await;
    proxy.delay(Duration::from_millis(200));
    assert_eq!(cache.get(&key(1)).await, CacheLookup::NotFound);
    assert_eq!(cache.metric("warmroute_cache_lookups_abandoned_total"), 1.0);
    cache.until_found(key(1), b"near").await;
    assert!(cache.metric("continuum_cache_promotions_total") >= 1.0);
    assert_eq!(
        cache.metric("continuum_cache_tier_requests_total{tier=\"l1\",result=\"hit\"}"),
        1.0
    );
}

#[tokio::test(flavor = "multi_thread")]
#[contract("F51")]
async fn a_truncated_answer_is_a_miss_and_its_object_is_removed() {
    let server = S3Server::start();
    let proxy = DelayProxy::start(server.port());
    let keys = format!(
        "lookup_budget: 20s, backend: tiered, l1: {{max_value_size: 1}}, l2: {{{}}}",
        server.l2_at(proxy.port())
    );
    let cache = start(&keys);
    cache.insert_and_find(key(1), &long()).await;
    proxy.cut_after(3_000);
    assert_eq!(cache.get(&key(1)).await, CacheLookup::NotFound);
    assert_eq!(errors(&cache, "corrupt"), 1.0);
    proxy.cut_after(0);
    until("the object to be gone", async || {
        cache.get(&key(1)).await == CacheLookup::NotFound && server.names().is_empty()
    })
    .await;
    cache.insert_and_find(key(1), &long()).await;
}
