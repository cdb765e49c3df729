//! Section `response_cache.redis`: the Redis server that stores share.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use settings::{
    RedisUrl, ValueKind,
    kinds::{int, milliseconds, seconds},
};

settings::section! {
    /// Section `response_cache.redis`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct CacheRedis {
        /// Where the server is. Best as `${NAME}` where it holds a password.
        url: Option<RedisUrl> = "~", restart;
        /// Encrypt the connection, as with a URL of `rediss://`.
        tls: bool = "false", restart;
        /// Most connections; half of them serve replies, half `kv_cache_index`;
        /// `routing.lmcache.prompt_cache` takes three at most of what is free.
        pool_size: NonZeroU32 = "8" in int(1, 1_024), restart;
        /// Time for one connection, greeting included.
        connect_timeout "connect_timeout_ms": Duration = "3000"
            in milliseconds(1, 3_600_000), restart;
        /// Time for one answer; a server that takes longer is left out until it answers again.
        command_timeout "command_timeout_ms": Duration = "1000"
            in milliseconds(1, 3_600_000), restart;
        /// What keys of replies begin with; those of `kv_cache_index` always with `cr:kvidx:`,
        /// those of `routing.lmcache.prompt_cache` with `cr:tok:`.
        key_prefix: String = "cr:resp:" in ValueKind::KeyPrefix { max: 256 }, restart;
        /// Keep replies in memory while the server is away.
        fallback_to_memory: bool = "true", restart;
        /// Most replies kept there.
        fallback_capacity: NonZeroUsize = "1000" in int(1, 1 << 32), restart;
        /// How long they are kept there.
        fallback_ttl "fallback_ttl_seconds": Duration = "300" in seconds(1, 86_400), restart;
    }
    with {
        /// The server; always set if the cache is on and in Redis.
        pub server: Option<RedisSection>;
    }
}

/// A Redis server, and the connections to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSection {
    /// Address and credentials of the server.
    pub url: RedisUrl,
    /// Whether the connection is encrypted (the URL's scheme already applied).
    pub tls: bool,
    /// Most connections.
    pub pool_size: NonZeroU32,
    /// Time limit for one connection, greeting included.
    pub connect_timeout: Duration,
    /// Time limit for one answer.
    pub command_timeout: Duration,
}

/// Memory that replaces an unavailable server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFallback {
    /// Most replies in it.
    pub capacity: NonZeroUsize,
    /// Lifetime of replies in it.
    pub ttl: Duration,
}

impl CacheRedis {
    /// Returns the server, if one is configured.
    pub fn address(&self) -> Option<RedisSection> {
        let url = self.url.clone()?;
        Some(RedisSection {
            tls: url.is_tls() || self.tls,
            url,
            pool_size: self.pool_size,
            connect_timeout: self.connect_timeout,
            command_timeout: self.command_timeout,
        })
    }

    /// Returns the fallback for the server, if there is one.
    pub fn fallback(&self) -> Option<CacheFallback> {
        self.fallback_to_memory.then_some(CacheFallback {
            capacity: self.fallback_capacity,
            ttl: self.fallback_ttl,
        })
    }
}
