//! The error of a build without support for Redis.
//!
//! `./test` runs it in a build of its own.

#![cfg(not(feature = "redis-cache"))]

use contract_id::contract;
use net::Clock;
use tokenization::RedisTokenStore;

#[test]
#[contract("CH22")]
fn a_build_without_redis_reports_a_clear_error_for_shared_token_ids() {
    let error = RedisTokenStore::start(None, Clock::system()).expect_err("there is no Redis here");
    assert_eq!(
        error.to_string(),
        "routing.lmcache.prompt_cache.backend is redis, and this program was built without it: build it with the feature \
         `redis-cache`, or set backend: memory"
    );
}
