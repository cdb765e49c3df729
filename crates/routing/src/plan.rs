//! What the router answers.

use std::time::Duration;

use kv_blocks::Target;

use crate::{Decision, ExcludedTarget, Policy, PrefillLeg};

/// The answer to a job.
#[derive(Debug)]
pub enum Dispatch {
    /// Send it now.
    Plan(Box<Plan>),
    /// Keep it until one of the router's answers releases the ticket, or withdraw it.
    Held(Ticket),
    /// Nobody can take it.
    Refused(Refusal),
}

/// Where a request goes, with load already counted there.
#[derive(Debug)]
pub struct Plan {
    /// Give it back, whatever happens: with `failed` when the worker did not take the request, else with `done`.
    pub reservation: ReservationId,
    /// The target that computes the prompt, if another one generates.
    pub prefill: Option<PrefillLeg>,
    /// The target that generates.
    pub decode: Leg,
    /// Its place among those that the target has waiting, the lowest first, in the order of the queue here: for engines
    /// that schedule by a number which comes with the request.
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

/// Load counted on a target; never used twice in a router's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReservationId(pub u64);

/// A held request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A held request that may go now.
#[derive(Debug)]
pub struct ReleasedRequest {
    /// The ticket it was held under.
    pub ticket: Ticket,
    /// How long it was held.
    pub waited: Duration,
    /// Where it goes.
    pub plan: Box<Plan>,
}

/// Why a job got no target.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no target may take the request: {} excluded, see the reasons in the receipt", excluded.len())]
pub struct Refusal {
    /// The policy that would have decided.
    pub policy: Policy,
    /// Every target considered, with the reason against it.
    pub excluded: Vec<ExcludedTarget>,
    /// Somebody could take it later, but no more may wait.
    pub queue_full: bool,
}
