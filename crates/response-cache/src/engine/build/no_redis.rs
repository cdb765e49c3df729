//! Replaces the Redis store in a build without Redis.

use std::sync::Arc;

use config::ResponseCacheSection;

use super::RedisBackend;
use crate::{CacheStartError, engine::CacheParts, store::memory::MemoryStore};

pub(super) fn store(
    key: &'static str,
    _: &ResponseCacheSection,
    _: &Arc<MemoryStore>,
    _: &CacheParts,
) -> Result<RedisBackend, CacheStartError> {
    Err(CacheStartError::NotBuilt {
        store: "Redis",
        key,
        value: "redis",
        feature: "redis-cache",
    })
}
