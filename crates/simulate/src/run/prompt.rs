//! The content of a request that is played.

use std::sync::Arc;

use kv_blocks::{BlockSize, EngineHash, PromptBlocks};
use routing::Affinity;

use crate::{
    TraceRequest,
    trace::{SessionTurn, affinity, whole_blocks},
};

/// A request's prompt, as the router and the engine see it.
pub(super) struct PlayedPrompt {
    /// Names of its blocks, including the partial one at its end.
    pub(super) names: Arc<[EngineHash]>,
    /// The whole blocks, as the router sees them.
    pub(super) blocks: Arc<PromptBlocks>,
    pub(super) affinity: Affinity,
    /// Its position in its session.
    pub(super) turn: Option<SessionTurn>,
}

impl PlayedPrompt {
    /// Returns the prompt as it was recorded.
    pub(super) fn recorded(request: &TraceRequest) -> Self {
        Self {
            names: Arc::clone(&request.names),
            blocks: Arc::clone(&request.blocks),
            affinity: affinity(&request.names),
            turn: request.turn,
        }
    }

    /// Returns a prompt of blocks with these names, in a session with this key.
    pub(super) fn of_session(
        (size, prompt_tokens): (BlockSize, u32),
        names: Arc<[EngineHash]>,
        turn: SessionTurn,
        session_key: u64,
    ) -> Self {
        Self {
            blocks: whole_blocks(size, prompt_tokens, &names),
            affinity: Affinity {
                session_key: Some(session_key),
                ..affinity(&names)
            },
            turn: Some(turn),
            names,
        }
    }
}
