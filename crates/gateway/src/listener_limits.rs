//! Limits of the data listener.

use std::time::Duration;

/// Sizes and times of the listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    /// Longest request head, bytes.
    pub max_head_bytes: usize,
    /// Longest request body, bytes.
    pub max_body_bytes: usize,
    /// Most bytes of all buffered bodies together.
    pub max_held_bytes: u64,
    /// Memory budget of the process, bytes; `None`: unlimited.
    pub memory_budget: Option<u64>,
    /// Per-request count limits (`n`, prompts, stop sequences).
    pub counts: CountLimits,
    /// Most header fields of a request.
    pub max_headers: usize,
    /// Most open client connections.
    pub max_connections: usize,
    /// An idle connection is closed after this.
    pub keep_alive: Duration,
    /// Time limit for a request head, from its first byte; for the first head of a connection, from
    /// the moment when the connection was accepted.
    pub head_timeout: Duration,
    /// Time limit for a request body, from the end of its head.
    pub body_timeout: Duration,
    /// A reply whose client reads nothing for this long is aborted.
    pub client_stall: Duration,
    /// Whether a client that has closed its sending side still waits for its reply; if not, it
    /// counts as disconnected.
    pub half_close: bool,
    /// Whether each request logs one line.
    pub log_requests: bool,
}

/// Per-request count limits; 0 = unlimited.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountLimits {
    /// Completions of one prompt.
    pub choices: u64,
    /// Prompts.
    pub prompts: u64,
    /// Stop sequences.
    pub stops: u64,
}
