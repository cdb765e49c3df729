//! The process's connections to Redis, or the name of them in a program that cannot have any.

#[cfg(feature = "redis-cache")]
pub use redis_store::RedisPool;

/// In a program without the feature `redis-cache` there is none.
#[cfg(not(feature = "redis-cache"))]
#[derive(Debug)]
pub enum RedisPool {}
