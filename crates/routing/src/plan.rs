//! The router's answers.

use std::time::Duration;

use kv_blocks::Target;

use crate::{Decision, ExcludedTarget, Policy, PrefillLeg, ReservationId, Ticket};

/// The answer to a job.
#[derive(Debug)]
pub enum Dispatch {
    /// Send it now.
    Plan(Box<Plan>),
    /// The request is queued: wait until one of the router's calls releases the ticket, or cancel
    /// it.
    Held(Ticket),
    /// No target can take it.
    Refused(Refusal),
}

/// The targets of a request, with their load already counted.
#[derive(Debug)]
pub struct Plan {
    /// The load of the decode leg. The caller always ends it: with `failed` when the worker did not
    /// take the request, else with `done`.
    pub reservation: ReservationId,
    /// The target that computes the prompt, if another one generates.
    pub prefill: Option<PrefillLeg>,
    /// The target that generates.
    pub decode: Leg,
    /// The rank of the request among those waiting on the target, lowest first, in the order of
    /// this router's queue: for engines that schedule by a number in the request.
    pub engine_priority: i64,
    /// Why, for the receipt.
    pub decision: Decision,
}

/// One phase of a request on one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// The target.
    pub target: Target,
}

/// A queued request that may start now.
#[derive(Debug)]
pub struct ReleasedRequest {
    /// The ticket of the queued request.
    pub ticket: Ticket,
    /// How long it was queued.
    pub waited: Duration,
    /// Its targets.
    pub plan: Box<Plan>,
}

/// Why a job has no target.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no target may take the request: {} excluded, see the reasons in the receipt", excluded.len())]
pub struct Refusal {
    /// The policy that would have decided.
    pub policy: Policy,
    /// Every target considered, with the reason against it.
    pub excluded: Vec<ExcludedTarget>,
    /// A target could take it later, but the queue is full.
    pub queue_full: bool,
}

/// Why no target was chosen.
#[derive(Debug)]
pub(crate) enum PlacementError {
    /// No target may take the request.
    Nobody(Refusal),
    /// All targets that may take the request are above its busy threshold.
    AllBusy(Refusal),
}

impl PlacementError {
    pub(crate) fn refusal(self) -> Refusal {
        let (Self::Nobody(refusal) | Self::AllBusy(refusal)) = self;
        refusal
    }
}
