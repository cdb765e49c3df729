//! The contract of every store: one suite for all backends.

use contract_id::contract;
use response_cache::{CacheKey, CacheLookup, CacheScope, CacheSelection};

use crate::{
    StartedCache, entry, key, key_of, redis_server::RedisServer, s3_server::S3Server, settings,
    start, until,
};

/// Prevents a busy machine from looking like a slow store.
const UNHURRIED: &str = "lookup_budget: 20s";

async fn fulfils_the_store_contract(cache: StartedCache, keys: &str) {
    // A stored reply is found unchanged, whatever its bytes are, and no other is found.
    let long: Vec<u8> = (0..2_000_000_u32)
        .map(|number| number.to_le_bytes()[number as usize % 3])
        .collect();
    for (number, body) in [
        (1, &b"answer"[..]),
        (2, b""),
        (3, b"\r\n$-1\r\n\0\xff"),
        (4, &long),
    ] {
        cache.insert_and_find(key(number), body).await;
    }
    assert_eq!(cache.get(&key(9)).await, CacheLookup::NotFound);
    assert_eq!(
        cache.get(&key(1)).await,
        CacheLookup::Found(entry(b"answer"))
    );

    // A new reply under the same key replaces it.
    cache.insert(key(1), b"another");
    cache.until_found(key(1), b"another").await;

    // A removal affects only its key.
    cache.remove(&key(1));
    cache.until_removed(key(1)).await;
    assert_eq!(cache.get(&key(2)).await, CacheLookup::Found(entry(b"")));

    // A reply above the size limit is not stored.
    let dropped = cache.metric("warmroute_cache_writes_dropped_total");
    cache.insert(key(5), &vec![b'x'; 10_485_761]);
    assert_eq!(
        cache.metric("warmroute_cache_writes_dropped_total"),
        dropped + 1.0
    );
    assert_eq!(cache.get(&key(5)).await, CacheLookup::NotFound);

    // A clear removes and counts all, and rejects replies that were begun before it.
    let before = cache.generation();
    assert_eq!(cache.clear(CacheSelection::ALL).await, Ok(3));
    for number in 2..=4 {
        assert_eq!(
            cache.get(&key(number)).await,
            CacheLookup::NotFound,
            "{number}"
        );
    }
    cache.put(key(6), entry(b"of before"), before, ());
    cache.insert_and_find(key(7), b"of after").await;
    assert_eq!(
        cache.get(&key(6)).await,
        CacheLookup::NotFound,
        "its write came before that of the found one"
    );
    assert_eq!(cache.clear(CacheSelection::ALL).await, Ok(1));
    assert_eq!(cache.clear(CacheSelection::ALL).await, Ok(0));

    // A clear of a tenant or model removes its entries alone, and no reply that was begun before it
    // comes back.
    let scopes = [("a", "m"), ("a", "n"), ("b", "m"), ("b", "n")];
    for (number, (tenant, model)) in (10..).zip(scopes) {
        cache
            .insert_and_find(key_of(tenant, model, number), b"scoped")
            .await;
    }
    let before = cache.generation();
    let left = async |numbers: &[u8]| {
        for (number, (tenant, model)) in (10..).zip(scopes) {
            let found = cache.get(&key_of(tenant, model, number)).await;
            let is_left = found == CacheLookup::Found(entry(b"scoped"));
            assert_eq!(is_left, numbers.contains(&number), "{tenant} {model}");
        }
    };
    for nobody in [
        CacheSelection::of(Some("*"), None),
        CacheSelection::of(Some("m"), Some("a")),
        CacheSelection::of(None, Some("[mn]")),
    ] {
        assert_eq!(cache.clear(nobody).await, Ok(0));
    }
    left(&[10, 11, 12, 13]).await;
    let one = CacheSelection::of(Some("a"), Some("n"));
    assert_eq!(cache.clear(one).await, Ok(1));
    left(&[10, 12, 13]).await;
    assert_eq!(
        cache.clear(CacheSelection::of(Some("b"), None)).await,
        Ok(2)
    );
    left(&[10]).await;
    cache.put(key_of("b", "m", 12), entry(b"scoped"), before, ());
    cache.insert_and_find(key(14), b"of after").await;
    left(&[10]).await;
    assert_eq!(
        cache.clear(CacheSelection::of(None, Some("m"))).await,
        Ok(2)
    );
    left(&[]).await;

    // An entry expires.
    cache.reconfigure(&settings(&format!("enabled: true, ttl: 4s, {keys}")));
    cache.insert_and_find(key(8), b"short").await;
    cache.until_removed(key(8)).await;

    let stats = cache.stats().await;
    assert!(stats.enabled);
    assert!(!stats.entries_are_all || stats.entries == 0, "{stats:?}");
    cache.stop().await;
    assert_eq!(cache.get(&key(7)).await, CacheLookup::Unavailable);
    cache.insert(key(7), b"of nobody");
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK31", "S48", "CK25", "F47")]
async fn memory_fulfils_the_store_contract() {
    fulfils_the_store_contract(start(UNHURRIED), UNHURRIED).await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK31", "CK34", "CH21", "S48", "CK25", "F47")]
async fn redis_fulfils_the_store_contract_with_and_without_fallback() {
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
        fulfils_the_store_contract(cache, &keys).await;
        assert_eq!(server.ask(&["DBSIZE"]), ["0"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK31", "CK35", "CK36", "F41")]
async fn the_redis_fallback_fulfils_the_store_contract_except_for_clear() {
    test_programs::require!(RedisServer);
    let mut server = RedisServer::start();
    server.kill();
    let keys = format!(
        "{UNHURRIED}, backend: redis, redis: {{url: \"{}\"}}",
        server.url()
    );
    let cache = start(&keys);
    cache.insert_and_find(key(1), b"answer").await;
    cache.insert_and_find(key(2), b"").await;
    assert_eq!(cache.get(&key(9)).await, CacheLookup::NotFound);
    cache.insert(key(1), b"another");
    cache.until_found(key(1), b"another").await;
    cache.remove(&key(1));
    cache.until_removed(key(1)).await;
    let before = cache.generation();
    let fault = cache.clear(CacheSelection::ALL).await.unwrap_err();
    assert_eq!(
        (fault.store, fault.outage),
        ("redis", true),
        "entries in it may come back"
    );
    assert_eq!(
        cache.get(&key(2)).await,
        CacheLookup::NotFound,
        "memory is clear"
    );
    cache.put(key(3), entry(b"of before"), before, ());
    cache.insert_and_find(key(4), b"of after").await;
    assert_eq!(cache.get(&key(3)).await, CacheLookup::NotFound);
    cache.reconfigure(&settings(&format!("enabled: true, ttl: 4s, {keys}")));
    cache.insert_and_find(key(5), b"short").await;
    cache.until_removed(key(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK31", "CH23", "CH24", "S48")]
async fn an_object_store_fulfils_the_store_contract_alone_and_behind_memory() {
    for l1 in ["max_value_size: 1", "max_value_size: 1048576"] {
        let server = S3Server::start();
        let keys = format!(
            "{UNHURRIED}, backend: tiered, l1: {{{l1}}}, l2: {{{}}}",
            server.l2()
        );
        fulfils_the_store_contract(start(&keys), &keys).await;
        assert_eq!(server.names(), [""; 0], "{l1}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK31", "CH23", "CH24", "S48")]
async fn an_object_store_fulfils_the_store_contract_behind_redis() {
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
    fulfils_the_store_contract(cache, &keys).await;
    assert_eq!(
        (redis.ask(&["DBSIZE"]), s3.names()),
        (vec!["0".to_owned()], Vec::new())
    );
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK28")]
async fn every_bit_of_a_key_is_significant() {
    let cache = start(UNHURRIED);
    cache.insert_and_find(key(0), b"of one tenant").await;
    for bit in 0..256 {
        let mut digest = [0; 32];
        digest[bit / 8] ^= 1 << (bit % 8);
        let other = CacheKey::new(CacheScope::of("default", "m"), digest);
        assert_eq!(cache.get(&other).await, CacheLookup::NotFound, "bit {bit}");
    }
}
