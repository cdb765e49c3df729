//! What every store promises: one suite, and every way of keeping replies.

use contract_id::contract;
use response_cache::CacheLookup;

use crate::{
    StartedCache, entry, key, redis_server::RedisServer, s3_server::S3Server, settings, start,
    until,
};

/// So that a machine that has much to do does not look like a slow store.
const UNHURRIED: &str = "lookup_budget: 20s";

async fn keeps_its_promises(cache: StartedCache, keys: &str) {
    // What was kept is found as it was, whatever its bytes are, and nothing else is.
    let long: Vec<u8> = (0..2_000_000_u32)
        .map(|number| number.to_le_bytes()[number as usize % 3])
        .collect();
    for (number, body) in [
        (1, &b"answer"[..]),
        (2, b""),
        (3, b"\r\n$-1\r\n\0\xff"),
        (4, &long),
    ] {
        cache.kept(key(number), body).await;
    }
    assert_eq!(cache.get(&key(9)).await, CacheLookup::NotFound);
    assert_eq!(
        cache.get(&key(1)).await,
        CacheLookup::Found(entry(b"answer"))
    );

    // Another under the same key takes its place.
    cache.keep(key(1), b"another");
    cache.until_found(key(1), b"another").await;

    // One goes alone.
    cache.remove(&key(1));
    cache.until_gone(key(1)).await;
    assert_eq!(cache.get(&key(2)).await, CacheLookup::Found(entry(b"")));

    // What is longer than anything may be is not kept.
    let dropped = cache.metric("warmroute_cache_writes_dropped_total");
    cache.keep(key(5), &vec![b'x'; 10_485_761]);
    assert_eq!(
        cache.metric("warmroute_cache_writes_dropped_total"),
        dropped + 1.0
    );
    assert_eq!(cache.get(&key(5)).await, CacheLookup::NotFound);

    // A clear takes all, says how many, and keeps what was begun before it from coming back.
    let before = cache.generation();
    assert_eq!(cache.clear().await, Ok(3));
    for number in 2..=4 {
        assert_eq!(
            cache.get(&key(number)).await,
            CacheLookup::NotFound,
            "{number}"
        );
    }
    cache.put(key(6), entry(b"of before"), before, ());
    cache.kept(key(7), b"of after").await;
    assert_eq!(
        cache.get(&key(6)).await,
        CacheLookup::NotFound,
        "it was to be written before the one that is found"
    );
    assert_eq!(cache.clear().await, Ok(1));
    assert_eq!(cache.clear().await, Ok(0));

    // An entry ends.
    cache.reconfigure(&settings(&format!("enabled: true, ttl: 4s, {keys}")));
    cache.kept(key(8), b"short").await;
    cache.until_gone(key(8)).await;

    let stats = cache.stats().await;
    assert!(stats.enabled);
    assert!(!stats.entries_are_all || stats.entries == 0, "{stats:?}");
    cache.stop().await;
    assert_eq!(cache.get(&key(7)).await, CacheLookup::Unavailable);
    cache.keep(key(7), b"of nobody");
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK31", "S48", "CK25", "F47")]
async fn memory_keeps_its_promises() {
    keeps_its_promises(start(UNHURRIED), UNHURRIED).await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK31", "CK34", "CH21", "S48", "CK25", "F47")]
async fn redis_keeps_its_promises_with_memory_to_stand_in_and_without() {
    test_programs::require!(RedisServer);
    for fallback in ["true", "false"] {
        let server = RedisServer::start();
        let keys = format!(
            "{UNHURRIED}, backend: redis, redis: {{url: \"{}\", command_timeout_ms: 20000, fallback_to_memory: {fallback}}}",
            server.url()
        );
        let cache = start(&keys);
        until("redis to be seen", async || {
            !cache.absent().contains(&"redis")
        })
        .await;
        keeps_its_promises(cache, &keys).await;
        assert_eq!(server.ask(&["DBSIZE"]), ["0"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK31", "CK35", "CK36", "F41")]
async fn what_stands_in_for_redis_keeps_the_same_promises_but_that_of_a_clear() {
    test_programs::require!(RedisServer);
    let mut server = RedisServer::start();
    server.kill();
    let keys = format!(
        "{UNHURRIED}, backend: redis, redis: {{url: \"{}\"}}",
        server.url()
    );
    let cache = start(&keys);
    cache.kept(key(1), b"answer").await;
    cache.kept(key(2), b"").await;
    assert_eq!(cache.get(&key(9)).await, CacheLookup::NotFound);
    cache.keep(key(1), b"another");
    cache.until_found(key(1), b"another").await;
    cache.remove(&key(1));
    cache.until_gone(key(1)).await;
    let before = cache.generation();
    let fault = cache.clear().await.unwrap_err();
    assert_eq!(
        (fault.store, fault.outage),
        ("redis", true),
        "what lies there may come back"
    );
    assert_eq!(
        cache.get(&key(2)).await,
        CacheLookup::NotFound,
        "memory is clear"
    );
    cache.put(key(3), entry(b"of before"), before, ());
    cache.kept(key(4), b"of after").await;
    assert_eq!(cache.get(&key(3)).await, CacheLookup::NotFound);
    cache.reconfigure(&settings(&format!("enabled: true, ttl: 4s, {keys}")));
    cache.kept(key(5), b"short").await;
    cache.until_gone(key(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK31", "CH23", "CH24", "S48")]
async fn an_object_store_keeps_its_promises_alone_and_behind_memory() {
    for l1 in ["max_value_size: 1", "max_value_size: 1048576"] {
        let server = S3Server::start();
        let keys = format!(
            "{UNHURRIED}, backend: tiered, l1: {{{l1}}}, l2: {{{}}}",
            server.l2()
        );
        keeps_its_promises(start(&keys), &keys).await;
        assert_eq!(server.names(), [""; 0], "{l1}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK31", "CH23", "CH24", "S48")]
async fn an_object_store_keeps_its_promises_behind_redis() {
    test_programs::require!(RedisServer);
    let (redis, s3) = (RedisServer::start(), S3Server::start());
    let keys = format!(
        "{UNHURRIED}, backend: tiered, l1: {{type: redis}}, redis: {{url: \"{}\", command_timeout_ms: 20000}}, l2: {{{}}}",
        redis.url(),
        s3.l2()
    );
    let cache = start(&keys);
    until("redis to be seen", async || {
        !cache.absent().contains(&"redis")
    })
    .await;
    keeps_its_promises(cache, &keys).await;
    assert_eq!(
        (redis.ask(&["DBSIZE"]), s3.names()),
        (vec!["0".to_owned()], Vec::new())
    );
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK28")]
async fn every_bit_of_a_key_counts() {
    let cache = start(UNHURRIED);
    cache.kept(key(0), b"of one tenant").await;
    for bit in 0..256 {
        let mut other = key(0);
        other.0[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(cache.get(&other).await, CacheLookup::NotFound, "bit {bit}");
    }
}
