//! What the reply tells of itself.

use std::sync::Arc;

use dialect::Chunk;

use super::{LookedUp, Settle};

/// What a request leaves at its engine beside a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    Nothing,
    /// A response to go on from: who has it is remembered by its id.
    Response,
}

impl Settle {
    /// What comes of the request stays at the engine.
    pub(crate) fn will_be_kept(&mut self) {
        self.leaves = Leaves::Response;
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.leaves == Leaves::Response
    }

    /// What the reply says of its prompt need not be what we would say.
    pub(crate) fn counts_otherwise(&mut self) {
        self.looked_up = self.looked_up.map(LookedUp::counted_otherwise);
    }

    /// What one event, or the whole body, said about the reply.
    pub(crate) fn note(&mut self, chunk: &Chunk<'_>) {
        self.usage = chunk
            .usage
            .map(|usage| usage.after(self.usage))
            .or(self.usage);
        if let (true, Some(id), Some(won)) = (self.is_kept(), &chunk.response_id, &self.won) {
            self.gateway
                .response_homes
                .learn(id, won.target.worker, self.gateway.clock.now());
        }
        if let Some(reason) = &chunk.finish_reason {
            self.finish_reason = Some(Arc::from(&**reason));
        }
        self.in_band_error |= chunk.error.is_some();
    }
}
