//! Several routers before one Redis.

use std::task::Poll;

use contract_id::contract;
use prefix_view::{
    EventKind::{Created, Evicted},
    Offloading, PrefixIndex,
};

use crate::{
    BOTH_TIERS, holders, hot, redis_server::RedisServer, router, say, until, until_holders,
    until_shared, warm,
};

#[tokio::test(flavor = "multi_thread")]
#[contract("CK53")]
async fn what_one_router_hears_every_router_knows() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let (one, other) = (
        router(&server.url(), BOTH_TIERS),
        router(&server.url(), BOTH_TIERS),
    );
    say(&one, "w1", Created, 1, 64);
    say(&other, "w2", Created, 1, 128);
    say(&one, "w1", Evicted, 1, None);
    let both = [hot("w2", 128), warm("w1", 64)];
    until_holders(&one, 1, &both).await;
    until_holders(&other, 1, &both).await;
    // And a router that was not there when it was said.
    let late = router(&server.url(), BOTH_TIERS);
    until_holders(&late, 1, &both).await;
    assert_eq!(late.stats().entries, 0, "it heard nothing itself");
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK53", "CK84")]
async fn a_router_that_restarts_finds_what_it_knew() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let before = router(&server.url(), Offloading::Off);
    until_shared(&before).await;
    for number in 0..500 {
        say(&before, "w1", Created, number, 64);
    }
    // Stopping writes what is still to be written.
    before.stop().await;
    drop(before);
    let after = router(&server.url(), Offloading::Off);
    for number in [0, 250, 499] {
        until_holders(&after, number, &[hot("w1", 64)]).await;
    }
}

// On one thread, so that nothing lands while the others ask.
#[tokio::test]
#[contract("CK63")]
async fn requests_that_come_together_share_one_query() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let router = router(&server.url(), Offloading::Off);
    say(&router, "w1", Created, 1, 64);
    until("the event to be written", async || {
        server.ask(&["DBSIZE"]) == ["1"]
    })
    .await;
    let mut asking: Vec<_> = (0..200).map(|_| Box::pin(holders(&router, 1))).collect();
    std::future::poll_fn(|cx| {
        asking
            .iter_mut()
            .for_each(|asking| assert!(asking.as_mut().poll(cx).is_pending()));
        Poll::Ready(())
    })
    .await;
    for asking in asking {
        assert_eq!(asking.await, [hot("w1", 64)]);
    }
    assert_eq!(server.calls("zrevrange"), 1);
}
