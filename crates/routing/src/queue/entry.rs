//! What a job brings into the queue.

use kv_blocks::{Moment, Target};

use super::{OrderTerms, QueuedJob, RequestWork, TtftNeeds, WaitBudget};
use crate::{RoomWait, admission::RoomShortage};

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
    /// What it lacks, if it waits for room, and how long it will wait.
    pub(crate) room: Option<Box<RoomTerms>>,
    /// Latest time at which it is bound once it waits for room.
    pub(crate) room_until: Moment,
}

/// Why a job waits for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoomTerms {
    /// What it lacked when it was last tried without room.
    pub(crate) shortage: RoomShortage,
    /// Why it began to wait, and how long it would, for the receipt; `None`: it was let in at once, for
    /// lack of time.
    pub(crate) wait: Option<RoomWait>,
}

/// Why a job waits, and the inputs of its rank in the queue.
#[derive(Clone, Debug)]
pub(crate) struct WaitTerms {
    pub(crate) budget: WaitBudget,
    /// Whether it waits because of a backlog.
    pub(crate) minds_backlog: bool,
    /// The target that it would get now.
    pub(crate) winner: Option<Target>,
    /// Its estimated work there.
    pub(crate) work: RequestWork,
    /// The time from its beginning there to its first token.
    pub(crate) needs: TtftNeeds,
    /// What it lacks, if it waits for room, and how long it will wait.
    pub(crate) room: Option<Box<RoomTerms>>,
}
