//! Section `queue`: requests that wait in the router.

use std::time::Duration;

/// Section `queue`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSection {
    /// Whether requests wait while workers that may take them are busy.
    pub enabled: bool,
    /// How long, at most.
    pub wait: Duration,
    /// How long a request waits while no worker can be used at all; zero = not.
    pub engine_wait_timeout: Duration,
    /// Most requests that wait.
    pub max_entries: usize,
    /// Most bytes that they keep: bodies, prompts and lists of workers.
    pub max_bytes: u64,
    /// A worker with more than this to compute gets no further request of those that may wait.
    pub hold_above: Duration,
    /// Milliseconds of prefill that each millisecond waited makes up for.
    pub ageing: f64,
    /// Whether vLLM workers are told the order, as each request's `priority`.
    pub engine_priority: bool,
}
