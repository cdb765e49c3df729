//! What the reply tells of itself.

use std::sync::Arc;

use dialect::StreamChunk;

use super::{PrefixExpectation, RequestGuard};

/// What a request leaves at its engine beside a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredResponse {
    Nothing,
    /// A response to go on from: who has it is remembered by its id.
    Response,
}

impl RequestGuard {
    /// What comes of the request stays at the engine.
    pub(crate) fn mark_response_stored(&mut self) {
        self.stored_response = StoredResponse::Response;
    }

    pub(crate) fn stores_response(&self) -> bool {
        self.stored_response == StoredResponse::Response
    }

    /// What the reply says of its prompt need not be what we would say.
    pub(crate) fn mark_foreign_count(&mut self) {
        self.prefix_expectation = self
            .prefix_expectation
            .map(PrefixExpectation::with_foreign_count);
    }

    /// What one event, or the whole body, said about the reply.
    pub(crate) fn record_chunk(&mut self, chunk: &StreamChunk<'_>) {
        self.usage = chunk
            .usage
            .map(|usage| usage.after(self.usage))
            .or(self.usage);
        if let (true, Some(id), Some(won)) =
            (self.stores_response(), &chunk.response_id, &self.selection)
        {
            self.gateway
                .response_affinity
                .record(id, won.target.worker, self.gateway.clock.now());
        }
        if let Some(reason) = &chunk.finish_reason {
            self.finish_reason = Some(Arc::from(&**reason));
        }
        self.in_band_error |= chunk.error.is_some();
    }
}
