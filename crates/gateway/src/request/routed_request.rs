//! A generation with its prompt tokenized and its model known: ready to be placed and sent.

use std::sync::Arc;

use fleet::ModelView;
use kv_blocks::{Moment, Target};

use super::{
    accept::AcceptedRequest,
    decide::{PlacementRequest, RoutingFacts},
    dispatch::AttemptTarget,
    prefill::Handover,
    queue_wait::WaitRecord,
    retry_state::RetryState,
    translate::{ReplyContext, RequestTranslator},
};

/// Everything that the stages after tokenization need.
#[derive(Debug)]
pub(crate) struct RoutedRequest {
    pub(crate) call: AcceptedRequest,
    pub(crate) facts: RoutingFacts,
    /// The model's view at the last decision.
    pub(crate) model: Arc<ModelView>,
    pub(crate) wait: WaitRecord,
    pub(crate) translator: RequestTranslator,
    pub(crate) reply_context: ReplyContext,
    pub(crate) priority: PriorityField,
}

/// Whether the router may set the engine priority in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PriorityField {
    Free,
    /// The client sets it, or the body has no such member.
    Taken,
}

impl RoutedRequest {
    /// Returns the end of the request's time limit.
    pub(super) fn deadline(&self) -> Moment {
        self.wait.deadline()
    }

    /// Returns the worker of a target; `None` if it is gone.
    pub(super) fn target(&self, target: Target) -> Option<AttemptTarget> {
        let candidates = &self.model.candidates;
        let found = candidates
            .iter()
            .find(|candidate| candidate.target == target)?;
        let worker = Arc::clone(&found.worker);
        Some(AttemptTarget { worker, target })
    }

    /// Returns the next decision about the request. A retry has already waited, unless no worker
    /// was left for it; a request without a prompt asks for no work worth waiting for.
    pub(super) fn placement<'a>(&'a self, tries: &'a RetryState) -> PlacementRequest<'a> {
        placement(&self.call, &self.facts, tries)
    }
}

/// Returns the next decision about a request, as [`RoutedRequest::placement`] does.
pub(super) fn placement<'a>(
    call: &'a AcceptedRequest,
    facts: &'a RoutingFacts,
    tries: &'a RetryState,
) -> PlacementRequest<'a> {
    let is_new = tries.last.is_none() || tries.waits_for_anybody;
    PlacementRequest {
        overrides: &call.overrides,
        facts,
        failed: &tries.excluded,
        same_body_as: None,
        may_wait: is_new && !matches!(facts.handover, Handover::NoPrompt),
    }
}
