//! The process's connections to Redis, or a placeholder in a program without the feature.

#[cfg(feature = "redis-cache")]
pub use redis_store::RedisPool;

/// Uninhabited in a program without the feature `redis-cache`.
#[cfg(not(feature = "redis-cache"))]
#[derive(Debug)]
pub enum RedisPool {}
