//! Redis killed, paused, slow, full, read-only, answering garbage, and absent: few requests wait
//! for it, none beyond its budget, and memory answers in the meantime.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use contract_id::contract;
use net::Clock;
use response_cache::CacheLookup;

use crate::{StartedCache, entry, key, proxy::DelayProxy, redis_server::RedisServer, start, until};

const FALLBACK: &str = "continuum_cache_fallback_active";
const ABANDONED: &str = "warmroute_cache_lookups_abandoned_total";

/// The lookup budget exceeds the stalls of a busy machine, and is below the command timeout.
fn cache_at(url: &str, more: &str) -> StartedCache {
    cache_that_waits(1_500, url, more)
}

/// A cache that treats the server as away only if an answer takes so many milliseconds.
fn cache_that_waits(command_timeout_ms: u32, url: &str, more: &str) -> StartedCache {
    let limit = format!("command_timeout_ms: {command_timeout_ms}");
    let redis = format!("redis: {{url: \"{url}\", {limit}, {more}}}");
    start(&format!("backend: redis, lookup_budget: 500ms, {redis}"))
}

async fn router(server: &RedisServer, more: &str) -> StartedCache {
    let cache = cache_at(&server.url(), more);
    until("redis to be seen", async || {
        !cache.absent().contains(&"redis")
    })
    .await;
    cache
}

fn name(number: u8) -> String {
    format!("cr:resp:{}", key(number))
}

/// The median time of `count` lookups in sequence, and their total time.
async fn lookup_times(cache: &StartedCache, count: usize) -> (Duration, Duration) {
    let clock = Clock::system();
    let mut each = Vec::with_capacity(count);
    for _ in 0..count {
        let start = clock.now();
        cache.get(&key(99)).await;
        each.push(clock.now().since(start));
    }
    each.sort_unstable();
    (each[count / 2], each.iter().sum())
}

/// An absent server costs no more than the check for it. The bounds are for a busy machine.
async fn costs_nothing(cache: &StartedCache) {
    let (most, all) = lookup_times(cache, 1_000).await;
    assert!(
        most < Duration::from_millis(1) && all < Duration::from_secs(10),
        "{most:?}, {all:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK36", "CK37", "CK38", "F41", "F48", "G6")]
async fn the_fallback_serves_until_an_absent_server_appears() {
    test_programs::require!(RedisServer);
    let mut server = RedisServer::start();
    server.kill();
    let cache = cache_at(&server.url(), "");
    costs_nothing(&cache).await;
    assert_eq!(cache.metric(FALLBACK), 1.0);
    cache.insert_and_find(key(1), b"in memory").await;
    let stats = cache.stats().await;
    assert_eq!(
        (stats.entries, stats.capacity, stats.backend_type),
        (1, Some(1_000), "redis")
    );
    assert!(stats.redis.is_some_and(|redis| redis.fallback_active));

    server.start_again();
    until("redis to be seen", async || {
        !cache.absent().contains(&"redis")
    })
    .await;
    assert_eq!(cache.metric(FALLBACK), 0.0);
    assert!(
        cache
            .stats()
            .await
            .redis
            .is_some_and(|redis| !redis.fallback_active)
    );
    cache.insert(key(2), b"in redis");
    until("the reply to be written", async || {
        server.ask(&["EXISTS", &name(2)]) == ["1"]
    })
    .await;
    cache.until_found(key(2), b"in redis").await;
}

/// A port that refuses connections: memory stands in at once.
const ABSENT: &str = "redis://127.0.0.1:1";

#[tokio::test(flavor = "multi_thread")]
#[contract("CK35")]
async fn the_fallback_keeps_as_many_entries_as_its_capacity() {
    let cache = cache_at(ABSENT, "fallback_capacity: 2");
    for number in 1..=3 {
        cache.insert_and_find(key(number), b"in memory").await;
    }
    cache.until_removed(key(1)).await;
    cache.until_found(key(3), b"in memory").await;
    let stats = cache.stats().await;
    assert_eq!((stats.entries, stats.capacity), (2, Some(2)));
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK35")]
async fn an_entry_of_the_fallback_lives_for_the_fallback_s_time() {
    let clock = Clock::system();
    let cache = cache_at(ABSENT, "fallback_ttl_seconds: 3");
    let start = clock.now();
    cache.insert_and_find(key(1), b"in memory").await;
    // The cache's own entries live for minutes.
    cache.until_removed(key(1)).await;
    assert!(clock.now().since(start) >= Duration::from_secs(3));
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK36", "CK81", "F42", "G6")]
async fn a_server_that_dies_under_load_fails_no_lookup_and_delays_few() {
    test_programs::require!(RedisServer);
    let mut server = RedisServer::start();
    let cache = router(&server, "").await;
    for number in 1..=8 {
        cache.insert_and_find(key(number), b"answer").await;
    }
    let load: Vec<_> = (1..=8)
        .map(|number| {
            let cache = Arc::clone(&cache.cache);
            tokio::spawn(async move {
                for _ in 0..400 {
                    assert!(
                        cache.get(&key(number)).await != CacheLookup::Unavailable,
                        "memory stands in"
                    );
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.kill();
    for task in load {
        task.await.unwrap();
    }
    until("the loss to be noticed", async || {
        cache.absent().contains(&"redis")
    })
    .await;
    assert_eq!(cache.metric(FALLBACK), 1.0);
    assert!(cache.metric(ABANDONED) <= 8.0);
    costs_nothing(&cache).await;
    // Written to memory while the server is away, and found there.
    cache.insert_and_find(key(20), b"meanwhile").await;
    server.start_again();
    until("redis to be seen", async || {
        !cache.absent().contains(&"redis")
    })
    .await;
    cache.insert(key(21), b"afterwards");
    until("the reply to be written", async || {
        server.ask(&["EXISTS", &name(21)]) == ["1"]
    })
    .await;
    assert_eq!(cache.metric(FALLBACK), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK81", "F43", "G6")]
async fn lookups_wait_once_per_connection_for_a_silent_server() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let cache = router(&server, "").await;
    cache.insert_and_find(key(1), b"answer").await;
    let before = cache.metric(ABANDONED);
    server.pause();
    let load: Vec<_> = (0..50)
        .map(|_| {
            let cache = Arc::clone(&cache.cache);
            tokio::spawn(async move {
                for _ in 0..20 {
                    assert_eq!(
                        cache.get(&key(1)).await,
                        CacheLookup::NotFound,
                        "by memory, which does not have it"
                    );
                }
            })
        })
        .collect();
    for task in load {
        task.await.unwrap();
    }
    let waited = cache.metric(ABANDONED) - before;
    assert!((1.0..=8.0).contains(&waited), "{waited}");
    assert_eq!(
        cache.metric(FALLBACK),
        1.0,
        "memory answers already, though the server is not known to be away"
    );
    until("the pause to be noticed", async || {
        cache.absent().contains(&"redis")
    })
    .await;
    assert!(cache.metric("continuum_cache_redis_errors_total{type=\"timeout\"}") > 0.0);
    costs_nothing(&cache).await;
    assert!(
        cache.metric(ABANDONED) - before <= 8.0,
        "no lookup waits twice"
    );

    server.resume();
    until("redis to be seen", async || {
        !cache.absent().contains(&"redis")
    })
    .await;
    cache.until_found(key(1), b"answer").await;
    until("memory no longer to stand in", async || {
        lookup_times(&cache, 1).await;
        cache.metric(FALLBACK) == 0.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("F44")]
async fn a_slow_server_rarely_costs_a_lookup_budget_and_its_late_answers_are_used() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let proxy = DelayProxy::start(server.url().rsplit_once(':').unwrap().1.parse().unwrap());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let cache = cache_that_waits(60_000, &url, "");
    until("redis to be seen", async || {
        !cache.absent().contains(&"redis")
    })
    .await;
    cache.insert_and_find(key(1), b"answer").await;
    let before = cache.metric(ABANDONED);
    proxy.delay(Duration::from_millis(600));
    assert_eq!(
        cache.get(&key(1)).await,
        CacheLookup::NotFound,
        "not in time, and memory has nothing"
    );
    assert_eq!(cache.metric(ABANDONED) - before, 1.0);
    let (_, all) = lookup_times(&cache, 500).await;
    assert!(
        all < Duration::from_secs(60),
        "the server alone would take 300 s: {all:?}"
    );
    assert!(!cache.absent().contains(&"redis"), "slow is not away");
    assert_eq!(cache.metric(FALLBACK), 1.0);
    // The late answer has arrived in the meantime.
    cache.until_found(key(1), b"answer").await;
    // A reply written now is also found, although lookups do not wait for the server.
    cache.insert(key(2), b"meanwhile");
    until("it to be in memory", async || {
        cache.stats().await.entries == 2
    })
    .await;
    assert_eq!(
        cache.get(&key(2)).await,
        CacheLookup::Found(entry(b"meanwhile"))
    );
    assert_eq!(server.ask(&["EXISTS", &name(2)]), ["1"], "and in redis too");

    proxy.delay(Duration::ZERO);
    until("the server to be waited for again", async || {
        lookup_times(&cache, 1).await;
        cache.metric(FALLBACK) == 0.0
    })
    .await;
    server.ask(&["DEL", &name(2)]);
    assert_eq!(
        cache.get(&key(2)).await,
        CacheLookup::NotFound,
        "redis is queried, not memory"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK35", "CH20", "CK38")]
async fn without_a_fallback_lookups_fail_at_once_and_are_counted() {
    test_programs::require!(RedisServer);
    let mut server = RedisServer::start();
    let cache = router(&server, "fallback_to_memory: false").await;
    cache.insert_and_find(key(1), b"answer").await;
    server.kill();
    until("the loss to be noticed", async || {
        cache.get(&key(1)).await == CacheLookup::Unavailable
    })
    .await;
    costs_nothing(&cache).await;
    assert_eq!(cache.metric(FALLBACK), 0.0, "nothing stands in");
    assert!(cache.metric("continuum_cache_redis_errors_total{type=\"connection\"}") > 0.0);
    let dropped = cache.metric("warmroute_cache_writes_dropped_total");
    cache.insert(key(2), b"of nobody");
    until("the loss to be counted", async || {
        cache.metric("warmroute_cache_writes_dropped_total") > dropped
    })
    .await;
    assert_eq!(cache.stats().await.entries, 0);
    server.start_again();
    until("redis to be seen", async || {
        cache.get(&key(1)).await == CacheLookup::NotFound
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("F49")]
async fn a_read_only_server_is_still_read() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let cache = router(&server, "").await;
    cache.insert_and_find(key(1), b"answer").await;
    for (change, back) in [
        (
            &["CONFIG", "SET", "maxmemory", "1"][..],
            &["CONFIG", "SET", "maxmemory", "0"][..],
        ),
        (
            &["REPLICAOF", "127.0.0.1", "1"],
            &["REPLICAOF", "NO", "ONE"],
        ),
    ] {
        server.ask(change);
        let (dropped, errors) = (
            cache.metric("warmroute_cache_writes_dropped_total"),
            cache.metric("continuum_cache_redis_errors_total{type=\"other\"}"),
        );
        cache.insert(key(2), b"refused");
        until("the refusal to be counted", async || {
            cache.metric("warmroute_cache_writes_dropped_total") > dropped
                && cache.metric("continuum_cache_redis_errors_total{type=\"other\"}") > errors
        })
        .await;
        cache.until_found(key(1), b"answer").await;
        assert!(!cache.absent().contains(&"redis"), "a refusal is no outage");
        server.ask(back);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("F45")]
async fn a_key_of_another_type_or_too_long_a_value_is_a_miss() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let cache = router(&server, "").await;
    server.ask(&["RPUSH", &name(1), "a", "list"]);
    server.ask(&["SETRANGE", &name(2), "40000000", "x"]);
    assert_eq!(cache.get(&key(1)).await, CacheLookup::NotFound);
    assert_eq!(cache.get(&key(2)).await, CacheLookup::NotFound);
    // Detection may take longer than the budget.
    until("both to be counted", async || {
        cache.metric("continuum_cache_redis_errors_total{type=\"other\"}") >= 2.0
    })
    .await;
    assert!(!cache.absent().contains(&"redis"));
    cache.insert_and_find(key(3), b"answer").await;
}

/// Answers `PING` correctly, and everything else with the same bytes. Ends with the test.
fn fixed_answer_server(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let serve = move |mut stream: TcpStream| {
        let mut received = [0; 4096];
        while let Ok(count) = stream.read(&mut received)
            && count > 0
        {
            let is_ping = received[..count].windows(4).any(|word| word == b"PING");
            if stream
                .write_all(if is_ping { b"+PONG\r\n" } else { answer })
                .is_err()
            {
                return;
            }
        }
    };
    std::thread::spawn(move || {
        listener
            .incoming()
            .flatten()
            .for_each(|stream| drop(std::thread::spawn(move || serve(stream))))
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
#[contract("F45")]
async fn any_invalid_answer_is_only_a_miss() {
    let long: &'static [u8] = Box::leak(
        [b"$1073741824\r\n".to_vec(), vec![b'x'; 32 << 20]]
            .concat()
            .into(),
    );
    let answers: [&'static [u8]; 9] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\xff\x16\x03\x01 garbage \r\n",
        b"$-2\r\n",
        b"*2147483647\r\n:1\r\n",
        b"+OK\r\n:1\r\n",
        b"-ERR go away\r\n-ERR go away\r\n",
        b"-MOVED 1 10.0.0.1:6379\r\n-MOVED 1 10.0.0.1:6379\r\n",
        b"$6\r\nforged\r\n:1000\r\n",
        long,
    ];
    for answer in answers {
        let cache = cache_at(&fixed_answer_server(answer), "");
        until("the impostor to be believed", async || {
            !cache.absent().contains(&"redis")
        })
        .await;
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(40)]);
        for _ in 0..20 {
            assert_eq!(cache.get(&key(1)).await, CacheLookup::NotFound, "{shown:?}");
        }
        let faults = || {
            let faults = ["connection", "timeout", "other"].map(|kind| {
                cache.metric(&format!(
                    "continuum_cache_redis_errors_total{{type=\"{kind}\"}}"
                ))
            });
            faults.iter().sum::<f64>() + cache.metric("warmroute_cache_auth_failures_total")
        };
        until(&format!("{shown:?} to be counted"), async || faults() > 0.0).await;
        cache.put(key(2), entry(b"answer"), cache.generation(), ());
    }
}
