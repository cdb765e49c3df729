//! The connections to Redis that all stores share.

use std::sync::Arc;

use config::{LmcacheSection, Settings};
use fleet::RedisPool;
use gateway::{RedisTokenStore, SharedTokensError};
use net::Clock;
use prometheus_client::registry::Registry;
use response_cache::{CacheStartError, ResponseCache};

/// Why there are none.
#[derive(Debug, thiserror::Error)]
#[error("response_cache.redis: {0}")]
pub(crate) struct PoolError(net::TrustError);

/// One pool where any store lies in Redis, with its metric families.
#[cfg(feature = "redis-cache")]
pub(super) fn pool(
    settings: &Settings,
    clock: Clock,
    registry: &mut Registry,
) -> Result<Option<Arc<RedisPool>>, PoolError> {
    let of_replies = settings.response_cache.redis.server.as_ref();
    let of_tokens = settings
        .routing
        .lmcache
        .as_ref()
        .and_then(|lmcache| lmcache.prompt_cache.redis.as_ref());
    let server = settings
        .kv_cache_index
        .redis
        .as_ref()
        .or(of_replies)
        .or(of_tokens);
    let Some(server) = server else {
        return Ok(None);
    };
    let pool = RedisPool::start(server, clock).map_err(PoolError)?;
    pool.register(registry);
    Ok(Some(Arc::new(pool)))
}

/// A store that needs it says that it cannot be had.
#[cfg(not(feature = "redis-cache"))]
#[expect(
    clippy::unnecessary_wraps,
    reason = "as where there can be connections"
)]
pub(super) fn pool(
    _: &Settings,
    _: Clock,
    _: &mut Registry,
) -> Result<Option<Arc<RedisPool>>, PoolError> {
    Ok(None)
}

/// Kept replies, on the same connections.
#[cfg(feature = "redis-cache")]
pub(super) fn replies(
    settings: &config::ResponseCacheSection,
    pool: Option<Arc<RedisPool>>,
    clock: Clock,
    registry: &mut Registry,
) -> Result<Arc<ResponseCache>, CacheStartError> {
    ResponseCache::start(settings, pool, clock, registry)
}

/// The same without any: where there is no Redis, no two crates agree on what its connections are.
#[cfg(not(feature = "redis-cache"))]
pub(super) fn replies(
    settings: &config::ResponseCacheSection,
    _: Option<Arc<RedisPool>>,
    clock: Clock,
    registry: &mut Registry,
) -> Result<Arc<ResponseCache>, CacheStartError> {
    ResponseCache::start(settings, None, clock, registry)
}

/// Token ids that engines told, on the same connections.
#[cfg(feature = "redis-cache")]
pub(super) fn tokens(
    settings: Option<&LmcacheSection>,
    pool: Option<&Arc<RedisPool>>,
    clock: Clock,
) -> Result<Option<RedisTokenStore>, SharedTokensError> {
    if !are_shared(settings) {
        return Ok(None);
    }
    RedisTokenStore::start(pool.cloned(), clock).map(Some)
}

/// The same without any.
#[cfg(not(feature = "redis-cache"))]
pub(super) fn tokens(
    settings: Option<&LmcacheSection>,
    _: Option<&Arc<RedisPool>>,
    clock: Clock,
) -> Result<Option<RedisTokenStore>, SharedTokensError> {
    if !are_shared(settings) {
        return Ok(None);
    }
    RedisTokenStore::start(None, clock).map(Some)
}

fn are_shared(settings: Option<&LmcacheSection>) -> bool {
    settings.is_some_and(|lmcache| lmcache.prompt_cache.redis.is_some())
}
