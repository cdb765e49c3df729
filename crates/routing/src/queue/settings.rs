//! Settings of the queue.

use std::time::Duration;

/// Settings of the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSettings {
    /// Whether requests are queued. A job without a wait budget ([`crate::Job::wait_budget`]) never
    /// is.
    pub enabled: bool,
    /// A target with a longer backlog before the request gets no request that may wait. A value
    /// below the time between an engine's first token and the router's notice of it leaves engines
    /// idle.
    pub hold_above: Duration,
    /// Milliseconds of prefill that each millisecond waited makes up for.
    pub ageing: f64,
    /// Most queued requests.
    pub max_entries: usize,
    /// Most bytes that they retain together: bodies, prompts, candidate lists and the queue's own
    /// entries.
    pub max_bytes: u64,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            hold_above: Duration::from_millis(25),
            ageing: 0.05,
            max_entries: 10_000,
            max_bytes: 512 * 1024 * 1024,
        }
    }
}

/// How long a job may wait in the queue, and the memory that this takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitBudget {
    /// From now on. After that it is bound, whatever the backlog of its target.
    pub limit: Duration,
    /// Time that it has waited already.
    pub waited: Duration,
    /// Bytes that the caller retains for it while it waits.
    pub bytes: u64,
}

/// Why a request is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It waits for a target that can begin.
    Backlog,
    /// It waits for a target below the busy threshold ([`crate::Job::busy_threshold`]). Such a
    /// request is not bound when its time is over: its caller cancels it.
    Busy,
    /// It waits for any target. It is not bound when its time is over either.
    NoWorker,
}
