//! Several routers with one Redis.

use std::task::Poll;

use contract_id::contract;
use prefix_view::{
    EventKind::{Created, Evicted},
    Offloading, PrefixIndex,
};

use crate::{
    BOTH_TIERS, holders, hot, redis_server::RedisServer, router, send, until, until_holders,
    until_shared, warm,
};

#[tokio::test(flavor = "multi_thread")]
#[contract("CK53")]
async fn an_event_at_one_router_is_visible_at_every_router() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let (one, other) = (
        router(&server.url(), BOTH_TIERS),
        router(&server.url(), BOTH_TIERS),
    );
    send(&one, "w1", Created, 1, 64);
    send(&other, "w2", Created, 1, 128);
    send(&one, "w1", Evicted, 1, None);
    let both = [hot("w2", 128), warm("w1", 64)];
    until_holders(&one, 1, &both).await;
    until_holders(&other, 1, &both).await;
    // A router that started after the event sees it too.
    let late = router(&server.url(), BOTH_TIERS);
    until_holders(&late, 1, &both).await;
    assert_eq!(late.stats().entries, 0, "it received no events itself");
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK53", "CK84")]
async fn a_restarted_router_finds_its_entries() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let before = router(&server.url(), Offloading::Off);
    until_shared(&before).await;
    for number in 0..500 {
        send(&before, "w1", Created, number, 64);
    }
    // A stop writes all pending operations.
    before.stop().await;
    drop(before);
    let after = router(&server.url(), Offloading::Off);
    for number in [0, 250, 499] {
        until_holders(&after, number, &[hot("w1", 64)]).await;
    }
}

// On one thread, so that no answer arrives before all queries are sent.
#[tokio::test]
#[contract("CK63")]
async fn concurrent_requests_share_one_query() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let router = router(&server.url(), Offloading::Off);
    send(&router, "w1", Created, 1, 64);
    until("the event to be written", async || {
        server.ask(&["DBSIZE"]) == ["1"]
    })
    .await;
    let mut lookups: Vec<_> = (0..200).map(|_| Box::pin(holders(&router, 1))).collect();
    std::future::poll_fn(|cx| {
        lookups
            .iter_mut()
            .for_each(|lookup| assert!(lookup.as_mut().poll(cx).is_pending()));
        Poll::Ready(())
    })
    .await;
    for lookup in lookups {
        assert_eq!(lookup.await, [hot("w1", 64)]);
    }
    assert_eq!(server.calls("zrevrange"), 1);
}
