//! The words of the state machine: where it stands, and what it waits for.

use std::time::Duration;

use kv_blocks::Moment;

/// First pause after a replay that could not be had; it doubles up to [`RETRY_MAX`].
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
    /// Whether it brings all that the publisher still has.
    pub(super) whole: bool,
    /// How many batches of the answer were news and were applied.
    pub(super) brought: u64,
    /// How many live batches had arrived when it was asked for: what is missing in front of those, and not in the
    /// answer, cannot be had.
    pub(super) asked_after: u64,
}

/// Why a replay runs, which is how its batches are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Everything after the last batch applied.
    History,
    /// The same, in the middle of a life.
    Gap,
    /// The last batch applied is asked for again, to see whether the publisher still knows it as the same.
    Recognise,
    /// The publisher no longer knows it: what does it know?
    Rebirth,
    /// Everything the publisher still has: a replay failed earlier, or somebody wants it.
    Resync,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StreamPosition {
    pub(super) seq: u64,
    /// Of the payload, to recognise the publisher's life by.
    pub(super) digest: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ReplayRetry {
    pub(super) at: Moment,
    pause: Duration,
}

/// What became of a live batch.
pub(super) enum BatchDisposition {
    Done,
    /// It must wait until a replay from there has come.
    Missing {
        from: u64,
        purpose: Purpose,
    },
}

/// What to do about missing numbers in front of a live batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GapAction {
    Ask,
    Accept,
}

impl ReplayRetry {
    /// The retry after a failure at `now`, which may have been a retry itself.
    pub(super) fn after(failed: Option<Self>, now: Moment) -> Self {
        let pause = failed.map_or(RETRY_FIRST, |failed| (failed.pause * 2).min(RETRY_MAX));
        Self {
            at: now + pause,
            pause,
        }
    }
}
