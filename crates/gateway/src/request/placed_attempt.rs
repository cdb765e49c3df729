//! A request with its target.

use routing::{Decision, PrefillLeg};

use crate::lease::Lease;

/// A decision with its load already counted, and the guard that frees it.
#[derive(Debug)]
pub(crate) struct PlacedAttempt {
    pub(crate) decision: Decision,
    pub(crate) lease: Lease,
    /// The prefill leg, if another worker computes the prompt; its load is in the lease.
    pub(crate) prefill: Option<PrefillLeg>,
    /// The request's place in the engine's own queue.
    pub(crate) engine_priority: i64,
}
