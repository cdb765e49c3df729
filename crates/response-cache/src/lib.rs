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
mod census;
mod chance;
mod direction;
mod engine;
mod entry;
mod fault;
mod generation;
mod hit_rate;
mod key;
mod redis_pool;
mod relief;
mod seal;
mod similar;
mod stats;
mod store;
mod tally;
mod tasks;
mod telemetry;
mod writer;

pub use cache::ResponseCache;
pub use direction::Direction;
pub use entry::{Entry, Looked, Lookup};
pub use fault::{StartError, StoreFault};
pub use generation::Generation;
pub use key::CacheKey;
pub use redis_pool::RedisPool;
pub use relief::Relief;
pub use stats::{CacheStats, RedisStats};
