//! The periodic check of a Redis that answers.

use std::time::Duration;

use contract_id::contract;
use serde_json::json;
use test_programs::ReservedPort;

use super::{CachedRouter, chat_body, fine};
use crate::{
    harness::{RawClient, RouterQueries as _, eventually},
    redis_server::RedisServer,
};

#[test]
#[contract("CH20", "CK37", "CK38")]
fn an_idle_router_pings_redis_and_notices_by_that_alone_when_it_stops_to_answer() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    let cached = CachedRouter::start(&format!(
        ", backend: redis, redis: {{url: \"{}\", ping_interval: 100ms, command_timeout_ms: 2000}}",
        redis.url()
    ));
    let fallback = || cached.router.metric("continuum_cache_fallback_active", "");
    eventually("Redis to be in use", || (fallback() == 0.0).then_some(()));
    let before = redis.calls("ping");
    eventually("further checks", || {
        (redis.calls("ping") >= before + 3).then_some(())
    });
    assert_eq!(redis.calls("get"), 0, "nothing else was sent");

    redis.pause();
    eventually("the loss to be noticed without a request", || {
        (fallback() == 1.0).then_some(())
    });
    let health = RawClient::get(&cached.router.data(), "/health").json();
    assert_eq!(health["degraded"], json!(["redis"]));
    redis.resume();
    eventually("Redis to be in use again", || {
        (fallback() == 0.0).then_some(())
    });
}

#[test]
#[contract("CK36", "CK38")]
fn a_node_of_a_cluster_is_refused_with_its_reason_and_memory_answers() {
    test_programs::require!(RedisServer);
    let bus = ReservedPort::new();
    let port = bus.number().to_string();
    let redis = RedisServer::start_with(&["--cluster-enabled", "yes", "--cluster-port", &port]);
    let url = redis.url();
    let cached = CachedRouter::start(&format!(", backend: redis, redis: {{url: \"{url}\"}}"));
    let log = eventually("the refusal to be reported", || {
        let log = cached.router.stderr();
        log.contains("Redis Cluster").then_some(log)
    });
    for words in [
        "response_cache.redis.url",
        "cluster_enabled:1",
        "expected one server",
    ] {
        assert!(log.contains(words), "no {words:?} in {log}");
    }
    assert_eq!(cached.status(&chat_body("why?")), "MISS not_found");
    eventually("the fallback to have the reply", || {
        (cached.status(&chat_body("why?")) == "HIT stored").then_some(())
    });
    let fallback = cached.router.metric("continuum_cache_fallback_active", "");
    assert_eq!(fallback, 1.0);
    assert_eq!(redis.calls("get"), 0, "it is not used");
}

#[test]
#[contract("CK33")]
fn a_connection_to_redis_may_take_as_long_as_configured() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    // The machine accepts connections for it; it does not greet.
    redis.pause();
    let cached = CachedRouter::start(&format!(
        ", backend: redis, redis: {{url: \"{}\", connect_timeout_ms: 60000, command_timeout_ms: 60000}}",
        redis.url()
    ));
    // Longer than the default of three seconds.
    std::thread::sleep(Duration::from_secs(4));
    redis.resume();
    eventually("Redis to be in use", || {
        (cached.router.metric("continuum_cache_fallback_active", "") == 0.0).then_some(())
    });
    let errors = cached
        .router
        .metric("continuum_cache_redis_errors_total", "type=");
    assert_eq!(errors, 0.0, "the first attempt succeeded");
}

#[test]
#[contract("CK39")]
fn the_cache_and_the_shared_prefix_view_use_the_connections_of_one_pool() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    let config = format!(
        "prefix_routing: {{enabled: true}}\nkv_cache_index: {{enabled: true, backend: redis}}\n\
         response_cache: {{enabled: true, backend: redis, lookup_budget: 10s, \
         redis: {{url: \"{}\", pool_size: 1, command_timeout_ms: 10000}}}}\n",
        redis.url()
    );
    let cached = CachedRouter::with(&config, fine());
    eventually("Redis to be in use", || {
        (cached.router.metric("continuum_cache_fallback_active", "") == 0.0).then_some(())
    });
    // Redis answers none of these until all of them wait, so that both users need a connection.
    redis.pause();
    let clients: Vec<_> = (0..12)
        .map(|client| {
            let address = cached.router.data();
            std::thread::spawn(move || {
                for turn in 0..5 {
                    let body = chat_body(&format!("{client} asks {turn}")).to_string();
                    let path = "/v1/chat/completions";
                    assert_eq!(RawClient::post(&address, path, body.as_bytes()).status, 200);
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    redis.resume();
    let mut most = 0;
    while clients.iter().any(|client| !client.is_finished()) {
        most = most.max(connections(&redis));
    }
    for client in clients {
        client.join().expect("no request failed");
    }
    most = most.max(connections(&redis));
    for (user, command) in [("the cache", "get"), ("the view", "zrevrange")] {
        assert!(redis.calls(command) > 0, "{user} asked Redis");
    }
    assert_eq!(most, 1, "connections of both");
}

/// The connections of the router: all but those that ask this, of which the last one may still be
/// closing.
fn connections(redis: &RedisServer) -> usize {
    let clients = redis.ask(&["CLIENT", "LIST"]).remove(0);
    let asks = |client: &&str| {
        client
            .split(' ')
            .any(|field| field.starts_with("cmd=client"))
    };
    clients
        .lines()
        .filter(|client| !client.is_empty() && !asks(client))
        .count()
}
