//! The Redis server that stores share.

use std::{num::NonZeroU32, time::Duration};

use crate::RedisUrl;

/// `response_cache.redis`.
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
