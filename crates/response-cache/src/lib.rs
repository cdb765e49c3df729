//! The response cache: in this process, in Redis, in an object store, or in several of them.
//!
//! The request path looks replies up in a [`ResponseCache`] ([`ResponseCache::get`]) and stores
//! them ([`ResponseCache::put`]). Its key determines which replies may be cached, for whom, and
//! which requests are equal. [`Eligibility`] reads from a request whether it may use the cache. A
//! [`CacheFiller`] assembles and stores whole replies in the background, and a [`Coalescer`] lets
//! equal requests share one reply while it arrives.
//!
//! Not here: keys and the form of cached replies (`dialect`), their headers (`gateway`), connections
//! to Redis (`redis-store`).
//!
//! **Invariant**: a store never makes a request fail, or wait longer than `lookup_budget`.
//! **Invariant**: an entry that began before a clear is not found after it.
//! **Invariant**: every wait and all memory have a bound.

#![cfg_attr(
    not(all(feature = "redis-cache", feature = "s3-cache")),
    allow(dead_code, reason = "what only a store that is not built uses")
)]

mod cache;
mod coalesce;
mod counters;
mod eligibility;
mod engine;
mod entry;
mod entry_count;
mod fault;
mod filler;
mod generation;
mod hit_rate;
mod hmac_envelope;
mod key;
mod redis_pool;
mod relief;
mod replay;
mod similarity;
mod stats;
mod store;
mod tasks;
mod telemetry;
mod unit_vector;
mod writer;

pub use cache::ResponseCache;
pub use coalesce::{
    Coalescer, FinishedReplyUse, FlightEnd, FlightKey, FlightMember, FlightRole, SharedBody,
};
pub use eligibility::{
    BodyProperties, CacheReason, CacheRequest, Eligibility, RequestDigests, RequestedForm,
    RoutingOverrides, is_cached,
};
pub use entry::{CacheEntry, CacheLookup, CacheResult};
pub use fault::{CacheStartError, StoreFault};
pub use filler::{CacheFiller, EntryKind, FillingBody, ReplyFill, SimilarQuery};
pub use generation::CacheGeneration;
pub use key::{CacheKey, CacheScope, CacheSelection};
pub use redis_pool::RedisPool;
pub use relief::Relief;
pub use replay::HitReply;
pub use stats::{CacheStats, RedisStats};
pub use unit_vector::UnitVector;
