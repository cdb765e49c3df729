//! Redis killed, paused, restarted, and absent: requests use this router's own events, and the
//! shared view again once Redis is back, without intervention.

use std::time::Duration;

use contract_id::contract;
use prefix_view::{
    EventKind::{Created, Evicted},
    Offloading, PrefixIndex, ViewSettings,
};
use redis_store::FaultKind;

use crate::{
    BOTH_TIERS, holders, hot, redis_server::RedisServer, router, router_that_waits, send, until,
    until_holders, until_shared, warm,
};

#[tokio::test(flavor = "multi_thread")]
#[contract("CK36", "CK37", "CK65")]
async fn a_server_absent_at_the_start_is_used_once_it_appears() {
    test_programs::require!(RedisServer);
    let mut server = RedisServer::start();
    server.kill();
    let router = router(&server.url(), Offloading::Off);
    send(&router, "w1", Created, 1, 64);
    assert_eq!(holders(&router, 1).await, [hot("w1", 64)], "by memory");
    assert!(!router.is_shared());
    server.start_again();
    until_shared(&router).await;
    until("the earlier events to be present", async || {
        server.ask(&["DBSIZE"]) == ["1"]
    })
    .await;
    assert_eq!(router.dropped(), 0);
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK36", "CK37", "CK65", "CK84")]
async fn a_server_that_restarts_empty_is_filled_again() {
    test_programs::require!(RedisServer);
    let mut server = RedisServer::start();
    let router = router(&server.url(), BOTH_TIERS);
    until_shared(&router).await;
    for number in 0..1_000 {
        send(&router, "w1", Created, number, 64);
    }
    send(&router, "w1", Evicted, 1, None);
    until_holders(&router, 1, &[warm("w1", 64)]).await;

    server.kill();
    send(&router, "w1", Created, 2_000, 32);
    send(&router, "w1", Created, 0, 96);
    until("the loss to be noticed", async || !router.is_shared()).await;
    until_holders(&router, 0, &[hot("w1", 96)]).await;
    assert_eq!(holders(&router, 2_000).await, [hot("w1", 32)]);

    server.start_again();
    until_shared(&router).await;
    until("redis to have everything again", async || {
        server.ask(&["DBSIZE"]) == ["2002"]
    })
    .await;
    assert_eq!(
        server.ask(&["ZSCORE", "cr:kvidx:0000000000000000", "w1"]),
        ["96"]
    );
    assert_eq!(
        server.ask(&["HGET", "cr:kvidx:0000000000000001:tier", "w1"]),
        ["StorageWarm"]
    );
    let left: i64 = server.ask(&["TTL", "cr:kvidx:0000000000000007"])[0]
        .parse()
        .unwrap();
    assert!(
        (1..=600).contains(&left),
        "not longer than it was to live: {left}"
    );
    until_holders(&router, 1, &[warm("w1", 64)]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK36", "CK37", "CK65", "CK81")]
async fn a_paused_server_delays_only_requests_that_already_wait() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    server.ask(&["ZADD", "cr:kvidx:0000000000000001", "64", "w2"]);
    let router = router(&server.url(), Offloading::Off);
    until_holders(&router, 1, &[hot("w2", 64)]).await;

    server.pause();
    send(&router, "w1", Created, 1, 32);
    // This router's own events, since no other source is available.
    until_holders(&router, 1, &[hot("w1", 32)]).await;
    until("the pause to be noticed", async || !router.is_shared()).await;
    assert!(router.faults(FaultKind::Timeout) > 0);
    for number in 0..1_000 {
        assert_eq!(holders(&router, 10_000 + number).await, []);
    }
    assert_eq!(
        router.faults(FaultKind::Connection),
        0,
        "no query to a server that is known to be away"
    );
    // Removals in the meantime are not lost.
    send(&router, "w2", Evicted, 1, None);

    server.resume();
    until_shared(&router).await;
    until_holders(&router, 1, &[hot("w1", 32)]).await;
    until("the removal to be written", async || {
        server.ask(&["ZSCORE", "cr:kvidx:0000000000000001", "w2"]) == ["(nil)"]
    })
    .await;
    assert_eq!(router.dropped(), 0);
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK49", "CK65")]
async fn dropped_events_are_counted_and_redis_is_brought_up_to_date_afterwards() {
    test_programs::require!(RedisServer);
    let mut server = RedisServer::start();
    let router = router(&server.url(), Offloading::Off);
    until_shared(&router).await;
    for number in 0..10 {
        send(&router, "w1", Created, number, 64);
    }
    server.kill();
    let record_event = |kind, number| {
        let event = prefix_view::PrefixEvent {
            kind,
            prefix: crate::prefix(number),
            token_count: Some(64),
        };
        router
            .record(&"w1".into(), &event, net::Clock::system().now())
            .unwrap();
    };
    // Far more events than the queue holds. The last one, a removal, is dropped.
    for number in 0..70_000 {
        record_event(Created, 100 + number % 1_000);
    }
    record_event(Evicted, 100);
    assert!(router.dropped() > 0);
    until_holders(&router, 100, &[]).await;

    server.start_again();
    until_shared(&router).await;
    // Redis has the same number of keys for a moment before the queued operations are written: the
    // repair of the dropped ones follows, and begins with a scan of every key.
    until("redis to be brought up to date", async || {
        server.calls("scan") > 0
    })
    .await;
    until("redis to have what memory has", async || {
        server.ask(&["DBSIZE"]) == ["1009"]
            && server.ask(&["EXISTS", "cr:kvidx:0000000000000064"]) == ["0"]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK32", "CK65")]
async fn the_password_is_sent_and_without_it_memory_serves() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start_with(&["--requirepass", "s@fe"]);
    let with = router(
        &server.url().replace("redis://", "redis://:s%40fe@"),
        Offloading::Off,
    );
    until_shared(&with).await;
    send(&with, "w1", Created, 1, 64);
    until_holders(&with, 1, &[hot("w1", 64)]).await;
    for url in [
        server.url(),
        server.url().replace("redis://", "redis://:wrong@"),
    ] {
        let without = router(&url, Offloading::Off);
        send(&without, "w2", Created, 1, 64);
        until("a refusal", async || without.faults(FaultKind::Other) > 0).await;
        assert_eq!(holders(&without, 1).await, [hot("w2", 64)]);
        assert!(!without.is_shared());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK65", "CK81")]
async fn a_slow_answer_does_not_delay_a_request_and_serves_later_ones() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    server.ask(&["ZADD", "cr:kvidx:0000000000000001", "64", "w2"]);
    let router = router_that_waits(
        &server.url(),
        ViewSettings::default(),
        Duration::from_secs(20),
    );
    until_shared(&router).await;
    server.ask(&["CLIENT", "PAUSE", "2000", "ALL"]);
    assert_eq!(
        holders(&router, 1).await,
        [],
        "by memory, which has no holders"
    );
    until_holders(&router, 1, &[hot("w2", 64)]).await;
    assert!(router.is_shared(), "slow is not away");
    assert_eq!(FaultKind::ALL.map(|kind| router.faults(kind)), [0, 0, 0]);
}
