//! Failures of Redis: no client gets an error, few requests wait, and none waits twice.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use contract_id::contract;
use serde_json::{Value, json};

use super::{CachedRouter, chat_body, status, without};
use crate::{
    harness::{RawClient, RouterQueries as _, Stopwatch, eventually},
    redis_server::RedisServer,
};

/// Clients that send requests continuously.
const CLIENTS: usize = 8;
/// Connections of the pool; the cache has half of them.
const POOL: u32 = 8;
/// Lookups that may time out: one per connection, plus twice those of all clients for stalls of a
/// busy machine. Without a limit nearly all of the hundreds of requests would time out.
const FEW: f64 = 24.0;

/// The lookup timeout is longer than a usual stall of a busy machine, and shorter than a command's.
fn in_redis(url: &str) -> CachedRouter {
    let redis = format!(
        "redis: {{url: \"{url}\", pool_size: {POOL}, connect_timeout_ms: 500, command_timeout_ms: 500}}"
    );
    CachedRouter::start(&format!(", backend: redis, lookup_budget: 200ms, {redis}"))
}

impl CachedRouter {
    fn in_fallback(&self) -> bool {
        self.stats()["redis"]["fallback_active"] == true
    }

    fn wait_for_redis(&self) {
        eventually("Redis to be in use", || (!self.in_fallback()).then_some(()));
    }

    fn wait_for_fallback(&self) {
        eventually("the fallback to memory", || {
            self.in_fallback().then_some(())
        });
    }

    /// Lookups that timed out.
    fn abandoned(&self) -> f64 {
        self.router
            .metric("warmroute_cache_lookups_abandoned_total", "")
    }
}

/// Clients that send new and repeated questions until they are stopped.
struct FaultLoad {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<Duration>>>,
    answered: Arc<AtomicU64>,
}

impl FaultLoad {
    fn on(cached: &CachedRouter) -> Self {
        let (stop, answered) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let client = |client: usize| {
            let (address, stop, answered) = (
                cached.router.data(),
                Arc::clone(&stop),
                Arc::clone(&answered),
            );
            std::thread::spawn(move || {
                let mut socket = RawClient::connect(&address);
                let mut took = Vec::new();
                for turn in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    // Every question is sent twice.
                    let body = chat_body(&format!("{client} asks {}", turn / 2)).to_string();
                    let watch = Stopwatch::start();
                    socket.send("POST", "/v1/chat/completions", &[], body.as_bytes());
                    let reply = socket.reply();
                    took.push(watch.elapsed());
                    assert_eq!(reply.status, 200, "{}", reply.text());
                    answered.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                }
                took
            })
        };
        let clients = (0..CLIENTS).map(client).collect();
        Self {
            stop,
            clients,
            answered,
        }
    }

    /// Waits until `requests` more requests are answered.
    fn wait_for_requests(&self, requests: u64) {
        let until = self.answered.load(Ordering::SeqCst) + requests;
        eventually("requests to be answered", || {
            (self.answered.load(Ordering::SeqCst) >= until).then_some(())
        });
    }

    /// Stops the clients; every request was answered. Returns their durations.
    fn end(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::SeqCst);
        let mut took: Vec<_> = self
            .clients
            .into_iter()
            .flat_map(|it| it.join().expect("no request failed"))
            .collect();
        took.sort_unstable();
        took
    }
}

fn shown(what: &str, took: &[Duration]) {
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    eprintln!(
        "{what}: {} requests, p50 {:?}, p99 {:?}, longest {:?}",
        took.len(),
        at(50),
        at(99),
        at(100)
    );
}

#[test]
#[contract("F42", "F48", "CK36", "CK37", "CK38", "CK81", "G6", "CH20")]
fn redis_killed_under_load_costs_no_request_and_is_used_again_when_it_comes_back() {
    test_programs::require!(RedisServer);
    let mut redis = RedisServer::start();
    let cached = in_redis(&redis.url());
    cached.wait_for_redis();
    let load = FaultLoad::on(&cached);
    load.wait_for_requests(200);
    redis.kill();
    load.wait_for_requests(400);
    cached.wait_for_fallback();
    assert_eq!(
        cached.router.metric("continuum_cache_fallback_active", ""),
        1.0
    );
    // Memory answers in the meantime.
    assert_eq!(
        [
            cached.status(&chat_body("now")),
            cached.status(&chat_body("now"))
        ],
        ["MISS not_found", "HIT stored"]
    );
    redis.start_again();
    cached.wait_for_redis();
    assert_eq!(
        cached.router.metric("continuum_cache_fallback_active", ""),
        0.0
    );
    load.wait_for_requests(200);
    shown("killed", &load.end());
    assert!(cached.abandoned() <= FEW, "{} waited", cached.abandoned());
    cached.status(&chat_body("later"));
    assert_eq!(cached.status(&chat_body("later")), "HIT stored");
    assert!(
        !redis.ask(&["KEYS", "cr:resp:*"]).is_empty(),
        "Redis holds replies again"
    );
    cached.router.wait_until_idle();
}

#[test]
#[contract("F43", "CK81", "G6")]
fn a_hanging_redis_delays_few_requests_once_and_then_none() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    let cached = in_redis(&redis.url());
    cached.wait_for_redis();
    let load = FaultLoad::on(&cached);
    load.wait_for_requests(200);
    redis.pause();
    load.wait_for_requests(800);
    cached.wait_for_fallback();
    let waited = cached.abandoned();
    assert!(waited <= FEW, "{waited} waited");
    eventually(
        "no lookup to wait for a server that is known to be away",
        || {
            let before = cached.abandoned();
            load.wait_for_requests(400);
            (cached.abandoned() == before).then_some(())
        },
    );
    redis.resume();
    cached.wait_for_redis();
    shown("paused", &load.end());
    assert!(
        cached
            .router
            .metric("continuum_cache_redis_errors_total", "type=\"timeout\"")
            >= 1.0
    );
}

#[test]
#[contract("F44", "G6")]
fn a_slow_redis_does_not_delay_requests_repeatedly() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    let proxy = RedisProxy::before(&redis);
    let cached = in_redis(&proxy.url());
    cached.wait_for_redis();
    let load = FaultLoad::on(&cached);
    load.wait_for_requests(200);
    // Below the time limit of a command, and above the longest wait of a request.
    proxy.delay_ms.store(350, Ordering::SeqCst);
    load.wait_for_requests(1_000);
    let waited = cached.abandoned();
    shown("slow", &load.end());
    assert!(
        (1.0..=FEW + f64::from(POOL)).contains(&waited),
        "{waited} waited"
    );
    proxy.delay_ms.store(0, Ordering::SeqCst);
    eventually("Redis to be used again", || {
        cached.status(&chat_body("after"));
        (cached.status(&chat_body("after")) == "HIT stored" && redis.ask(&["DBSIZE"])[0] != "0")
            .then_some(())
    });
}

#[test]
#[contract("F45", "CK36")]
fn a_server_with_malformed_replies_counts_as_absent() {
    for reply_bytes in [
        &b"HTTP/1.1 200 OK\r\n\r\n"[..],
        b"$1073741824\r\n",
        b"*-5\r\n",
    ] {
        let cached = in_redis(&server_that_sends(reply_bytes));
        for text in ["a", "b"] {
            let first = cached.send(&chat_body(text));
            assert_eq!(
                (
                    first.status,
                    status(&cached.send(&chat_body(text))).as_str()
                ),
                (200, "HIT stored")
            );
        }
    }
}

#[test]
#[contract("F45", "CK65")]
fn a_server_that_answers_ok_to_everything_costs_hits_and_no_request() {
    let cached = in_redis(&server_that_sends(b"+PONG\r\n+PONG\r\n"));
    for text in ["a", "a", "b", "b"] {
        assert_eq!(cached.send(&chat_body(text)).status, 200);
    }
    assert!(
        cached
            .router
            .metric("continuum_cache_redis_errors_total", "type=\"other\"")
            >= 1.0
    );
}

/// The URL of a server that sends this reply to everything.
fn server_that_sends(reply_bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten().take(1_000) {
            std::thread::spawn(move || {
                let mut buffer = [0; 4_096];
                while stream.read(&mut buffer).is_ok_and(|count| count > 0)
                    && stream.write_all(reply_bytes).is_ok()
                {}
            });
        }
    });
    url
}

#[test]
#[contract("F46", "S46", "CK34")]
fn an_entry_changed_by_another_writer_is_never_served() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    let config = format!(
        ", backend: redis, lookup_budget: 20s, mac_key: \"of these routers alone\", \
         redis: {{url: \"{}\", command_timeout_ms: 20000}}",
        redis.url()
    );
    let cached = CachedRouter::start(&config);
    cached.wait_for_redis();
    for text in ["a", "b"] {
        cached.status(&chat_body(text));
    }
    let stored = || redis.ask(&["KEYS", "cr:resp:*"]);
    eventually("both to be stored", || (stored().len() == 2).then_some(()));
    let keys = stored();
    // One reply in the place of another, and garbage in the middle of it.
    redis.ask(&["COPY", &keys[0], &keys[1], "REPLACE"]);
    redis.ask(&["SETRANGE", &keys[0], "60", "forged"]);
    for text in ["a", "b"] {
        let reply = cached.send(&chat_body(text));
        assert_eq!(
            (status(&reply).as_str(), reply.text().as_str()),
            ("MISS not_found", super::FINE)
        );
        assert_eq!(
            cached.status(&chat_body(text)),
            "HIT stored",
            "a new reply is kept"
        );
    }
    assert_eq!(
        cached
            .router
            .metric("warmroute_cache_auth_failures_total", ""),
        2.0
    );
    // A router with another key trusts no entry.
    let other = CachedRouter::start(&config.replace("of these", "of other"));
    other.wait_for_redis();
    assert_eq!(other.status(&chat_body("a")), "MISS not_found");
}

#[test]
#[contract("S46", "CK34")]
fn a_reply_whose_ttl_another_writer_extended_expires_on_time() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    let cached = CachedRouter::start(&format!(
        ", ttl: 1s, backend: redis, lookup_budget: 20s, redis: {{url: \"{}\", command_timeout_ms: 20000}}",
        redis.url()
    ));
    cached.wait_for_redis();
    // Again and again, as a machine that stands still lets its second pass.
    eventually("a stored reply to be extended", || {
        cached.status(&chat_body("why?"));
        let keys = redis.ask(&["KEYS", "cr:resp:*"]);
        let is_extended = keys.len() == 1 && redis.ask(&["PERSIST", &keys[0]]) == ["1"];
        (is_extended && cached.status(&chat_body("why?")) == "HIT stored").then_some(())
    });
    std::thread::sleep(Duration::from_millis(2_200));
    assert_eq!(cached.status(&chat_body("why?")), "MISS not_found");
}

#[test]
#[contract("CK31", "CK39", "CK53")]
fn routers_share_replies_through_one_server() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    let [one, other] = [(); 2].map(|()| {
        CachedRouter::start(&format!(
            ", backend: redis, lookup_budget: 20s, redis: {{url: \"{}\", command_timeout_ms: 20000}}",
            redis.url()
        ))
    });
    one.wait_for_redis();
    other.wait_for_redis();
    assert_eq!(one.status(&chat_body("why?")), "MISS not_found");
    // Another router may read before this one has written.
    eventually("the reply to be stored", || {
        (redis.ask(&["KEYS", "cr:resp:*"]).len() == 1).then_some(())
    });
    assert_eq!(other.status(&chat_body("why?")), "HIT stored");
    assert_eq!(other.engine.requests(), 0);
}

#[test]
#[contract("CK35", "CH20", "CH19")]
fn without_a_fallback_requests_go_on_uncached_while_redis_is_away() {
    let config =
        ", backend: redis, redis: {url: \"redis://127.0.0.1:1\", fallback_to_memory: false}";
    let cached = CachedRouter::start(config);
    // A finished request without a repeatable reply is not joined.
    let body: Value = without(chat_body("why?"), "temperature");
    assert_eq!(
        [cached.status(&body), cached.status(&body)],
        ["BYPASS store_failed", "BYPASS store_failed"]
    );
    assert_eq!(cached.stats()["requests"]["skip"], json!(2));
}

/// A slow proxy between a router and Redis.
struct RedisProxy {
    address: String,
    delay_ms: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl RedisProxy {
    fn before(redis: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let to = redis.url().replace("redis://", "");
        let (delay_ms, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (delay, stopped) = (Arc::clone(&delay_ms), Arc::clone(&stop));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(server) = TcpStream::connect(&to) else {
                    continue;
                };
                let (Ok(from), Ok(back)) = (client.try_clone(), server.try_clone()) else {
                    continue;
                };
                std::thread::spawn(move || copy(client, server, &AtomicU64::new(0)));
                let delay = Arc::clone(&delay);
                std::thread::spawn(move || copy(back, from, &delay));
            }
        });
        Self {
            address,
            delay_ms,
            stop,
        }
    }

    fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

impl Drop for RedisProxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, delay_ms: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        std::thread::sleep(Duration::from_millis(delay_ms.load(Ordering::SeqCst)));
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
