//! Connections to Redis that all stores share.

use std::sync::Arc;

use config::Settings;
use fleet::RedisPool;
use net::Clock;
use prometheus_client::registry::Registry;
use tokenization::{RedisTokenStore, SharedTokensError};

/// Reason why no pool can be created.
#[derive(Debug, thiserror::Error)]
#[error("response_cache.redis: {0}")]
pub(crate) struct PoolError(net::TrustError);

/// Returns one pool if any store is in Redis, with its metric families.
#[cfg(feature = "redis-cache")]
pub(super) fn pool(
    settings: &Settings,
    clock: Clock,
    registry: &mut Registry,
) -> Result<Option<Arc<RedisPool>>, PoolError> {
    let of_replies = settings.response_cache.redis.server.as_ref();
    let server = settings
        .kv_cache_index
        .redis
        .as_ref()
        .or(of_replies)
        .or(settings.prompt_cache_redis.as_ref());
    let Some(server) = server else {
        return Ok(None);
    };
    let pool = RedisPool::start(server, clock).map_err(PoolError)?;
    pool.register(registry);
    Ok(Some(Arc::new(pool)))
}

/// As above, for a build without Redis; a store that needs it reports that it is unavailable.
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

/// Returns the store of token ids from engines, on the same connections.
pub(super) fn tokens(
    settings: &Settings,
    pool: Option<&Arc<RedisPool>>,
    clock: Clock,
) -> Result<Option<RedisTokenStore>, SharedTokensError> {
    if settings.prompt_cache_redis.is_none() {
        return Ok(None);
    }
    RedisTokenStore::start(pool.cloned(), clock).map(Some)
}
