//! One generation in the model, from submission to its last token or its client's hang-up.

use std::sync::Arc;

use engine_model::{Emitted, Finish, ReplyStream, Request, RequestId};
use tokio::sync::mpsc;

use crate::{
    http::ApiError,
    rank::Rank,
    server_state::{Counts, ServerState},
};

/// What a request asks of the model.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) prompt: Arc<[u32]>,
    /// `None`: as long as the model likes, see `open_end`.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) open_end: OpenEnd,
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) salt: Option<Arc<str>>,
    /// From the request's header.
    pub(crate) rank: Option<usize>,
    /// Another engine computed the prompt.
    pub(crate) transferred: bool,
    /// Lower goes first, where the engine schedules by it.
    pub(crate) priority: i64,
}

/// How long a reply without a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenEnd {
    /// As long as seed and prompt make it.
    Natural,
    /// Up to the model's length.
    Longest,
}

/// A running generation. Dropping it before its last token takes it out of the model at once.
#[derive(Debug)]
pub(crate) struct Generation {
    state: Arc<ServerState>,
    rank: Arc<Rank>,
    id: RequestId,
    tokens: mpsc::Receiver<Emitted>,
    ended: bool,
    pub(crate) prompt: Arc<[u32]>,
}

/// The engine restarted under the request.
#[derive(Debug)]
pub(crate) struct EngineGone;

impl Generation {
    /// Checks a job against the model's limits and submits it.
    pub(crate) fn start(state: &Arc<ServerState>, job: Job) -> Result<Self, ApiError> {
        let longest = state.config.max_model_len;
        let prompt_tokens = u32::try_from(job.prompt.len()).unwrap_or(u32::MAX);
        if prompt_tokens == 0 {
            return Err(ApiError::bad_request("The prompt is empty: provide at least one token.", "prompt"));
        }
        if prompt_tokens >= longest {
            return Err(ApiError::prompt_too_long(longest, prompt_tokens));
        }
        let room = longest - prompt_tokens;
        let (output_tokens, finish) = match (job.max_tokens, job.open_end) {
            (Some(0), _) => return Err(ApiError::bad_request("max_tokens must be at least 1, got 0.", "max_tokens")),
            (Some(wanted), _) if wanted > room => {
                return Err(ApiError::reply_too_long(longest, prompt_tokens, wanted));
            }
            (Some(wanted), _) => (wanted, Finish::Length),
            (None, OpenEnd::Longest) => (room, Finish::Length),
            (None, OpenEnd::Natural) => {
                let alphabet = Arc::clone(&state.tokenizer.alphabet);
                let natural = ReplyStream::new(state.config.seed, &job.prompt, alphabet).natural_len();
                if natural <= room { (natural, Finish::Stop) } else { (room, Finish::Length) }
            }
        };
        let rank = match job.rank {
            None => state.least_loaded(),
            Some(rank) => state.ranks.get(rank).ok_or_else(|| {
                let ranks = state.ranks.len();
                ApiError::bad_request(
                    format!("Data parallel rank {rank} is out of range: this engine has {ranks}."),
                    "data_parallel_rank",
                )
            })?,
        };
        let rank = Arc::clone(rank);
        let id = RequestId(state.counts.next_id());
        let request = Request {
            id,
            prompt: Arc::clone(&job.prompt),
            output_tokens,
            finish,
            lora: job.lora,
            salt: job.salt,
            transferred: job.transferred,
            priority: job.priority,
        };
        let tokens = rank.submit(request).map_err(|error| ApiError::bad_request(error.to_string(), "prompt"))?;
        Counts::add(&state.counts.executions);
        Ok(Self { state: Arc::clone(state), rank, id, tokens, ended: false, prompt: job.prompt })
    }

    /// The next token; after the last one this must not be called again.
    pub(crate) async fn next(&mut self) -> Result<Emitted, EngineGone> {
        match self.tokens.recv().await {
            Some(emitted) => {
                self.ended = emitted.finish.is_some();
                Ok(emitted)
            }
            None => {
                self.ended = true;
                Err(EngineGone)
            }
        }
    }
}

impl Generation {
    /// Takes it out of the model without blaming the client.
    pub(crate) fn discard(mut self) {
        self.ended = true;
        self.rank.abort(self.id);
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // The last token may be on its way already: then nothing is left to take out, and the client still left early.
        self.rank.abort(self.id);
        Counts::add(&self.state.counts.aborted);
        *self.state.counts.last_abort_ms.lock() = Some(self.state.clock.unix_ms());
    }
}
