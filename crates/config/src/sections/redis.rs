//! Section `response_cache.redis`: the Redis server that stores share.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use settings::{
    RedisUrl, ValueKind,
    kinds::{PAUSE, int, milliseconds, seconds},
};

settings::section! {
    /// Section `response_cache.redis`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct CacheRedis {
        /// URL of the server, or of the sentinels that know the primary by this name; write it as
        /// `${NAME}` if it has a password.
        url: Option<RedisUrl> = "~", restart;
        /// Encrypt the connection, as a `rediss://` URL does.
        tls: bool = "false", restart;
        /// File of certificate authorities that are trusted beside those of the system, PEM.
        tls_ca: Option<PathBuf> = "~", restart;
        /// Maximum number of connections: half for replies, half for `kv_cache_index`.
        /// `routing.lmcache.prompt_cache` uses up to three free ones.
        pool_size: NonZeroU32 = "8" in int(1, 1_024), restart;
        /// Time limit to open a connection, including the handshake.
        connect_timeout "connect_timeout_ms": Duration = "3000"
            in milliseconds(1, 3_600_000), restart;
        /// Time limit of one command. A server that exceeds it is not used until it answers again.
        command_timeout "command_timeout_ms": Duration = "1000"
            in milliseconds(1, 3_600_000), restart;
        /// Time between two checks (`PING`) of a server that answers.
        ping_interval: Duration = "30s" in PAUSE, restart;
        /// Key prefix of replies. `kv_cache_index` always uses `cr:kvidx:`, and
        /// `routing.lmcache.prompt_cache` uses `cr:tok:`.
        key_prefix: String = "cr:resp:" in ValueKind::KeyPrefix { max: 256 }, restart;
        /// Store replies in memory while the server is unavailable.
        fallback_to_memory: bool = "true", restart;
        /// Maximum number of replies in this fallback.
        fallback_capacity: NonZeroUsize = "1000" in int(1, 1 << 32), restart;
        /// Lifetime of a reply in this fallback.
        fallback_ttl "fallback_ttl_seconds": Duration = "300" in seconds(1, 86_400), restart;
    }
    with {
        /// The server; always set if the cache is enabled and in Redis.
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
    /// File of authorities that are trusted beside those of the system.
    pub tls_ca: Option<PathBuf>,
    /// Most connections.
    pub pool_size: NonZeroU32,
    /// Time limit for one connection, greeting included.
    pub connect_timeout: Duration,
    /// Time limit for one answer.
    pub command_timeout: Duration,
    /// Time between two checks of a server that answers.
    pub ping_interval: Duration,
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
            tls_ca: self.tls_ca.clone(),
            url,
            pool_size: self.pool_size,
            connect_timeout: self.connect_timeout,
            command_timeout: self.command_timeout,
            ping_interval: self.ping_interval,
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
