//! What a program says that cannot speak to Redis.
//!
//! Contract CH22. `./test` runs it in a build of its own, whose results have no row in the contract status.

#![cfg(not(feature = "redis-cache"))]

use net::Clock;
use tokenization::RedisTokenStore;

#[test]
fn token_ids_that_are_to_be_shared_in_a_program_without_redis_are_a_clear_error_at_the_start() {
    let told = RedisTokenStore::start(None, Clock::system()).expect_err("there is no Redis here");
    assert_eq!(
        told.to_string(),
        "routing.lmcache.prompt_cache.backend is redis, and this program was built without it: build it with the feature \
         `redis-cache`, or set backend: memory"
    );
}
