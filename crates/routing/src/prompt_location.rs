//! Where the prompt of a request with two pools is computed.

use crate::{ReplyMode, ledger::DispatchLoad};

/// The place where the prompt of a reservation is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PromptLocation {
    Here,
    Elsewhere,
}

impl PromptLocation {
    /// Returns the load that a request adds to the target that generates.
    pub(crate) fn counted(self, load: DispatchLoad) -> DispatchLoad {
        match self {
            Self::Here => load,
            Self::Elsewhere => DispatchLoad {
                uncached_tokens: 0,
                prefill_ms: 0.0,
                interleave_ms: 0.0,
                // Its first token measures another worker's speed.
                answer: if load.answer == ReplyMode::Streamed {
                    ReplyMode::Elsewhere
                } else {
                    load.answer
                },
                ..load
            },
        }
    }
}
