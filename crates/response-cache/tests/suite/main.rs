//! The cache with every store: the common contract, each store seen from outside, and every fault.
//!
//! Redis is a real `redis-server`, the object store a small real one; the connection between them
//! and the cache may be slow or broken ([`proxy`]).

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod contract;
mod memory;
mod metrics;
mod proxy;
mod redis;
mod redis_faults;
#[path = "../../../redis-store/tests/redis_server/mod.rs"]
mod redis_server;
mod s3;
mod s3_faults;
mod s3_server;
mod tiers;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use config::ConfigSource;
use net::Clock;
use prometheus_client::registry::Registry;
use response_cache::{
    CacheEntry, CacheKey, CacheLookup, CacheScope, CacheStartError, RedisPool, ResponseCache,
};

/// An upper bound; only a failing test reaches it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A cache with its tasks and metrics.
struct StartedCache {
    cache: Arc<ResponseCache>,
    pool: Option<Arc<RedisPool>>,
    registry: Registry,
}

impl std::ops::Deref for StartedCache {
    type Target = ResponseCache;

    fn deref(&self) -> &ResponseCache {
        &self.cache
    }
}

/// The section `response_cache` with these keys, as in a file.
fn settings(keys: &str) -> config::ResponseCacheSection {
    let text = format!("response_cache: {{{keys}}}\n");
    let source = ConfigSource::of_text("test.yaml", &text);
    config::load(source)
        .unwrap_or_else(|problems| panic!("{text}: {problems:?}"))
        .response_cache
}

/// An enabled cache, started as in the program.
fn start(keys: &str) -> StartedCache {
    try_start(&format!("enabled: true, {keys}")).unwrap()
}

fn try_start(keys: &str) -> Result<StartedCache, CacheStartError> {
    let settings = settings(keys);
    let (clock, mut registry) = (Clock::system(), Registry::default());
    let pool = settings
        .redis
        .server
        .as_ref()
        .map(|server| Arc::new(RedisPool::start(server, clock).unwrap()));
    if let Some(pool) = &pool {
        pool.register(&mut registry);
    }
    let cache = ResponseCache::start(&settings, pool.clone(), clock, &mut registry)?;
    Ok(StartedCache {
        cache,
        pool,
        registry,
    })
}

impl StartedCache {
    /// The value of the metric with this name and labels.
    fn metric(&self, name: &str) -> f64 {
        let text = self.metrics();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in:\n{text}"))
            .parse()
            .unwrap()
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    /// Stores an entry that was begun just now.
    fn insert(&self, key: CacheKey, body: &[u8]) {
        self.put(key, entry(body), self.generation(), ());
    }

    /// Stores an entry, and waits until a lookup finds it.
    async fn insert_and_find(&self, key: CacheKey, body: &[u8]) {
        self.insert(key, body);
        self.until_found(key, body).await;
    }

    async fn until_found(&self, key: CacheKey, body: &[u8]) {
        self.until(key, &CacheLookup::Found(entry(body))).await;
    }

    async fn until_removed(&self, key: CacheKey) {
        self.until(key, &CacheLookup::NotFound).await;
    }

    async fn until(&self, key: CacheKey, expected: &CacheLookup) {
        let start = Clock::system().now();
        while self.get(&key).await != *expected {
            if Clock::system().now().since(start) > TIMEOUT {
                let metrics = self.metrics();
                let counted: Vec<_> = metrics
                    .lines()
                    .filter(|line| !line.starts_with('#') && !line.ends_with(" 0"))
                    .collect();
                let found = matches!(expected, CacheLookup::Found(_));
                panic!(
                    "waited {TIMEOUT:?} for {key} to be {}:\n{}",
                    if found { "there" } else { "gone" },
                    counted.join("\n")
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn entry(body: &[u8]) -> CacheEntry {
    CacheEntry {
        label: 7,
        stored_at: 1_700_000_000,
        body: Bytes::copy_from_slice(body),
    }
}

fn key(number: u8) -> CacheKey {
    key_of("default", "m", number)
}

fn key_of(tenant: &str, model: &str, number: u8) -> CacheKey {
    CacheKey::new(CacheScope::of(tenant, model), [number; 32])
}

/// Waits until `check` returns true.
async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let start = Clock::system().now();
    while !check().await {
        assert!(
            Clock::system().now().since(start) < TIMEOUT,
            "waited {TIMEOUT:?} for {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
