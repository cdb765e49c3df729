//! One generation in the model, from submission to its last token or its client's disconnect.

mod length;

use std::sync::Arc;

use engine_model::{EmittedToken, FetchedPrefix, Finish, GenerationRequest, RequestId};
use kv_blocks::PromptMedia;
use tokio::sync::mpsc;

use crate::{
    detokenizer::Detokenizer,
    http::SimApiError,
    rank::SimRank,
    script::{Channel, OpenEnd, ReplyScript, StopCause, TokenText, ToolCall},
    server_state::{RequestCounts, ServerState},
};

/// The inputs of a generation.
#[derive(Clone, Debug)]
pub(crate) struct GenerationJob {
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) media: PromptMedia,
    /// `None`: no limit, see `open_end`.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) open_end: OpenEnd,
    /// The text of the reply; `None`: seed and prompt determine it.
    pub(crate) script: Option<Arc<ReplyScript>>,
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) salt: Option<Arc<str>>,
    /// From the request's header.
    pub(crate) rank: Option<usize>,
    /// Whether another engine computed the prompt.
    pub(crate) transferred: bool,
    /// Leading blocks that another engine sends, if the request names one.
    pub(crate) fetch: Option<FetchedPrefix>,
    /// Lower goes first, if the engine schedules by priority.
    pub(crate) priority: i64,
}

/// A running generation. Dropping it before its last token removes it from the model at once.
#[derive(Debug)]
pub(crate) struct Generation {
    state: Arc<ServerState>,
    rank: Arc<SimRank>,
    id: RequestId,
    tokens: mpsc::Receiver<EmittedToken>,
    ended: bool,
    renderer: TokenRenderer,
    pub(crate) prompt: Arc<[u32]>,
}

/// The conversion of tokens to text.
#[derive(Debug)]
enum TokenRenderer {
    Words(Detokenizer),
    /// The script, and the number of its tokens already emitted.
    Script(Arc<ReplyScript>, usize),
}

/// One token with its text.
#[derive(Debug)]
pub(crate) struct RenderedToken {
    pub(crate) token: u32,
    pub(crate) text: TokenText,
    pub(crate) cached_tokens: u32,
    /// Set on the last token.
    pub(crate) ending: Option<StopCause>,
}

/// The engine restarted during the request.
#[derive(Debug)]
pub(crate) struct EngineRestarted;

impl Generation {
    /// Checks a job against the model's limits and submits it.
    pub(crate) fn start(state: &Arc<ServerState>, job: GenerationJob) -> Result<Self, SimApiError> {
        let available_tokens = job.available_tokens(state.config.max_model_len)?;
        let (output_tokens, finish) = job.length(state, available_tokens);
        let rank = Arc::clone(rank_of(state, job.rank)?);
        let id = RequestId(state.counts.next_id());
        let request = GenerationRequest {
            id,
            prompt: Arc::clone(&job.prompt),
            media: job.media,
            output_tokens,
            finish,
            script: job.script.as_ref().map(|script| Arc::clone(&script.tokens)),
            lora: job.lora,
            salt: job.salt.filter(|_| state.config.cache.honours_salts),
            transferred: job.transferred,
            fetch: job.fetch,
            priority: job.priority,
        };
        let tokens = rank
            .submit(request)
            .map_err(|error| SimApiError::bad_request(error.to_string(), "prompt"))?;
        RequestCounts::add(&state.counts.executions);
        let renderer = match job.script {
            None => TokenRenderer::Words(Detokenizer::default()),
            Some(script) => TokenRenderer::Script(script, 0),
        };
        Ok(Self {
            state: Arc::clone(state),
            rank,
            id,
            tokens,
            ended: false,
            renderer,
            prompt: job.prompt,
        })
    }

    /// Returns the next token; must not be called after the last one.
    pub(crate) async fn next(&mut self) -> Result<RenderedToken, EngineRestarted> {
        match self.tokens.recv().await {
            Some(emitted) => {
                self.ended = emitted.finish.is_some();
                Ok(self.render(emitted))
            }
            None => {
                self.ended = true;
                Err(EngineRestarted)
            }
        }
    }

    fn render(&mut self, emitted: EmittedToken) -> RenderedToken {
        let EmittedToken {
            token,
            cached_tokens,
            finish,
            ..
        } = emitted;
        let (text, ending) = match &mut self.renderer {
            TokenRenderer::Words(detokenizer) => {
                let text = detokenizer.push(&self.state.tokenizer.model, token);
                let ending = |finish| {
                    if finish == Finish::Stop {
                        StopCause::Stop
                    } else {
                        StopCause::Length
                    }
                };
                (
                    TokenText {
                        channel: Channel::Content,
                        text,
                    },
                    finish.map(ending),
                )
            }
            TokenRenderer::Script(script, index) => {
                let text = script.texts.get(*index).cloned();
                *index += 1;
                let silent = || TokenText {
                    channel: Channel::Hidden,
                    text: String::new(),
                };
                (
                    text.unwrap_or_else(silent),
                    finish.map(|finish| script.ending(finish)),
                )
            }
        };
        RenderedToken {
            token,
            text,
            cached_tokens,
            ending,
        }
    }

    /// Returns the tool call at this place of the reply.
    pub(crate) fn call(&self, index: usize) -> Option<&ToolCall> {
        match &self.renderer {
            TokenRenderer::Words(_) => None,
            TokenRenderer::Script(script, _) => script.calls.get(index),
        }
    }
}

fn rank_of(state: &ServerState, requested: Option<usize>) -> Result<&Arc<SimRank>, SimApiError> {
    let Some(rank) = requested else {
        return Ok(state.least_loaded());
    };
    state.ranks.get(rank).ok_or_else(|| {
        let ranks = state.ranks.len();
        SimApiError::bad_request(
            format!("Data parallel rank {rank} is out of range: this engine has {ranks}."),
            "data_parallel_rank",
        )
    })
}

impl Generation {
    /// Removes the generation from the model without counting a client abort.
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
        // The last token may already be on its way: then there is nothing to remove, but the client
        // still left early.
        self.rank.abort(self.id);
        RequestCounts::add(&self.state.counts.aborted);
        *self.state.counts.last_abort_ms.lock() = Some(self.state.clock.unix_ms());
    }
}
