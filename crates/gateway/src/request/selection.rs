//! The worker of a request, as replies and metrics show it.

use std::sync::Arc;

use kv_blocks::{Moment, Target};
use parity::Basis;

/// The part of the last decision that reply headers show and the end counts.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) worker: Arc<str>,
    pub(crate) policy: &'static str,
    /// The way in which the policy placed the request, where it distinguishes several.
    pub(crate) label: Option<&'static str>,
    pub(crate) predicted_cached_tokens: u32,
    pub(super) announced_cached_tokens: u32,
    pub(super) basis: Basis,
    pub(super) target: Target,
    pub(super) sent: Moment,
}
