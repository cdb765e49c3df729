//! How requests are held.

use std::time::Duration;

/// How requests are held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSettings {
    /// Whether any are. A job that may not wait ([`crate::Job::patience`]) never is.
    pub enabled: bool,
    /// A target with more than this to compute before the request gets none that may wait. Less than the time between
    /// an engine's first token and the router's notice of it leaves engines idle.
    pub hold_above: Duration,
    /// Milliseconds of prefill that each millisecond waited makes up for.
    pub ageing: f64,
    /// Most requests held.
    pub max_entries: usize,
    /// Most bytes that they keep together: bodies, prompts, candidate lists and the queue's own rows.
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

/// How long a job may be held, and what that keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitBudget {
    /// From now on. After that it is bound, whatever its target has to compute before it.
    pub limit: Duration,
    /// What it has waited already.
    pub waited: Duration,
    /// Bytes that the caller keeps for it while it waits.
    pub bytes: u64,
}

/// What a held request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// A target that can begin.
    Backlog,
    /// A target below the busy threshold ([`crate::Job::busy_threshold`]). Such a request is not bound when its time is
    /// over: its caller gives it up.
    Busy,
    /// A target at all. The same holds for it.
    NoWorker,
}
