//! The error of a build without support for Redis.
//!
//! Contract CH22. `./test` runs it in a build of its own, whose results have no row in the contract
//! status.

#![cfg(not(feature = "redis-cache"))]

use net::Clock;
use tokenization::RedisTokenStore;

#[test]
fn a_build_without_redis_reports_a_clear_error_for_shared_token_ids() {
    let error = RedisTokenStore::start(None, Clock::system()).expect_err("there is no Redis here");
    assert_eq!(
        error.to_string(),
        "routing.lmcache.prompt_cache.backend is redis, and this program was built without it: build it with the feature \
         `redis-cache`, or set backend: memory"
    );
}
