//! The layout in Redis: keys, scores, times to live and tier keys.

use std::time::Duration;

use contract_id::contract;
use prefix_view::{
    EventKind::{Created, Evicted, Offloaded, Purged, Reloaded},
    Offloading, PrefixIndex, ViewSettings,
};

use crate::{
    BOTH_TIERS, holders, hot, redis_server::RedisServer, router, router_with, send, until,
    until_holders, until_shared, warm,
};

const KEY: &str = "cr:kvidx:00000000000000ff";
const TIERS: &str = "cr:kvidx:00000000000000ff:tier";

fn scores(server: &RedisServer) -> Vec<String> {
    server.ask(&["ZREVRANGE", KEY, "0", "-1", "WITHSCORES"])
}

async fn until_scores(server: &RedisServer, expected: &[&str]) {
    until(&format!("scores {expected:?}"), async || {
        scores(server) == expected
    })
    .await;
}

/// The remaining time to live, seconds.
fn ttl(server: &RedisServer, key: &str) -> i64 {
    server.ask(&["TTL", key])[0].parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK52", "CK50")]
async fn a_prefix_is_a_sorted_set_of_plain_names_by_tokens_that_expires() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let router = router_with(
        &server.url(),
        ViewSettings {
            entry_ttl: Duration::from_secs(900),
            ..Default::default()
        },
    );
    send(&router, "w1", Created, 0xff, 64);
    send(&router, "w2", Created, 0xff, 512);
    until_scores(&server, &["w2", "512", "w1", "64"]).await;
    assert_eq!(
        server.ask(&["KEYS", "*"]),
        [KEY],
        "no tier key with one tier"
    );
    assert_eq!(server.ask(&["TYPE", KEY]), ["zset"]);
    assert!(
        (890..=900).contains(&ttl(&server, KEY)),
        "{}",
        ttl(&server, KEY)
    );

    // Every event renews the time to live, and an eviction removes the name.
    server.ask(&["EXPIRE", KEY, "5"]);
    send(&router, "w1", Created, 0xff, 1024);
    until_scores(&server, &["w1", "1024", "w2", "512"]).await;
    assert!(ttl(&server, KEY) > 800);
    send(&router, "w1", Evicted, 0xff, None);
    until_scores(&server, &["w2", "512"]).await;
    send(&router, "w2", Purged, 0xff, None);
    until("the key to go", async || {
        server.ask(&["KEYS", "*"]).is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK52")]
async fn score_tier_and_times_to_live_are_written_in_one_transaction() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let router = router(&server.url(), BOTH_TIERS);
    until_shared(&router).await;
    let mut monitor = server.client();
    monitor.ask(&["MONITOR"]);
    send(&router, "w1", Created, 0xff, 64);
    let mut seen = Vec::new();
    while seen
        .last()
        .is_none_or(|line: &String| !line.contains("EXEC"))
    {
        seen.push(monitor.line());
    }
    let begin = seen.iter().position(|line| line.contains("MULTI")).unwrap();
    let commands: Vec<&str> = seen[begin..]
        .iter()
        .map(|line| line.split_once("] ").unwrap().1)
        .collect();
    assert_eq!(
        commands,
        [
            "\"MULTI\"".to_owned(),
            format!("\"ZADD\" \"{KEY}\" \"64\" \"w1\""),
            format!("\"EXPIRE\" \"{KEY}\" \"600\""),
            format!("\"HSET\" \"{TIERS}\" \"w1\" \"GpuHot\""),
            format!("\"EXPIRE\" \"{TIERS}\" \"600\""),
            "\"EXEC\"".to_owned(),
        ]
    );
    // The read is one transaction: the two commands are consecutive on one connection.
    assert_eq!(holders(&router, 0xff).await, [hot("w1", 64)]);
    let reads =
        [monitor.line(), monitor.line()].map(|line| line.split_once("] ").unwrap().1.to_owned());
    assert_eq!(
        reads,
        [
            format!("\"ZREVRANGE\" \"{KEY}\" \"0\" \"1023\" \"WITHSCORES\""),
            format!("\"HMGET\" \"{TIERS}\" \"w1\" \"w2\" \"w3\""),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK52", "CK55", "CK56", "CK61")]
async fn with_offloading_a_second_key_holds_the_tier_and_breaks_ties() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let router = router(&server.url(), BOTH_TIERS);
    until_shared(&router).await;
    let tier = |name: &str| server.ask(&["HGET", TIERS, name]).remove(0);
    send(&router, "w1", Created, 0xff, 64);
    send(&router, "w2", Created, 0xff, 64);
    send(&router, "w1", Evicted, 0xff, None);
    until("the move", async || tier("w1") == "StorageWarm").await;
    assert_eq!(
        (scores(&server), tier("w2")),
        (
            ["w2", "64", "w1", "64"].map(str::to_owned).to_vec(),
            "GpuHot".to_owned()
        )
    );
    assert!((590..=600).contains(&ttl(&server, TIERS)));
    until_holders(&router, 0xff, &[hot("w2", 64), warm("w1", 64)]).await;

    send(&router, "w1", Reloaded, 0xff, None);
    send(&router, "w2", Offloaded, 0xff, None);
    until_holders(&router, 0xff, &[hot("w1", 64), warm("w2", 64)]).await;
    send(&router, "w1", Purged, 0xff, None);
    until_holders(&router, 0xff, &[warm("w2", 64)]).await;
    assert_eq!(tier("w1"), "(nil)");
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK54", "CK56")]
async fn an_eviction_removes_without_a_second_tier_or_if_evicted_means_gone() {
    test_programs::require!(RedisServer);
    let gone = Offloading::On {
        treat_eviction_as_offload: false,
    };
    for (offloading, kind) in [
        (Offloading::Off, Evicted),
        (Offloading::Off, Offloaded),
        (gone, Evicted),
    ] {
        let server = RedisServer::start();
        let router = router(&server.url(), offloading);
        send(&router, "w1", Created, 0xff, 64);
        until_scores(&server, &["w1", "64"]).await;
        send(&router, "w1", kind, 0xff, None);
        until("everything to go", async || {
            server.ask(&["KEYS", "*"]).is_empty()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK45")]
async fn an_event_without_a_count_keeps_the_count_in_redis() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    // An entry from before this router started.
    server.ask(&["ZADD", KEY, "4000", "w1"]);
    let router = router(&server.url(), BOTH_TIERS);
    send(&router, "w1", Created, 0xff, None);
    send(&router, "w2", Created, 0xff, None);
    until_scores(&server, &["w1", "4000", "w2", "256"]).await;
    send(&router, "w1", Evicted, 0xff, None);
    until_holders(&router, 0xff, &[warm("w1", 4000), hot("w2", 256)]).await;
    // A prefix without holder is not moved.
    send(&router, "w3", Offloaded, 0xff, None);
    send(&router, "w2", Created, 0xff, 300);
    until_holders(&router, 0xff, &[warm("w1", 4000), hot("w2", 300)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backend_removal_and_clear_affect_only_the_view_in_redis() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let router = router(&server.url(), BOTH_TIERS);
    until_shared(&router).await;
    server.ask(&["SET", "cr:resp:1", "a reply"]);
    for number in 0..1_500 {
        send(&router, "w1", Created, number, 64);
        send(&router, "w2", Created, number, 32);
    }
    until("all to be written", async || {
        server.ask(&["DBSIZE"]) == ["3001"]
    })
    .await;
    router.remove_backend("w1").unwrap();
    for number in [0, 700, 1_499] {
        until_holders(&router, number, &[hot("w2", 32)]).await;
    }
    assert_eq!(server.ask(&["HGETALL", TIERS]), ["w2", "GpuHot"]);
    assert_eq!(router.clear().unwrap().entries, 1_500);
    until("all to go", async || {
        server.ask(&["KEYS", "*"]) == ["cr:resp:1"]
    })
    .await;
    assert_eq!((router.dropped(), router.stats().entries), (0, 0));
}
