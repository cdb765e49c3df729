//! Replies that are kept: in this process, in Redis, in an object store, or in several of them.
//!
//! [`ResponseCache`] is looked up in ([`ResponseCache::get`]) and filled ([`ResponseCache::put`]) by the request path. What may
//! be kept, for whom and for how long it counts as the same request is in the key that it brings; what a body is stays its
//! own matter too ([`Entry::label`]).
//!
//! Not here: keys and eligibility (`dialect`, `gateway`), connections to Redis (`redis-store`).
//!
//! **Invariant**: nothing that a store does makes a request fail, or makes one wait longer than `lookup_budget`.
//! **Invariant**: what was begun before a clear is not found after it.
//! **Invariant**: everything that waits, and everything in memory, has a bound.

#![cfg_attr(
    not(all(feature = "redis-cache", feature = "s3-cache")),
    allow(dead_code, reason = "what only a store that is not built uses")
)]

mod cache;
mod chance;
mod counters;
mod engine;
mod entry;
mod entry_count;
mod fault;
mod generation;
mod hit_rate;
mod hmac_envelope;
mod key;
mod redis_pool;
mod relief;
mod similarity;
mod stats;
mod store;
mod tasks;
mod telemetry;
mod unit_vector;
mod writer;

pub use cache::ResponseCache;
pub use entry::{CacheEntry, CacheLookup, CacheResult};
pub use fault::{CacheStartError, StoreFault};
pub use generation::CacheGeneration;
pub use key::CacheKey;
pub use redis_pool::RedisPool;
pub use relief::Relief;
pub use stats::{CacheStats, RedisStats};
pub use unit_vector::UnitVector;
