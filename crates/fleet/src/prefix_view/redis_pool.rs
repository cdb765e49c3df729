//! The process's connections to Redis, or a type without values in a build without them.

#[cfg(feature = "redis-cache")]
pub use redis_store::RedisPool;
#[cfg(not(feature = "redis-cache"))]
pub use std::convert::Infallible as RedisPool;
