//! Limits on peers.

use std::{sync::Arc, time::Duration};

use net::Destinations;

use crate::ReceiveBudget;

/// Limits of every connection. A peer that breaks one is disconnected; an announced length is never
/// allocated in advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Permitted addresses of outgoing connections.
    pub destinations: Destinations,
    /// Byte limit of all frames of one message together.
    pub max_message: usize,
    /// Frame limit of one message.
    pub max_frames: usize,
    /// Time limit from connection to the end of the handshake.
    pub handshake_timeout: Duration,
    /// Silence of a peer after which it is sent a PING (ZMTP 3.1 only); it is dropped after three
    /// times as long.
    pub heartbeat: Duration,
    /// Concurrent peers of a bound socket. At the limit, a new one replaces the one that has been
    /// silent longest.
    pub max_peers: usize,
    /// Budget for incomplete messages of all peers of bound sockets.
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
