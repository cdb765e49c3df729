//! The operators' view of the cache, and the clear operation.

use contract_id::contract;
use serde_json::{Value, json};

use super::{CachedRouter, chat_body, with};
use crate::{
    harness::{RawClient, RouterQueries as _, assert_shape, eventually},
    redis_server::RedisServer,
};

fn shape(redis: Option<Value>) -> Value {
    let mut shape = json!({
        "enabled": "bool", "backend_type": "string", "entries": "int", "capacity": "int",
        "requests": {"hit": "int", "miss": "int", "skip": "int", "total": "int"},
        "hit_rate": "string", "evictions": "int", "size_bytes": "int",
        "config": {
            "backend": "string", "ttl": "string", "capacity": "int", "max_response_size": "int",
            "max_stream_buffer_size": "int",
        },
    });
    if let Some(redis) = redis {
        shape["redis"] = redis;
    }
    shape
}

#[test]
#[contract("A5", "CK74", "CK68")]
fn the_stats_have_the_documented_keys_and_the_counts_of_the_requests() {
    let cached = CachedRouter::start(", ttl: 10m, capacity: 50");
    for (temperature, status) in [(0, "MISS"), (0, "HIT"), (0, "HIT"), (1, "BYPASS")] {
        let body = with(chat_body("why?"), "temperature", json!(temperature));
        let found = cached.status(&body);
        assert!(found.starts_with(status), "{found}");
    }
    let stats = cached.stats();
    assert_shape(&stats, &shape(None));
    assert_eq!(stats.get("redis"), None, "only with Redis");
    assert_eq!(
        stats["requests"],
        json!({"hit": 2, "miss": 1, "skip": 1, "total": 4})
    );
    assert_eq!(
        (
            &stats["backend_type"],
            &stats["entries"],
            &stats["hit_rate"]
        ),
        (&json!("memory"), &json!(1), &json!("0.6667"))
    );
    let config = json!({"backend": "memory", "ttl": "10m", "capacity": 50, "max_response_size": 1_048_576,
        "max_stream_buffer_size": 10_485_760});
    assert_eq!(
        (&stats["config"], &stats["capacity"]),
        (&config, &json!(50))
    );
    assert!(
        stats["size_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes > 100)
    );
    for (result, count) in [("hit", 2.0), ("miss", 1.0), ("skip", 1.0)] {
        let label = format!("result=\"{result}\"");
        assert_eq!(
            cached
                .router
                .metric("continuum_response_cache_requests_total", &label),
            count,
            "{result}"
        );
    }
    assert_eq!(
        cached.router.metric("continuum_response_cache_entries", ""),
        1.0
    );
    assert!(
        (cached
            .router
            .metric("continuum_response_cache_hit_rate", "")
            - 2.0 / 3.0)
            .abs()
            < 1e-6
    );
    assert_eq!(
        cached
            .router
            .metric("continuum_cache_backend_type", "backend=\"memory\""),
        1.0
    );
    assert_eq!(
        cached
            .router
            .metric("continuum_cache_backend_type", "backend=\"redis\""),
        0.0
    );
}

#[test]
#[contract("CH22")]
fn the_program_has_the_stores_that_its_build_features_select() {
    let cached = CachedRouter::start("");
    let built = "features=\"nats,otel,redis-cache,s3-cache\"";
    assert_eq!(cached.router.metric("warmroute_build_info", built), 1.0);
}

#[test]
#[contract("CK75")]
fn the_whole_cache_is_cleared_by_clear_all_only() {
    let cached = CachedRouter::start("");
    let invalidate = |body: &str| {
        RawClient::post(
            &cached.router.admin(),
            "/admin/response-cache/invalidate",
            body.as_bytes(),
        )
    };
    for text in ["a", "b"] {
        cached.status(&chat_body(text));
    }
    eventually("both replies to be stored", || {
        (cached.stats()["entries"] == 2).then_some(())
    });
    for body in [
        "",
        "{}",
        "[]",
        r#"{"clear_all": false}"#,
        r#"{"clear_all": true, "model": "m"}"#,
        r#"{"clear_all": 1}"#,
    ] {
        let refused = invalidate(body);
        assert_eq!(refused.status, 400, "{body}");
        assert!(
            refused.text().contains(r#"{\"clear_all\": true}"#),
            "it names the accepted value: {}",
            refused.text()
        );
    }
    assert_eq!(cached.status(&chat_body("a")), "HIT stored");
    let cleared = invalidate(r#"{"clear_all": true}"#);
    assert_eq!(
        cleared.json(),
        json!({"success": true, "action": "clear_all", "cleared_entries": 2})
    );
    assert_eq!(cached.status(&chat_body("a")), "MISS not_found");
    eventually("the new reply to be stored", || {
        (cached.stats()["entries"] == 1).then_some(())
    });
    assert_eq!(
        RawClient::get(&cached.router.admin(), "/admin/response-cache/invalidate").status,
        405
    );
    assert_eq!(
        invalidate(r#"{"clear_all": true}"#).json()["cleared_entries"],
        1
    );
}

#[test]
#[contract("CK74", "CK69", "CH21", "CK34")]
fn with_redis_the_stats_show_its_connections_and_a_clear_keeps_foreign_keys() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    redis.ask(&["SET", "somebody:else", "1"]);
    let cached = CachedRouter::start(&format!(
        ", backend: redis, lookup_budget: 20s, redis: {{url: \"{}\", command_timeout_ms: 20000}}",
        redis.url()
    ));
    eventually("Redis to be in use", || {
        (cached.stats()["redis"]["fallback_active"] == false).then_some(())
    });
    cached.status(&chat_body("why?"));
    assert_eq!(cached.status(&chat_body("why?")), "HIT stored");
    let keys = redis.ask(&["KEYS", "cr:resp:*"]);
    assert!(
        keys.len() == 1 && keys[0].len() == "cr:resp:".len() + 96,
        "{keys:?}"
    );
    assert!(
        redis.ask(&["TTL", &keys[0]])[0]
            .parse::<u64>()
            .is_ok_and(|left| (290..=300).contains(&left))
    );
    let stats = cached.stats();
    assert_shape(
        &stats,
        &shape(Some(json!({
            "connections": {"active": "int", "idle": "int"}, "fallback_active": "bool",
            "errors": {"connection": "int", "timeout": "int", "other": "int"},
        }))),
    );
    assert_eq!(
        (&stats["backend_type"], &stats["entries"]),
        (&json!("redis"), &json!(1))
    );
    let cleared = RawClient::post(
        &cached.router.admin(),
        "/admin/response-cache/invalidate",
        br#"{"clear_all": true}"#,
    );
    assert_eq!(cleared.json()["cleared_entries"], 1);
    assert_eq!(redis.ask(&["KEYS", "*"]), ["somebody:else"]);
    assert_eq!(cached.status(&chat_body("why?")), "MISS not_found");
}
