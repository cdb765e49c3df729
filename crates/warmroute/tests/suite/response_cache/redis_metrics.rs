//! The metrics of the Redis connections, moved by requests.

use contract_id::contract;

use super::{CachedRouter, chat_body, status};
use crate::{
    harness::{RawClient, RouterQueries as _, eventually},
    redis_server::RedisServer,
};

impl CachedRouter {
    /// Answers that this operation has had from Redis.
    fn redis_answers(&self, operation: &str) -> f64 {
        let name = "continuum_cache_redis_latency_seconds_count";
        self.router
            .metric(name, &format!("operation=\"{operation}\""))
    }

    fn connections(&self, state: &str) -> f64 {
        let name = format!("continuum_cache_redis_connections_{state}");
        self.router.metric(&name, "")
    }
}

#[test]
#[contract("CK69", "CH21")]
fn lookups_writes_and_clears_move_the_metrics_of_their_connections() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    // A lookup that Redis does not answer keeps its connection for the time of a command.
    let cached = CachedRouter::start(&format!(
        ", backend: redis, lookup_budget: 1s, redis: {{url: \"{}\", command_timeout_ms: 20000}}",
        redis.url()
    ));
    eventually("Redis to be in use", || {
        (cached.router.metric("continuum_cache_fallback_active", "") == 0.0).then_some(())
    });
    assert_eq!(cached.redis_answers("set"), 0.0);
    assert_eq!(status(&cached.send(&chat_body("why?"))), "MISS not_found");
    eventually("the reply to be stored", || {
        (cached.redis_answers("set") == 1.0).then_some(())
    });
    let lookups = cached.redis_answers("get");
    assert!(lookups >= 1.0, "{lookups}");
    assert_eq!(status(&cached.send(&chat_body("why?"))), "HIT stored");
    assert!(cached.redis_answers("get") > lookups);
    eventually("every connection to be idle", || {
        (cached.connections("active") == 0.0 && cached.connections("idle") >= 1.0).then_some(())
    });

    redis.pause();
    let mut waiting = RawClient::chat(&cached.router.data(), &chat_body("how?"));
    eventually("a connection to be in use", || {
        (cached.connections("active") >= 1.0).then_some(())
    });
    assert_eq!(waiting.reply().status, 200, "the request does not wait");
    redis.resume();
    eventually("the connection to be idle again", || {
        (cached.connections("active") == 0.0).then_some(())
    });

    assert_eq!(cached.redis_answers("delete"), 0.0);
    let (admin, path) = (cached.router.admin(), "/admin/response-cache/invalidate");
    let cleared = RawClient::post(&admin, path, br#"{"clear_all": true}"#);
    assert_eq!(cleared.status, 200, "{}", cleared.text());
    assert!(cached.redis_answers("delete") >= 1.0);
}
