//! Replies in Redis, seen by a raw protocol client.

use contract_id::contract;
use net::Clock;
use prefix_view::{EventKind, Offloading, PrefixEvent, PrefixHash, PrefixIndex, ViewSettings};
use redis_store::{RedisPrefixIndex, SharedView};
use response_cache::{CacheLookup, CacheSelection};

use crate::{StartedCache, key, redis_server::RedisServer, start, until};

/// A cache of one router, with `more` keys in its section.
async fn router(server: &RedisServer, more: &str) -> StartedCache {
    let cache = start(&format!(
        "lookup_budget: 20s, backend: redis, redis: {{url: \"{}\", command_timeout_ms: 20000}}, {more}",
        server.url()
    ));
    until("redis to be seen", async || {
        !cache.absent().contains(&"redis")
    })
    .await;
    cache
}

fn name(number: u8) -> String {
    format!("cr:resp:{}", key(number))
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK34", "CK30", "CH14", "CK33")]
async fn a_reply_is_a_string_under_prefix_and_hex_that_expires() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let cache = router(&server, "capacity: 1, ttl: 90s").await;
    for number in 1..=3 {
        cache.insert_and_find(key(number), b"answer").await;
    }
    for number in 1..=3 {
        assert_eq!(server.ask(&["TYPE", &name(number)]), ["string"]);
        let left: i64 = server.ask(&["TTL", &name(number)])[0].parse().unwrap();
        assert!((1..=90).contains(&left), "{left}");
    }
    assert_eq!(server.ask(&["DBSIZE"]), ["3"], "capacity is memory's");
    assert_eq!(
        cache.get(&key(1)).await,
        CacheLookup::Found(crate::entry(b"answer"))
    );
    let own = start(&format!(
        "backend: redis, redis: {{url: \"{}\", key_prefix: \"mine:\"}}",
        server.url()
    ));
    until("redis to be seen", async || {
        !own.absent().contains(&"redis")
    })
    .await;
    own.insert(key(4), b"answer");
    until("the key to be there", async || {
        server.ask(&["EXISTS", &format!("mine:{}", key(4))]) == ["1"]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK31", "CK33")]
async fn routers_with_a_shared_server_and_key_find_each_others_replies() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let one = router(&server, "mac_key: fleet").await;
    let other = router(&server, "mac_key: fleet").await;
    one.insert_and_find(key(1), b"of one").await;
    other.until_found(key(1), b"of one").await;
    other.insert_and_find(key(2), b"of the other").await;
    one.until_found(key(2), b"of the other").await;
    assert_eq!(one.clear(CacheSelection::ALL).await, Ok(2));
    other.until_removed(key(1)).await;
    assert_eq!(one.metric("warmroute_cache_auth_failures_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
#[contract("S46", "F46")]
async fn an_altered_moved_or_forged_reply_is_not_used_and_is_removed() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let cache = router(&server, "mac_key: fleet").await;
    cache.insert_and_find(key(1), b"the right answer").await;
    let failures = || cache.metric("warmroute_cache_auth_failures_total");
    // Moved to the key of another request.
    server.ask(&["COPY", &name(1), &name(2)]);
    assert_eq!(cache.get(&key(2)).await, CacheLookup::NotFound);
    assert_eq!(
        (server.ask(&["EXISTS", &name(2)]), failures()),
        (vec!["0".to_owned()], 1.0)
    );
    assert_eq!(cache.get(&key(2)).await, CacheLookup::NotFound);
    assert_eq!(failures(), 1.0, "it is gone");
    // Altered at one position, truncated, extended.
    for change in [
        &["SETRANGE", "49", "w"][..],
        &["SETRANGE", "0", "2"],
        &["APPEND", "more"],
    ] {
        let named = name(1);
        let words = [&change[..1], &[named.as_str()], &change[1..]].concat();
        server.ask(&words);
        let before = failures();
        assert_eq!(
            cache.get(&key(1)).await,
            CacheLookup::NotFound,
            "{change:?}"
        );
        assert_eq!(
            (server.ask(&["EXISTS", &name(1)]), failures()),
            (vec!["0".to_owned()], before + 1.0),
            "{change:?}"
        );
        cache.insert_and_find(key(1), b"the right answer").await;
    }
    // Forged with the right form and without the key.
    let stranger = router(&server, "mac_key: other").await;
    stranger.insert(key(3), b"a wrong answer");
    until("the forgery to be there", async || {
        server.ask(&["EXISTS", &name(3)]) == ["1"]
    })
    .await;
    assert_eq!(cache.get(&key(3)).await, CacheLookup::NotFound);
    server.ask(&["SET", &name(4), "anything"]);
    server.ask(&["SET", &name(5), ""]);
    for number in [4, 5] {
        assert_eq!(cache.get(&key(number)).await, CacheLookup::NotFound);
    }
    cache.until_found(key(1), b"the right answer").await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CH21", "S48", "CK33")]
async fn a_clear_removes_only_replies_of_its_prefix() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let cache = router(&server, "").await;
    let others = [
        "cr:kvidx:0000000000000001",
        "cr:resp",
        "cr:resp:",
        "cr:resp:notes",
        "another",
        "cr:respond:x",
    ];
    for other in others {
        server.ask(&["SET", other, "theirs"]);
    }
    for number in 0..250 {
        cache.insert(key(number), b"answer");
    }
    until("all to be written", async || {
        server.ask(&["DBSIZE"]) == ["256"]
    })
    .await;
    assert_eq!(cache.clear(CacheSelection::ALL).await, Ok(250));
    assert_eq!(server.ask(&["DBSIZE"]), ["6"]);
    for other in others {
        assert_eq!(server.ask(&["GET", other]), ["theirs"], "{other}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK39", "CK33")]
async fn replies_and_the_prefix_view_share_one_pool_and_neither_starves_the_other() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let cache = router(&server, "").await;
    let pool = cache.pool.clone().unwrap();
    let clock = Clock::system();
    let view = RedisPrefixIndex::start(SharedView {
        pool,
        settings: ViewSettings {
            offloading: Offloading::Off,
            ..ViewSettings::default()
        },
        backends: vec!["w1".into()],
        permits: 4,
        clock,
    });
    let prefix = PrefixHash::Sequence(kv_blocks::SequenceHash(1));
    let event = PrefixEvent {
        kind: EventKind::Created,
        prefix,
        token_count: Some(64),
    };
    view.record(&"w1".into(), &event, clock.now()).unwrap();
    // Enough concurrent lookups to occupy every connection without a bound.
    let looks = (0..200).map(|number| {
        let cache = std::sync::Arc::clone(&cache.cache);
        tokio::spawn(async move { cache.get(&key(number)).await })
    });
    let looks: Vec<_> = looks.collect();
    until("the view to answer", async || {
        view.holders(&prefix).await.len() == 1
    })
    .await;
    for look in looks {
        look.await.unwrap();
    }
    let connections = server.ask(&["INFO", "clients"])[0].clone();
    let count = connections
        .lines()
        .find_map(|line| line.strip_prefix("connected_clients:"))
        .unwrap()
        .trim()
        .to_owned();
    // The pool's connections, the health probe's, and the test's own.
    assert!((1..=10).contains(&count.parse::<u32>().unwrap()), "{count}");
}
