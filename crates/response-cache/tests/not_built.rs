//! The error of a build without support for a store.
//!
//! `./test` runs it in a build of its own.

#![cfg(not(all(feature = "redis-cache", feature = "s3-cache")))]
#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use contract_id::contract;
use net::Clock;
use prometheus_client::registry::Registry;
use response_cache::ResponseCache;

fn refusal(keys: &str) -> String {
    let text = format!("response_cache: {{enabled: true, {keys}}}\n");
    let source = config::ConfigSource::of_text("test.yaml", &text);
    let settings = config::load(source)
        .unwrap_or_else(|problems| panic!("{problems:?}"))
        .response_cache;
    ResponseCache::start(&settings, None, Clock::system(), &mut Registry::default())
        .unwrap_err()
        .to_string()
}

#[cfg(not(feature = "redis-cache"))]
#[tokio::test]
#[contract("CH22")]
async fn a_build_without_redis_reports_a_clear_error_at_the_start() {
    assert_eq!(
        refusal("backend: redis, redis: {url: \"redis://127.0.0.1:1\"}"),
        "response_cache needs Redis (response_cache.backend is redis), and this program was built without it: build it with \
         the feature `redis-cache`, or set response_cache.backend to another"
    );
}

#[cfg(not(feature = "s3-cache"))]
#[tokio::test]
#[contract("CH22")]
async fn a_build_without_object_stores_reports_a_clear_error_at_the_start() {
    assert_eq!(
        refusal("backend: tiered, l2: {endpoint: \"http://127.0.0.1:1\", bucket: b}"),
        "response_cache needs an object store (response_cache.backend is tiered), and this program was built without it: \
         build it with the feature `s3-cache`, or set response_cache.backend to another"
    );
}
