//! What a peer may make us do.

use std::{sync::Arc, time::Duration};

use net::Destinations;

use crate::ReceiveBudget;

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
    /// Peers of a bound socket at once. With as many, a new one takes the place of the one that has sent nothing for the
    /// longest time.
    pub max_peers: usize,
    /// Bytes that all peers of bound sockets may have in incomplete messages.
    pub receive_budget: Arc<ReceiveBudget>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            destinations: Destinations::Any,
            max_message: 64 << 20,
            max_frames: 64,
            handshake_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(10),
            max_peers: 1024,
            receive_budget: ReceiveBudget::of_process(),
        }
    }
}
