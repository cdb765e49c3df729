//! Buffers of a lookup.

use super::probes::ProbeRound;
use crate::runs::{NO_RUN, RunHead, TierSpan};

/// One run on the path from the root to the deepest block, and the number of its blocks on that
/// path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathStep {
    pub(super) run: u32,
    pub(super) limit: u32,
    pub(super) head: RunHead,
}

impl PathStep {
    /// An empty step.
    pub(super) const NONE: Self = Self {
        run: NO_RUN,
        limit: 0,
        head: RunHead::NONE,
    };
}

/// Buffers of a lookup.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(super) probes: ProbeRound,
    /// From the deepest run to the root.
    pub(super) path: Vec<PathStep>,
    pub(super) slots: WalkSlots,
    pub(super) spans: Vec<(TierSpan, u64)>,
}

/// Bits of slots on the walk from the root down.
#[derive(Debug, Default)]
pub(super) struct WalkSlots {
    /// Slots that hold all blocks before the current run and are not processed in it yet.
    pub(super) alive: Vec<u64>,
    /// Slots that also hold all of the current run.
    pub(super) pass: Vec<u64>,
}
