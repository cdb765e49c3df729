//! The process's connections to Redis, or a placeholder type in a build without them.

#[cfg(feature = "redis-cache")]
pub use redis_store::RedisPool;

/// Uninhabited in a build without the feature `redis-cache`.
#[cfg(not(feature = "redis-cache"))]
#[derive(Debug)]
pub enum RedisPool {}
