//! What a job brings into the queue.

use kv_blocks::Target;

use super::{OrderTerms, QueuedJob, RequestWork, WaitBudget};

/// A job that enters the queue, with its rank.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    pub(crate) job: QueuedJob,
    pub(crate) terms: OrderTerms,
    /// Its estimated work.
    pub(crate) work: RequestWork,
    /// Whether a target's backlog delays it.
    pub(crate) minds_backlog: bool,
    /// Bytes that its caller retains for it.
    pub(crate) caller_bytes: u64,
    /// The target that it would get now.
    pub(crate) winner: Option<Target>,
}

/// Why a job waits, and the inputs of its rank in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitTerms {
    pub(crate) budget: WaitBudget,
    /// Whether it waits because of a backlog.
    pub(crate) minds_backlog: bool,
    /// The target that it would get now.
    pub(crate) winner: Option<Target>,
    /// Its estimated work there.
    pub(crate) work: RequestWork,
}
