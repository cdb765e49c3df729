//! The length of a reply.

use std::sync::Arc;

use engine_model::{Finish, ReplyStream};

use super::GenerationJob;
use crate::{http::SimApiError, script::LengthLimit, server_state::ServerState};

impl GenerationJob {
    /// Returns the tokens that the model's length leaves for the reply, if the job fits.
    pub(super) fn available_tokens(&self, longest: u32) -> Result<u32, SimApiError> {
        let prompt_tokens = u32::try_from(self.prompt.len()).unwrap_or(u32::MAX);
        if prompt_tokens == 0 {
            return Err(SimApiError::bad_request(
                "The prompt is empty: provide at least one token.",
                "prompt",
            ));
        }
        if prompt_tokens >= longest {
            return Err(SimApiError::prompt_too_long(longest, prompt_tokens));
        }
        let available_tokens = longest - prompt_tokens;
        match self.max_tokens {
            Some(0) => Err(SimApiError::bad_request(
                "max_tokens must be at least 1, got 0.",
                "max_tokens",
            )),
            Some(requested) if requested > available_tokens => Err(SimApiError::reply_too_long(
                longest,
                prompt_tokens,
                requested,
            )),
            _ => Ok(available_tokens),
        }
    }

    /// Returns the tokens of the reply, and its finish reason.
    pub(super) fn length(&self, state: &ServerState, available_tokens: u32) -> (u32, Finish) {
        match &self.script {
            None => {
                let alphabet = Arc::clone(&state.tokenizer.alphabet);
                let stream = ReplyStream::new(state.config.seed, &self.prompt, alphabet);
                let limit = LengthLimit {
                    max_tokens: self.max_tokens,
                    open_end: self.open_end,
                    available_tokens,
                };
                limit.words(|| stream.natural_len())
            }
            Some(script) => {
                let whole = u32::try_from(script.tokens.len()).unwrap_or(u32::MAX);
                let most = self
                    .max_tokens
                    .unwrap_or(available_tokens)
                    .min(available_tokens);
                if whole <= most {
                    (whole, script.finish)
                } else {
                    (most, Finish::Length)
                }
            }
        }
    }
}
