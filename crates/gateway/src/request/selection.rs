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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::request::test_support;

    /// A selection of this worker.
    pub(crate) fn selection(worker: &str, predicted_cached_tokens: u32) -> Selection {
        Selection {
            worker: worker.into(),
            policy: "warm",
            label: None,
            predicted_cached_tokens,
            announced_cached_tokens: 48,
            basis: Basis::Events,
            target: test_support::target(&test_support::worker(1)),
            sent: Moment::START,
        }
    }
}
