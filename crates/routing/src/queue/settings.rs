//! Settings of the queue.

use std::time::Duration;

use settings::kinds::{SECONDS_OR_ZERO, float, int, size};

settings::section! {
    /// Section `queue`: requests queued in the router. A job without a wait budget
    /// ([`crate::Job::wait_budget`]) never is.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct QueueSettings {
        /// Queue requests in the router while eligible workers are busy.
        enabled: bool = "true", live, simulated;
        /// Longest wait. After it a worker gets the request whatever its backlog; if all are above
        /// `routing.busy_threshold`, the request is refused.
        wait: Duration = "30s", live, simulated;
        /// Longest wait while no worker is usable. 0: such a request is refused at once.
        engine_wait_timeout "engine_wait_timeout_secs": Duration = "0" in SECONDS_OR_ZERO, live;
        /// Maximum number of queued requests.
        max_entries: usize = "10000" in int(1, 10_000_000), live, simulated;
        /// Maximum memory of queued requests: bodies, prompts and candidate lists. One of several
        /// tenants may have half of it.
        max_bytes: u64 = "512MiB" in size(1 << 10, 1 << 50), live;
        /// Backlog of a worker, as time to compute, above which policy `warm` sends it no further
        /// request; with load sync, the backlog for each router. Four times as much for a tenant far
        /// below its share.
        hold_above: Duration = "25ms" in SECONDS_OR_ZERO, live, simulated;
        /// Milliseconds of prefill that one millisecond of waiting offsets; otherwise the shortest
        /// prompt goes first.
        ageing: f64 = "0.05" in float(0.0, 100.0), live, simulated;
        /// Send a request's place by its length and age to vLLM workers, as `priority` in each request:
        /// the queue's order without the shares of tenants and latency targets. They must run with `--scheduling-policy priority`, or they refuse such requests.
        engine_priority: bool = "false", live, simulated;
    }
}

impl QueueSettings {
    /// Returns the backlog above which a target gets no further request that may wait, with this
    /// many replicas. A value below the time between an engine's first token and the router's
    /// notice of it leaves engines idle. Each replica has a queue of its own and sees the same
    /// target become free, so each counts on the others' next requests there.
    pub(crate) fn longest_backlog(&self, replicas: u32) -> Duration {
        self.hold_above.saturating_mul(replicas)
    }

    /// Returns the backlog above which a target gets no request that may begin early
    /// ([`super::WaitQueue::may_begin_early`]): the usual limit, and mostly the one prompt that was
    /// sent below it. Behind more, another target may be free sooner.
    pub(crate) fn longest_early_backlog(&self, replicas: u32) -> Duration {
        self.longest_backlog(replicas).saturating_mul(4)
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

/// The limit that keeps a request out of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueLimit {
    /// Of all requests together: entries or bytes.
    Router,
    /// Entries of its tenant ([`crate::JobTenant::most_queued`]).
    Tenant,
    /// Bytes of its tenant's requests ([`crate::JobTenant::is_alone`]).
    TenantBytes,
}

/// Why a request is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It waits for a target that can begin.
    Backlog,
    /// It waits for a target below the busy threshold ([`crate::Job::busy_threshold`]). Such a
    /// request is not bound when its time is over: its caller cancels it.
    Busy,
    /// It is cold and waits for room in a cache (`routing.admission`). It is bound at the end of a
    /// longer limit.
    Room,
    /// It waits for any target. It is not bound when its time is over either.
    NoWorker,
}

impl WaitReason {
    /// Returns the name, as receipts show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Backlog => "backlog",
            Self::Busy => "busy",
            Self::Room => "room",
            Self::NoWorker => "no_worker",
        }
    }
}
