//! In which words a request is routed, and in which it is sent to the worker that was chosen.
//!
//! Some requests are not written as a chat and yet become one at the engine: those are routed by the chat that stands in
//! for them. A request for a message is also sent as that chat, to a worker that has no messages of its own, and a chat as a
//! message to one that has nothing else; the reply is put back into the client's words. Everything else is forwarded as it came.

mod reply;
mod stream;

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use dialect::{
    ApiError, CompletionOptions, Dialect, ErrorCode, Fidelity, RequestView, ResponsesView,
    TranslatedRequest,
};
use fleet::{EngineKind, MessagesMode, ModelView, WorkerView};
use http::uri::PathAndQuery;
use kv_blocks::Moment;
use routing::Pin;

pub(super) use self::reply::ReplyTranslator;
pub(crate) use self::stream::StreamTranslator;
use super::{accept::AcceptedRequest, tokenization::cost_of};
use crate::Gateway;

/// What is changed in requests beside what their way asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct RewriteSettings {
    /// System prompts of requests to Anthropic-speaking workers are marked as cacheable (contract CK21).
    pub cache_control: bool,
    /// The line that agents' clients change with every request is taken out.
    pub volatile_prefix: bool,
}

/// What reading a body and writing it anew costs, a byte.
const COST_PER_BYTE: Duration = Duration::from_nanos(12);
/// Where messages are asked for, at workers that have them.
const MESSAGES: &str = "/v1/messages";
const CHAT: &str = "/v1/chat/completions";
/// What the header of rewrites says of the line that was taken out.
pub(super) const VOLATILE_PREFIX: &str = "volatile_prefix";

/// Which workers have words for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiSupport {
    /// All.
    All,
    /// Those with OpenAI's API.
    Openai,
    /// Those that take messages themselves.
    Native,
}

impl ApiSupport {
    pub(crate) fn by(self, worker: &WorkerView) -> bool {
        match self {
            Self::All => true,
            Self::Openai => worker.engine != EngineKind::Anthropic,
            Self::Native => worker.messages == MessagesMode::Native,
        }
    }

    /// Whether some worker of the model has words for it. Where none is there at all the request waits like any other.
    fn by_some(self, model: &ModelView) -> bool {
        let candidates = &model.candidates;
        candidates.is_empty()
            || candidates
                .iter()
                .any(|candidate| self.by(&candidate.worker))
    }

    /// Refuses a request that no worker of the model has words for.
    pub(super) fn check(self, model: &ModelView) -> Result<(), ApiError> {
        if self.by_some(model) {
            return Ok(());
        }
        let message = format!(
            "model {:?} is served only by workers of type anthropic, which have no such route: send a chat, or a message to {MESSAGES}",
            super::accept::printable(&model.id)
        );
        Err(ApiError::new(ErrorCode::InvalidRequest, message).param("model"))
    }
}

/// A request's words.
#[derive(Debug)]
pub(super) struct RequestTranslator {
    dialect: Dialect,
    pub(super) spoken: ApiSupport,
    /// The chat that stands in for the request.
    chat: Option<Bytes>,
    fidelity: Fidelity,
    /// What of a request for a message no chat can say.
    untranslatable: Option<String>,
    /// The engine keeps what comes of it: it must not be computed twice.
    pub(super) keeps_state: bool,
    /// The response that it goes on from.
    previous: Option<Box<str>>,
    /// A line was taken out of it, for whomever it goes to.
    pub(super) shortened: bool,
}

impl RequestTranslator {
    /// Of a request that is routed and sent as it came.
    pub(super) fn untranslated(dialect: Dialect, spoken: ApiSupport) -> Self {
        Self {
            dialect,
            spoken,
            chat: None,
            fidelity: Fidelity::Exact,
            untranslatable: None,
            keeps_state: false,
            previous: None,
            shortened: false,
        }
    }

    /// Reads in which words the request can be said. Long bodies are read where they hold up nobody.
    pub(super) async fn of(
        gateway: &Gateway,
        dialect: Dialect,
        call: &mut AcceptedRequest,
    ) -> Result<Self, ApiError> {
        let shortened = gateway.rules.rewriting.volatile_prefix
            && matches!(dialect, Dialect::Chat | Dialect::Messages)
            && shorten(gateway, dialect, call).await;
        let translated = matches!(dialect, Dialect::Messages | Dialect::Chat);
        let spoken = if translated {
            ApiSupport::All
        } else {
            ApiSupport::Openai
        };
        let own = Self {
            shortened,
            ..Self::untranslated(dialect, spoken)
        };
        match dialect {
            Dialect::Messages => {
                let TranslatedRequest {
                    body,
                    untranslatable,
                } = beside(gateway, call, |body| dialect::messages_to_chat(&body)).await??;
                let spoken = if untranslatable.is_some() {
                    ApiSupport::Native
                } else {
                    spoken
                };
                Ok(Self {
                    chat: Some(body.into()),
                    untranslatable,
                    spoken,
                    ..own
                })
            }
            Dialect::Responses => {
                let read = |body: Bytes| {
                    let ResponsesView {
                        stored,
                        previous,
                        chat,
                        fidelity,
                    } = dialect::responses_view(&body)?;
                    Ok::<_, dialect::ViewError>((
                        stored,
                        previous.map(|id| Box::from(&*id)),
                        chat,
                        fidelity,
                    ))
                };
                let (stored, previous, chat, fidelity) = beside(gateway, call, read).await??;
                let keeps_state = stored || previous.is_some();
                Ok(Self {
                    chat: Some(chat.into()),
                    fidelity,
                    keeps_state,
                    previous,
                    ..own
                })
            }
            _ => Ok(own),
        }
    }

    /// Refuses a request that no worker of the model has words for.
    pub(super) fn check_supported(&self, model: &ModelView) -> Result<(), ApiError> {
        match &self.untranslatable {
            Some(why) if !self.spoken.by_some(model) => {
                Err(ApiError::new(ErrorCode::InvalidRequest, why.clone()))
            }
            Some(_) => Ok(()),
            None => self.spoken.check(model),
        }
    }

    /// The dialect that the request is routed by, and the body in it.
    pub(super) fn routing_body(&self, call: &AcceptedRequest) -> (Dialect, Bytes) {
        match &self.chat {
            Some(chat) => (Dialect::Chat, chat.clone()),
            None => (self.dialect, call.body.bytes().clone()),
        }
    }

    /// What is read of that body.
    pub(super) fn request_view<'b>(
        &self,
        dialect: Dialect,
        body: &'b [u8],
    ) -> Result<RequestView<'b>, ApiError> {
        let mut view = dialect::view(dialect, body)?;
        view.fidelity = self.fidelity;
        if let (Dialect::Embeddings | Dialect::Rerank | Dialect::Score, None) =
            (self.dialect, view.max_tokens)
        {
            view.max_tokens = Some(0);
        }
        Ok(view)
    }

    /// Whether its prompt may be computed apart from its reply.
    pub(super) fn can_split(&self) -> bool {
        self.dialect != Dialect::Responses
    }

    /// The worker that has the response which this request goes on from, if it is known and there.
    pub(super) fn response_worker(&self, gateway: &Gateway, now: Moment) -> Option<Pin> {
        let worker = gateway
            .response_affinity
            .find(self.previous.as_deref()?, now)?;
        gateway
            .fleet
            .snapshot()
            .worker(worker)
            .map(|_| Pin { worker, rank: None })
    }

    /// How this worker is asked. `handed_over`: another one computes the prompt, which only chats can be told.
    pub(super) async fn upstream_request<'c>(
        &self,
        gateway: &Gateway,
        call: &'c AcceptedRequest,
        worker: &WorkerView,
        handed_over: bool,
        asked: &ReplyContext,
    ) -> Result<UpstreamRequest<'c>, ApiError> {
        let mut rewrites = if self.shortened {
            vec![VOLATILE_PREFIX]
        } else {
            Vec::new()
        };
        let as_it_came = |rewrites| UpstreamRequest {
            call: Cow::Borrowed(call),
            back: ReplyTranslator::AsItCame,
            rewrites,
            is_openai: false,
        };
        if self.dialect == Dialect::Chat && worker.engine == EngineKind::Anthropic {
            return self.as_message(gateway, call, asked, rewrites).await;
        }
        let (Dialect::Messages, Some(chat)) = (self.dialect, &self.chat) else {
            let is_openai = matches!(self.dialect, Dialect::Chat | Dialect::Completions);
            return Ok(UpstreamRequest {
                is_openai,
                ..as_it_came(rewrites)
            });
        };
        if worker.messages == MessagesMode::Native && !handed_over {
            let marks = gateway.rules.rewriting.cache_control;
            let marked = if marks {
                beside(gateway, call, |body| dialect::with_cache_control(&body)).await?
            } else {
                None
            };
            if marked.is_none() && call.target.path() == MESSAGES {
                return Ok(as_it_came(rewrites));
            }
            rewrites.extend(marked.iter().map(|_| "cache_control"));
            let body = marked.map_or_else(|| call.body.bytes().clone(), Bytes::from);
            return Ok(UpstreamRequest {
                call: Cow::Owned(call.with_dialect(at(call, MESSAGES), body)),
                ..as_it_came(rewrites)
            });
        }
        if let Some(why) = &self.untranslatable {
            return Err(ApiError::new(ErrorCode::InvalidRequest, why.clone()));
        }
        rewrites.insert(0, "messages");
        Ok(UpstreamRequest {
            call: Cow::Owned(call.with_dialect(at(call, CHAT), chat.clone())),
            back: ReplyTranslator::Message {
                model: Arc::clone(&asked.model),
                prompt_tokens: asked.prompt_tokens,
                request_id: Arc::clone(&call.request_id),
            },
            rewrites,
            is_openai: true,
        })
    }
}

impl RequestTranslator {
    /// A chat for a worker that has messages only.
    async fn as_message<'c>(
        &self,
        gateway: &Gateway,
        call: &'c AcceptedRequest,
        asked: &ReplyContext,
        mut rewrites: Vec<&'static str>,
    ) -> Result<UpstreamRequest<'c>, ApiError> {
        let marks = gateway.rules.rewriting.cache_control;
        let say = move |body: Bytes| {
            let TranslatedRequest {
                body,
                untranslatable,
            } = dialect::chat_to_messages(&body)?;
            let marked = if marks {
                dialect::with_cache_control(&body)
            } else {
                None
            };
            Ok::<_, dialect::ViewError>((marked.is_some(), marked.unwrap_or(body), untranslatable))
        };
        let (marked, body, untranslatable) = beside(gateway, call, say).await??;
        if let Some(why) = untranslatable {
            return Err(ApiError::new(ErrorCode::InvalidRequest, why));
        }
        rewrites.insert(0, "messages");
        if marked {
            rewrites.push("cache_control");
        }
        let completion = CompletionOptions {
            model: (&*asked.model).into(),
            created: gateway.clock.unix_s(),
            include_usage: asked.include_usage,
        };
        Ok(UpstreamRequest {
            call: Cow::Owned(call.with_dialect(at(call, MESSAGES), body.into())),
            back: ReplyTranslator::Chat {
                completion,
                request_id: Arc::clone(&call.request_id),
            },
            rewrites,
            is_openai: false,
        })
    }
}

/// What of a request its reply is told with.
#[derive(Clone, Debug)]
pub(super) struct ReplyContext {
    /// The model by the name that the client used.
    pub(super) model: Arc<str>,
    /// Tokens of the prompt as counted here; 0 where that is a guess.
    pub(super) prompt_tokens: u32,
    /// The stream shall end with the usage.
    pub(super) include_usage: bool,
}

/// A request in the words of one worker.
#[derive(Debug)]
pub(super) struct UpstreamRequest<'c> {
    pub(super) call: Cow<'c, AcceptedRequest>,
    /// How its reply comes into the client's words.
    pub(super) back: ReplyTranslator,
    pub(super) rewrites: Vec<&'static str>,
    /// It is a chat or a completion: engines take the number by which they order requests with it, and count its prompt as
    /// is done here.
    pub(super) is_openai: bool,
}

/// The client's target with another path; what it asks behind the path stays.
fn at(call: &AcceptedRequest, path: &'static str) -> PathAndQuery {
    match call.target.query() {
        // It was a valid target with the other path.
        Some(query) => format!("{path}?{query}")
            .parse()
            .unwrap_or_else(|_| PathAndQuery::from_static(path)),
        None => PathAndQuery::from_static(path),
    }
}

async fn shorten(gateway: &Gateway, dialect: Dialect, call: &mut AcceptedRequest) -> bool {
    let shorter = beside(gateway, call, move |body| {
        dialect::without_volatile_prefix(dialect, &body)
    })
    .await;
    let Ok(Some(shorter)) = shorter else {
        return false;
    };
    *call = call.with_dialect(call.target.clone(), shorter.into());
    true
}

/// Works on the body where that holds up nobody.
async fn beside<T: Send + 'static>(
    gateway: &Gateway,
    call: &AcceptedRequest,
    work: impl FnOnce(Bytes) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let body = call.body.bytes().clone();
    let cost = cost_of(body.len(), COST_PER_BYTE);
    let worked = gateway
        .tokenization
        .compute_pool()
        .run(cost, move || work(body))
        .await;
    worked.ok_or_else(|| ApiError::new(ErrorCode::Internal, "the body could not be read"))
}
