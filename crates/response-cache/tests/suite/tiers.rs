//! Copies between the tiers.

use contract_id::contract;
use response_cache::CacheLookup;

use crate::{
    StartedCache, entry, key, redis_server::RedisServer, s3_server::S3Server, settings, start,
    until,
};

const PROMOTED: &str = "continuum_cache_promotions_total";
const DEMOTED: &str = "continuum_cache_demotions_total";

fn cache(server: &S3Server, more: &str) -> StartedCache {
    start(&format!(
        "lookup_budget: 20s, backend: tiered, l2: {{{}}}, {more}",
        server.l2()
    ))
}

fn tier(cache: &StartedCache, tier: &str, result: &str) -> f64 {
    cache.metric(&format!(
        "continuum_cache_tier_requests_total{{tier=\"{tier}\",result=\"{result}\"}}"
    ))
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CH24", "CH26")]
async fn every_reply_is_written_to_the_second_tier_and_short_ones_to_the_first_too() {
    let server = S3Server::start();
    let cache = cache(&server, "capacity: 1, l1: {max_value_size: 6}");
    for number in 1..=5 {
        cache.insert(key(number), b"sixsix");
    }
    cache.insert(key(6), b"seven..");
    until("all to be written", async || server.names().len() == 6).await;
    assert_eq!(cache.metric(DEMOTED), 1.0);
    for number in 1..=5 {
        assert_eq!(
            cache.get(&key(number)).await,
            CacheLookup::Found(entry(b"sixsix")),
            "capacity is the memory backend's"
        );
    }
    assert_eq!(
        (tier(&cache, "l1", "hit"), tier(&cache, "l1", "miss")),
        (5.0, 0.0)
    );
    assert_eq!(
        cache.get(&key(6)).await,
        CacheLookup::Found(entry(b"seven.."))
    );
    assert_eq!(cache.get(&key(7)).await, CacheLookup::NotFound);
    assert_eq!(
        (
            tier(&cache, "l1", "miss"),
            tier(&cache, "l2", "hit"),
            tier(&cache, "l2", "miss")
        ),
        (2.0, 1.0, 1.0)
    );
    assert_eq!(cache.metric(PROMOTED), 0.0, "it does not fit");
    let stats = cache.stats().await;
    assert_eq!(
        (stats.entries, stats.capacity, stats.entries_are_all),
        (5, None, false)
    );
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CH24", "CH23")]
async fn a_hit_in_the_second_tier_is_copied_to_the_first_if_configured() {
    let server = S3Server::start();
    let writer = cache(&server, "");
    for number in 1..=3 {
        writer.insert_and_find(key(number), b"answer").await;
    }
    until("all to be written", async || server.names().len() == 3).await;
    let reader = cache(
        &server,
        "tiered: {promote_on_hit: true, l1_promotion_ttl: 2s}",
    );
    reader.until_found(key(1), b"answer").await;
    assert_eq!(
        (reader.metric(PROMOTED), reader.stats().await.entries),
        (1.0, 1)
    );
    let far = tier(&reader, "l2", "hit");
    reader.until_found(key(1), b"answer").await;
    until("the copy to end before the original", async || {
        assert_eq!(
            reader.get(&key(1)).await,
            CacheLookup::Found(entry(b"answer"))
        );
        tier(&reader, "l2", "hit") > far
    })
    .await;
    let keys = format!(
        "enabled: true, lookup_budget: 20s, backend: tiered, l2: {{{}}}",
        server.l2()
    );
    reader.reconfigure(&settings(&format!(
        "{keys}, tiered: {{promote_on_hit: false}}"
    )));
    let promoted = reader.metric(PROMOTED);
    reader.until_found(key(2), b"answer").await;
    assert_eq!(
        reader.metric(PROMOTED),
        promoted,
        "copies are not configured"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CH24", "CH25")]
async fn a_copy_does_not_outlive_its_original() {
    let server = S3Server::start();
    let l2 = format!("{}, ttl_override: 4s", server.l2());
    let keys = format!(
        "lookup_budget: 20s, backend: tiered, l2: {{{l2}}}, tiered: {{l1_promotion_ttl: 1h}}"
    );
    let writer = start(&keys);
    writer.insert_and_find(key(1), b"answer").await;
    until("it to be written", async || server.names().len() == 1).await;
    let reader = start(&keys);
    reader.until_found(key(1), b"answer").await;
    assert_eq!(reader.stats().await.entries, 1);
    reader.until_removed(key(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CH24", "CH23")]
async fn a_first_tier_in_redis_gets_its_copies() {
    test_programs::require!(RedisServer);
    let (redis, server) = (RedisServer::start(), S3Server::start());
    let writer = cache(&server, "");
    writer.insert_and_find(key(1), b"answer").await;
    until("it to be written", async || server.names().len() == 1).await;
    let more = format!(
        "l1: {{type: redis}}, redis: {{url: \"{}\", command_timeout_ms: 20000}}",
        redis.url()
    );
    let reader = cache(&server, &more);
    until("redis to be seen", async || {
        !reader.absent().contains(&"redis")
    })
    .await;
    reader.until_found(key(1), b"answer").await;
    let name = format!("cr:resp:{}", key(1));
    until("the copy to be there", async || {
        redis.ask(&["EXISTS", &name]) == ["1"]
    })
    .await;
    let left: i64 = redis.ask(&["TTL", &name])[0].parse().unwrap();
    assert!((1..=300).contains(&left), "{left}");
    let far = tier(&reader, "l2", "hit");
    reader.until_found(key(1), b"answer").await;
    assert_eq!(
        (tier(&reader, "l2", "hit"), reader.metric(PROMOTED)),
        (far, 1.0)
    );
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CH14", "CH24")]
async fn a_first_tier_in_memory_has_its_own_bound_and_the_second_keeps_all() {
    let server = S3Server::start();
    let cache = cache(&server, "capacity: 2, memory_budget: 1MiB");
    for number in 0..40 {
        cache.insert(key(number), &[number; 100_000]);
    }
    until("all to be written", async || server.names().len() == 40).await;
    let stats = cache.stats().await;
    assert_eq!(stats.entries, 10, "{stats:?}");
    assert!(stats.size_bytes <= 1 << 20, "{stats:?}");
}
