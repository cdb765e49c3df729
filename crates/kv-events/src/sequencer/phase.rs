//! The types of the state machine: its phases and the replays it waits for.

use std::time::Duration;

use kv_blocks::Moment;

/// First pause after a failed replay; it doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub(super) enum SequencerPhase {
    Connecting,
    Replaying(ReplayProgress),
    Following,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ReplayProgress {
    pub(super) purpose: Purpose,
    /// Whether the replay covers everything that the publisher still has.
    pub(super) whole: bool,
    /// Batches of the answer that were new and applied.
    pub(super) received: u64,
    /// Live batches that had arrived before the request: numbers that are missing in front of
    /// those, and not in the answer, are lost.
    pub(super) requested_after: u64,
}

/// Purpose of a replay, which decides how its batches are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Fetches everything after the last batch applied.
    History,
    /// Like `History`, in the middle of a life.
    Gap,
    /// Fetches the last batch applied again, to check whether the publisher still has the same one.
    Recognise,
    /// Fetches the history of a publisher that no longer has that batch.
    Rebirth,
    /// Fetches everything the publisher still has: a replay failed earlier, or the caller requested
    /// it.
    Resync,
}

/// How far the continuation of an earlier process's blocks is proven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ResumeState {
    /// There are no such blocks, or they are confirmed.
    #[default]
    Ended,
    /// The publisher has not shown the batch at their position yet.
    Unproven,
    /// It has, and the batches behind it are being fetched.
    Proven,
}

/// A resync that is to come; until a whole replay succeeds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingResync {
    /// Time and pause of the next attempt after a failed replay; the attempt is a resync.
    pub(super) retry: Option<ReplayRetry>,
    /// Whether the caller requested it, or a replay failed.
    pub(super) requested: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ReplayRetry {
    pub(super) at: Moment,
    pause: Duration,
}

/// Outcome of a live batch.
pub(super) enum BatchDisposition {
    Done,
    /// The batch must wait for a replay from this number on.
    Missing {
        from: u64,
        purpose: Purpose,
    },
}

/// Treatment of missing numbers in front of a live batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GapAction {
    Request,
    Accept,
}

impl ReplayRetry {
    /// Returns the retry after a failure at `now`, which may have been a retry itself.
    pub(super) fn after(failed: Option<Self>, now: Moment) -> Self {
        let pause = failed.map_or(RETRY_FIRST, |failed| (failed.pause * 2).min(RETRY_MAX));
        Self {
            at: now + pause,
            pause,
        }
    }
}
