//! One generation in the model, from submission to its last token or its client's hang-up.

use std::sync::Arc;

use engine_model::{Emitted, Finish, ReplyStream, Request, RequestId};
use tokio::sync::mpsc;

use crate::{
    detokenizer::Detokenizer,
    http::ApiError,
    rank::Rank,
    script::{Call, Channel, Ending, Limit, OpenEnd, Said, Script},
    server_state::{Counts, ServerState},
};

/// What a request asks of the model.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) prompt: Arc<[u32]>,
    /// `None`: as long as the model likes, see `open_end`.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) open_end: OpenEnd,
    /// What the model says; `None`: what seed and prompt make it say.
    pub(crate) script: Option<Arc<Script>>,
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) salt: Option<Arc<str>>,
    /// From the request's header.
    pub(crate) rank: Option<usize>,
    /// Another engine computed the prompt.
    pub(crate) transferred: bool,
    /// Lower goes first, where the engine schedules by it.
    pub(crate) priority: i64,
}

/// A running generation. Dropping it before its last token takes it out of the model at once.
#[derive(Debug)]
pub(crate) struct Generation {
    state: Arc<ServerState>,
    rank: Arc<Rank>,
    id: RequestId,
    tokens: mpsc::Receiver<Emitted>,
    ended: bool,
    voice: Voice,
    pub(crate) prompt: Arc<[u32]>,
}

/// How tokens become text.
#[derive(Debug)]
enum Voice {
    Words(Detokenizer),
    /// The script, and how much of it is said.
    Script(Arc<Script>, usize),
}

/// One token and what it says.
#[derive(Debug)]
pub(crate) struct Spoken {
    pub(crate) token: u32,
    pub(crate) said: Said,
    pub(crate) cached_tokens: u32,
    /// Set on the last token.
    pub(crate) ending: Option<Ending>,
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
            return Err(ApiError::bad_request(
                "The prompt is empty: provide at least one token.",
                "prompt",
            ));
        }
        if prompt_tokens >= longest {
            return Err(ApiError::prompt_too_long(longest, prompt_tokens));
        }
        let room = longest - prompt_tokens;
        match job.max_tokens {
            Some(0) => {
                return Err(ApiError::bad_request(
                    "max_tokens must be at least 1, got 0.",
                    "max_tokens",
                ));
            }
            Some(wanted) if wanted > room => {
                return Err(ApiError::reply_too_long(longest, prompt_tokens, wanted));
            }
            _ => {}
        }
        let (output_tokens, finish) = match &job.script {
            None => {
                let alphabet = Arc::clone(&state.tokenizer.alphabet);
                let stream = ReplyStream::new(state.config.seed, &job.prompt, alphabet);
                let limit = Limit {
                    max_tokens: job.max_tokens,
                    open_end: job.open_end,
                    room,
                };
                limit.words(|| stream.natural_len())
            }
            Some(script) => {
                let whole = u32::try_from(script.tokens.len()).unwrap_or(u32::MAX);
                let most = job.max_tokens.unwrap_or(room).min(room);
                if whole <= most {
                    (whole, script.finish)
                } else {
                    (most, Finish::Length)
                }
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
            script: job.script.as_ref().map(|script| Arc::clone(&script.tokens)),
            lora: job.lora,
            salt: job.salt,
            transferred: job.transferred,
            priority: job.priority,
        };
        let tokens = rank
            .submit(request)
            .map_err(|error| ApiError::bad_request(error.to_string(), "prompt"))?;
        Counts::add(&state.counts.executions);
        let voice = match job.script {
            None => Voice::Words(Detokenizer::default()),
            Some(script) => Voice::Script(script, 0),
        };
        Ok(Self {
            state: Arc::clone(state),
            rank,
            id,
            tokens,
            ended: false,
            voice,
            prompt: job.prompt,
        })
    }

    /// The next token; after the last one this must not be called again.
    pub(crate) async fn next(&mut self) -> Result<Spoken, EngineGone> {
        match self.tokens.recv().await {
            Some(emitted) => {
                self.ended = emitted.finish.is_some();
                Ok(self.spoken(emitted))
            }
            None => {
                self.ended = true;
                Err(EngineGone)
            }
        }
    }

    fn spoken(&mut self, emitted: Emitted) -> Spoken {
        let Emitted {
            token,
            cached_tokens,
            finish,
            ..
        } = emitted;
        let (said, ending) = match &mut self.voice {
            Voice::Words(detokenizer) => {
                let text = detokenizer.push(&self.state.tokenizer.model, token);
                let ending = |finish| {
                    if finish == Finish::Stop {
                        Ending::Stop
                    } else {
                        Ending::Length
                    }
                };
                (
                    Said {
                        channel: Channel::Content,
                        text,
                    },
                    finish.map(ending),
                )
            }
            Voice::Script(script, place) => {
                let said = script.said.get(*place).cloned();
                *place += 1;
                let silent = || Said {
                    channel: Channel::Hidden,
                    text: String::new(),
                };
                (
                    said.unwrap_or_else(silent),
                    finish.map(|finish| script.ending(finish)),
                )
            }
        };
        Spoken {
            token,
            said,
            cached_tokens,
            ending,
        }
    }

    /// The call at this place of the reply.
    pub(crate) fn call(&self, place: usize) -> Option<&Call> {
        match &self.voice {
            Voice::Words(_) => None,
            Voice::Script(script, _) => script.calls.get(place),
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
