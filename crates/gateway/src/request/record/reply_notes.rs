//! The guard's part of a reply: the facts that the reply reports about itself, and those that its
//! head and coalesced requests read from the guard.

use std::sync::{Arc, OnceLock};

use config::CompatSection;
use dialect::{StreamChunk, Usage};
use routing::{Method, Policy, PrefillNote, receipt::RouterAnswer};

use super::{PrefixExpectation, RequestGuard};
use crate::request::receipt::RoutingNotes;

/// State that a request leaves at its engine beside the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StoredResponse {
    #[default]
    Nothing,
    /// A response to continue: response affinity records its worker.
    Response,
}

impl RequestGuard {
    /// Records that the engine stores the result of the request.
    pub(crate) fn mark_response_stored(&mut self) {
        self.reply.stored_response = StoredResponse::Response;
    }

    pub(crate) fn stores_response(&self) -> bool {
        self.reply.stored_response == StoredResponse::Response
    }

    /// Records that the engine may count the prompt otherwise than the router.
    pub(crate) fn mark_foreign_count(&mut self) {
        self.prefix_expectation = self
            .prefix_expectation
            .map(PrefixExpectation::with_foreign_count);
    }

    /// Records the facts of one event, or of the whole body.
    pub(crate) fn record_chunk(&mut self, chunk: &StreamChunk<'_>) {
        self.reply.usage = chunk
            .usage
            .map(|usage| usage.after(self.reply.usage))
            .or(self.reply.usage);
        if let (true, Some(id), Some(won)) =
            (self.stores_response(), &chunk.response_id, &self.selection)
        {
            self.recorder.response_affinity.record(
                id,
                won.target.worker,
                self.recorder.clock.now(),
            );
        }
        if let Some(reason) = &chunk.finish_reason {
            self.reply.finish_reason = Some(Arc::from(&**reason));
        }
        self.reply.in_band_error |= chunk.error.is_some();
    }

    /// Records changed members of the client's body, for the reply's head and the receipt.
    pub(crate) fn record_rewrite(&mut self, rewrites: Vec<&'static str>) {
        self.draft.rewrites.extend(rewrites);
    }

    pub(crate) fn rewrites(&self) -> &[&'static str] {
        &self.draft.rewrites
    }

    /// Returns whether the prompt's KV came from another worker.
    pub(super) fn has_remote_prefill(&self) -> bool {
        self.attempt
            .prefill
            .as_ref()
            .is_some_and(|note: &PrefillNote| note.skipped.is_none())
    }

    /// Returns the reply's usage, limited to the worker's own cache.
    pub(super) fn own_usage(&self) -> Option<Usage> {
        let handed_over = self.has_remote_prefill();
        self.reply.usage.map(|usage| {
            if handed_over {
                Usage {
                    cached_tokens: None,
                    ..usage
                }
            } else {
                usage
            }
        })
    }

    /// Sets the cell for the outcome: followers read from it whether the reply may answer more
    /// requests.
    pub(crate) fn share_outcome(&mut self, good: Arc<OnceLock<bool>>) {
        self.outcome = Some(good);
    }

    /// Returns the cell that the end sets: whether the reply was whole and correct.
    pub(crate) fn shared_outcome(&mut self) -> Arc<OnceLock<bool>> {
        Arc::clone(self.outcome.get_or_insert_default())
    }

    /// Records that another request's reply answers this one; the receipt shows that no worker was
    /// chosen.
    pub(crate) fn record_shared_reply(&mut self, method: Method, policy: Policy, status: u16) {
        self.recorder
            .metrics
            .record_method(policy.as_str(), method.as_str());
        self.reply.status = Some(status);
        self.draft.verdict = Some(RouterAnswer::Answered(method, policy));
        self.publish(None);
    }

    /// Returns the notes for reply headers.
    pub(crate) fn notes(&mut self) -> &mut RoutingNotes {
        &mut self.draft.notes
    }

    pub(crate) fn told_of(&self) -> &RoutingNotes {
        &self.draft.notes
    }

    /// Returns the settings of the reply's routing headers.
    pub(crate) fn reply_headers(&self) -> &CompatSection {
        &self.recorder.compat
    }
}
