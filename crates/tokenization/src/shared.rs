//! Token ids that routers share in Redis, beside each router's own cache.
//!
//! Not here: the query for a request ([`crate::tokenize_query`]), this router's own cache
//! ([`crate::token_cache`]), and connections (`redis-store`).
//!
//! **Invariant**: a request waits for Redis at most [`redis_store::LOOKUP_BUDGET`], and never for a
//! write.

#![cfg_attr(
    not(feature = "redis-cache"),
    allow(dead_code, reason = "what only a program with Redis uses")
)]

mod name;
#[cfg(feature = "redis-cache")]
mod redis_store;
#[cfg(feature = "redis-cache")]
mod value;

use std::{sync::Arc, time::Duration};

pub(crate) use self::name::TokenScope;
#[cfg(feature = "redis-cache")]
pub use self::redis_store::RedisTokenStore;

/// A value that was found, and how long it stays valid.
#[derive(Debug)]
pub(crate) struct SharedTokensHit {
    pub(crate) ids: Arc<[u32]>,
    pub(crate) left: Duration,
}

/// The reason why tokens cannot be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedTokensError {
    /// No server is configured.
    #[error(
        "routing.lmcache.prompt_cache.backend is redis, and there is no Redis server: name it in response_cache.redis.url"
    )]
    NoServer,
    /// The program lacks the feature.
    #[error(
        "routing.lmcache.prompt_cache.backend is redis, and this program was built without it: build it with the feature \
         `redis-cache`, or set backend: memory"
    )]
    NotBuilt,
}

/// Uninhabited in a program without the feature `redis-cache`.
#[cfg(not(feature = "redis-cache"))]
#[derive(Debug)]
pub enum RedisTokenStore {}

#[cfg(not(feature = "redis-cache"))]
impl RedisTokenStore {
    /// Never starts.
    ///
    /// # Errors
    /// Always.
    pub fn start(
        _: Option<Arc<crate::RedisPool>>,
        _: net::Clock,
    ) -> Result<Self, SharedTokensError> {
        Err(SharedTokensError::NotBuilt)
    }

    #[expect(
        clippy::unused_async,
        reason = "as where there is something to wait for"
    )]
    pub(crate) async fn find(
        &self,
        _: &crate::token_cache::QueryDigest,
        _: TokenScope<'_>,
    ) -> Option<SharedTokensHit> {
        match *self {}
    }

    pub(crate) fn store(
        &self,
        _: &crate::token_cache::QueryDigest,
        _: TokenScope<'_>,
        _: &Arc<[u32]>,
        _: Duration,
    ) {
        match *self {}
    }
}
