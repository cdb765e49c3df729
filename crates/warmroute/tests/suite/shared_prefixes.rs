//! Two routers before one fleet and one Redis: each uses the prefixes that the other learned, and
//! no failure of Redis fails a request.

use contract_id::contract;
use serde_json::{Value, json};

use crate::{
    harness::{
        Program, RawClient, RoutedFleet, RouterQueries as _, chat_message, eventually, words,
    },
    prefix_stream::PrefixStream,
    redis_server::RedisServer,
};

/// A router that follows engine `b`'s stream, and one without a stream.
struct RouterPair {
    hears: RoutedFleet,
    other: Program,
    events: PrefixStream,
}

impl RouterPair {
    fn start(redis: &RedisServer) -> Self {
        let events = PrefixStream::start();
        let source = format!("{{backend_name: b, endpoint: \"{}\"}}", events.url());
        // The engines' own events would place the requests as well.
        let silent: &[&str] = &["--no-kv-events"];
        let hears = RoutedFleet::with(&[silent, silent, silent], &config(redis, &source), &[]);
        let workers: Vec<String> = ('a'..)
            .zip(&hears.engines)
            .map(|(name, engine)| format!("{name}={}", engine.url()))
            .collect();
        let other = Program::serve_with(&config(redis, ""), &workers, &[]).ready(3);
        Self {
            hears,
            other,
            events,
        }
    }

    fn routers(&self) -> [&Program; 2] {
        [&self.hears.router, &self.other]
    }
}

fn config(redis: &RedisServer, source: &str) -> String {
    format!(
        "prefix_routing: {{enabled: true}}\nresponse_cache: {{redis: {{url: \"{}\", connect_timeout_ms: 500, \
         command_timeout_ms: 300}}}}\nkv_cache_index: {{enabled: true, backend: redis, event_sources: [{source}]}}\n",
        redis.url()
    )
}

/// The worker of a request with this system prompt. The request never fails.
fn worker_for(router: &Program, system: &str) -> String {
    let messages = [
        chat_message("system", system),
        chat_message("user", "hello"),
    ];
    let reply = RawClient::chat(
        &router.data(),
        &json!({"model": "sim", "messages": messages, "max_tokens": 1}),
    )
    .reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply
        .header("x-warmroute-worker")
        .expect("the reply names its worker")
        .to_owned()
}

fn until_sent(router: &Program, system: &str, worker: &str) {
    eventually("the request to be sent there", || {
        (worker_for(router, system) == worker).then_some(())
    });
}

fn health(router: &Program) -> Value {
    RawClient::get(&router.data(), "/health").json()
}

fn until_degraded(router: &Program, degraded: &Value) {
    eventually("the health to report it", || {
        (health(router)["degraded"] == *degraded).then_some(())
    });
}

/// A system prompt that the ring does not send to `b`.
fn prompt(pair: &RouterPair) -> (String, String) {
    let prompts = (0..20).map(|n| format!("You are assistant {n}. {}", words(&n.to_string(), 30)));
    let mut homes = prompts.map(|prompt| (worker_for(&pair.other, &prompt), prompt));
    let (home, prompt) = homes
        .find(|(home, _)| home != "b")
        .expect("a ring has more than one owner");
    assert_eq!(worker_for(&pair.hears.router, &prompt), home, "rings agree");
    (prompt, home)
}

#[test]
#[contract("CK40", "CK53")]
fn two_routers_route_by_a_prefix_that_one_of_them_learned() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    let pair = RouterPair::start(&redis);
    for router in pair.routers() {
        until_degraded(router, &json!([]));
    }
    let (prompt, home) = prompt(&pair);
    pair.events.publish("cache_created", &prompt, 4_000);
    for router in pair.routers() {
        until_sent(router, &prompt, "b");
    }
    let stats = |router: &Program| RawClient::get(&router.admin(), "/admin/kv-index/stats").json();
    let [hearing, other] = pair.routers().map(stats);
    assert_eq!(
        (
            &hearing["config"]["backend"],
            &hearing["index"]["entry_count"]
        ),
        (&json!("redis"), &json!(1))
    );
    assert_eq!(
        other["index"]["entry_count"], 0,
        "the entries of its own stream"
    );
    assert!(other["index"]["total_hits"].as_u64() > Some(0));

    pair.events.publish("cache_evicted", &prompt, 4_000);
    for router in pair.routers() {
        until_sent(router, &prompt, &home);
    }
}

#[test]
#[contract("CK36", "CK37", "CK38", "CK65", "CK81")]
fn redis_killed_paused_and_started_again_costs_no_request() {
    test_programs::require!(RedisServer);
    let mut redis = RedisServer::start();
    let pair = RouterPair::start(&redis);
    let (prompt, home) = prompt(&pair);
    pair.events.publish("cache_created", &prompt, 4_000);
    until_sent(&pair.other, &prompt, "b");
    let away = |pair: &RouterPair| {
        for router in pair.routers() {
            // Lookups notice it; a router without requests notices at its next check.
            eventually("the loss to be noticed", || {
                worker_for(router, &prompt);
                (health(router)["degraded"] == json!(["redis"])).then_some(())
            });
            let page = RawClient::get(&router.admin(), "/metrics").text();
            assert!(
                page.contains("continuum_cache_fallback_active 1\n"),
                "{page}"
            );
        }
        // One router uses its own stream, the other the ring.
        until_sent(&pair.hears.router, &prompt, "b");
        until_sent(&pair.other, &prompt, &home);
    };
    let back = |pair: &RouterPair| {
        for router in pair.routers() {
            until_degraded(router, &json!([]));
            until_sent(router, &prompt, "b");
        }
    };

    redis.pause();
    // Requests notice it, and none of them fails.
    until_sent(&pair.other, &prompt, &home);
    away(&pair);
    redis.resume();
    back(&pair);

    redis.kill();
    until_sent(&pair.other, &prompt, &home);
    away(&pair);
    redis.start_again();
    // Redis is empty: the router with the stream fills it.
    back(&pair);
}

#[test]
#[contract("CK33", "CK41")]
fn without_a_url_the_start_is_refused() {
    let ended = Program::finish_with_env(
        &[
            "serve",
            "-w",
            "http://127.0.0.1:1",
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
        ],
        &[
            ("WARMROUTE_KV_CACHE_INDEX__ENABLED", "true"),
            ("WARMROUTE_KV_CACHE_INDEX__BACKEND", "redis"),
        ],
    );
    assert_eq!(ended.code, Some(78), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("response_cache.redis.url"),
        "{}",
        ended.stderr
    );
}
