//! Facts that the reply reports about itself.

use std::sync::Arc;

use dialect::StreamChunk;

use super::{PrefixExpectation, RequestGuard};

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
}
