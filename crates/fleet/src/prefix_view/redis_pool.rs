//! The process's connections to Redis, or a placeholder type in a build without them.

#[cfg(feature = "redis-cache")]
pub use redis_store::RedisPool;

/// A build without the feature `redis-cache` has none.
#[cfg(not(feature = "redis-cache"))]
#[derive(Debug)]
pub enum RedisPool {}
