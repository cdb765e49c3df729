//! Two routers before one fleet and one Redis: what one hears of prefixes the other goes by, and whatever becomes of Redis,
//! no request fails.

use contract_id::contract;
use serde_json::{Value, json};

use crate::{
    harness::{Program, RawClient, RoutedFleet, RouterQueries as _, eventually, says, words},
    prefix_stream::PrefixStream,
    redis_server::RedisServer,
};

/// A router that hears engine `b`'s stream, and one that hears nothing.
struct RouterPair {
    hears: RoutedFleet,
    other: Program,
    events: PrefixStream,
}

impl RouterPair {
    fn start(redis: &RedisServer) -> Self {
        let events = PrefixStream::start();
        let source = format!("{{backend_name: b, endpoint: \"{}\"}}", events.url());
        let hears = RoutedFleet::with(&[&[], &[], &[]], &config(redis, &source), &[]);
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

/// The worker that a request with this system prompt is sent to. It never fails.
fn asked(router: &Program, system: &str) -> String {
    let messages = [says("system", system), says("user", "hello")];
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
        (asked(router, system) == worker).then_some(())
    });
}

fn health(router: &Program) -> Value {
    RawClient::get(&router.data(), "/health").json()
}

fn until_degraded(router: &Program, degraded: &Value) {
    eventually("the health to say so", || {
        (health(router)["degraded"] == *degraded).then_some(())
    });
}

/// A system prompt that the ring does not send to b.
fn prompt(pair: &RouterPair) -> (String, String) {
    let prompts = (0..20).map(|n| format!("You are assistant {n}. {}", words(&n.to_string(), 30)));
    let mut homes = prompts.map(|prompt| (asked(&pair.other, &prompt), prompt));
    let (home, prompt) = homes
        .find(|(home, _)| home != "b")
        .expect("a ring has more than one owner");
    assert_eq!(asked(&pair.hears.router, &prompt), home, "rings agree");
    (prompt, home)
}

#[test]
#[contract("CK40", "CK53")]
fn two_routers_send_a_prompt_where_one_of_them_heard_that_it_is() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    let pair = RouterPair::start(&redis);
    for router in pair.routers() {
        until_degraded(router, &json!([]));
    }
    let (prompt, home) = prompt(&pair);
    pair.events.say("cache_created", &prompt, 4_000);
    for router in pair.routers() {
        until_sent(router, &prompt, "b");
    }
    let stats = |router: &Program| RawClient::get(&router.admin(), "/admin/kv-index/stats").json();
    let [heard, told] = pair.routers().map(stats);
    assert_eq!(
        (&heard["config"]["backend"], &heard["index"]["entry_count"]),
        (&json!("redis"), &json!(1))
    );
    assert_eq!(told["index"]["entry_count"], 0, "what it heard itself");
    assert!(told["index"]["total_hits"].as_u64() > Some(0));

    pair.events.say("cache_evicted", &prompt, 4_000);
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
    pair.events.say("cache_created", &prompt, 4_000);
    until_sent(&pair.other, &prompt, "b");
    let away = |pair: &RouterPair| {
        for router in pair.routers() {
            // Whoever asks it notices; a router without requests does when it next looks.
            eventually("the loss to be noticed", || {
                asked(router, &prompt);
                (health(router)["degraded"] == json!(["redis"])).then_some(())
            });
            let page = RawClient::get(&router.admin(), "/metrics").text();
            assert!(
                page.contains("continuum_cache_fallback_active 1\n"),
                "{page}"
            );
        }
        // The one goes by what it heard, the other by the ring.
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
    // It is empty: the router that heard fills it.
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
