//! Section `queue`: requests queued in the router.

use std::time::Duration;

/// Section `queue`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSection {
    /// Whether requests queue while all eligible workers are busy.
    pub enabled: bool,
    /// Longest wait in the queue.
    pub wait: Duration,
    /// Longest wait while no worker can be used at all; zero = no wait.
    pub engine_wait_timeout: Duration,
    /// Most queued requests.
    pub max_entries: usize,
    /// Most bytes of queued requests: bodies, prompts and lists of workers.
    pub max_bytes: u64,
    /// Prefill backlog above which a worker gets no further queueable request.
    pub hold_above: Duration,
    /// Milliseconds of prefill that each millisecond of waiting offsets.
    pub ageing: f64,
    /// Whether vLLM workers get the order as each request's `priority`.
    pub engine_priority: bool,
}
