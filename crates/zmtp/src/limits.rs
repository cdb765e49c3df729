//! What a peer may make us do.

use std::time::Duration;

use net::Destinations;

/// Limits that every connection keeps. A peer that breaks one is disconnected; nothing it announced is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Which addresses may be connected to.
    pub destinations: Destinations,
    /// Most bytes in all frames of one message together.
    pub max_message: usize,
    /// Most frames in one message.
    pub max_frames: usize,
    /// Time from connection to the end of the handshake.
    pub handshake_timeout: Duration,
    /// A peer that sent nothing for this long is sent a PING (ZMTP 3.1 only), and dropped after three times as long.
    pub heartbeat: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            destinations: Destinations::Any,
            max_message: 64 << 20,
            max_frames: 64,
            handshake_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(10),
        }
    }
}
