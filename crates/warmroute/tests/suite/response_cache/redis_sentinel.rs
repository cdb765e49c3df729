//! A primary that sentinels know, and its failover.

use contract_id::contract;

use super::{CachedRouter, chat_body};
use crate::{
    harness::eventually,
    redis_server::{RedisSentinel, RedisServer},
};

#[test]
#[contract("CK32", "CK38")]
fn the_cache_goes_on_at_the_server_that_sentinels_make_the_primary() {
    test_programs::require!(RedisServer);
    let mut primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replica = RedisServer::replica_of(&primary);
    let sentinel = RedisSentinel::watch(&primary);
    let cached = CachedRouter::start(&format!(
        ", backend: redis, redis: {{url: \"{}\", ping_interval: 200ms, fallback_to_memory: false}}",
        sentinel.url()
    ));
    let hit = |text: &str| {
        eventually("a hit", || {
            (cached.status(&chat_body(text)) == "HIT stored").then_some(())
        });
    };
    hit("why?");
    assert!(primary.calls("get") > 0);
    eventually("the replica to have the reply", || {
        (replica.ask(&["DBSIZE"]) != ["0"]).then_some(())
    });

    primary.kill();
    sentinel.until_it_switches();
    // The reply that the old primary stored, and a new one.
    hit("why?");
    hit("what?");
    assert!(replica.calls("get") > 0 && replica.calls("set") > 0);
}
