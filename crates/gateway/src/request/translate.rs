//! Translates requests and replies between API dialects.
//!
//! Some requests are not chats but become one at the engine: they are routed by the equivalent
//! chat. A messages request is sent as that chat to a worker without a messages API, and a chat as
//! a message to a worker that has only that API; the reply is translated back into the client's
//! dialect. All other requests are forwarded as received.

mod reply;
mod stream;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use dialect::{
    ApiError, CompletionOptions, Dialect, ErrorCode, Fidelity, PassedOn, RequestView,
    ResponsesView, TranslatedRequest,
};
use fleet::{EngineKind, MessagesMode, ModelView, Snapshot, WorkerView};
use http::uri::PathAndQuery;
use net::Clock;
use routing::{Pin, PrefixRoutingSection};
use tokenization::{TokenizationStage, cost_of};

pub(super) use self::reply::ReplyTranslator;
pub(crate) use self::stream::StreamTranslator;
use super::accept::AcceptedRequest;
use crate::{errors, response_affinity::ResponseAffinity};

/// The parts that translate bodies.
#[derive(Clone, Debug)]
pub(crate) struct TranslationStage {
    /// For long bodies, which would block a runtime thread.
    pub(crate) tokenization: Arc<TokenizationStage>,
    /// Has the optional changes of request bodies, beside those that a route needs.
    pub(crate) settings: PrefixRoutingSection,
    pub(crate) clock: Clock,
}

impl TranslationStage {
    /// Removes the volatile line of a request, if it has one.
    async fn shorten(&self, dialect: Dialect, call: &mut AcceptedRequest) -> bool {
        let shorter = self
            .on_compute_pool(call, move |body| {
                dialect::without_volatile_prefix(dialect, &body)
            })
            .await;
        let Ok(Some(shorter)) = shorter else {
            return false;
        };
        *call = call.with_dialect(call.target.clone(), shorter.into());
        true
    }

    /// Runs work on the body where it blocks no runtime thread for long.
    async fn on_compute_pool<T: Send + 'static>(
        &self,
        call: &AcceptedRequest,
        work: impl FnOnce(Bytes) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let body = call.body.bytes().clone();
        let cost = cost_of(body.len(), COST_PER_BYTE);
        let pool = self.tokenization.compute_pool();
        let worked = pool.run(cost, move || work(body)).await;
        worked.ok_or_else(|| ApiError::new(ErrorCode::Internal, "the body could not be read"))
    }
}

/// Predicted cost to parse and rewrite a body, per byte.
const COST_PER_BYTE: Duration = Duration::from_nanos(12);
/// The path of messages, at workers that support them.
const MESSAGES: &str = "/v1/messages";
const CHAT: &str = "/v1/chat/completions";
/// The name of the removed line in the rewrites header.
pub(super) const VOLATILE_PREFIX: &str = "volatile_prefix";

/// The workers that support a request's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiSupport {
    /// All workers.
    All,
    /// Workers with OpenAI's API.
    Openai,
    /// Workers with a messages API of their own.
    Native,
}

impl ApiSupport {
    pub(crate) fn by(self, worker: &WorkerView) -> bool {
        match self {
            Self::All => true,
            Self::Openai => worker.engine.kind != EngineKind::Anthropic,
            Self::Native => worker.engine.messages == MessagesMode::Native,
        }
    }

    /// Returns whether a worker of the model supports it; true if the model has no worker at all,
    /// since the request then waits like any other.
    fn by_some(self, model: &ModelView) -> bool {
        let candidates = &model.candidates;
        candidates.is_empty()
            || candidates
                .iter()
                .any(|candidate| self.by(&candidate.worker))
    }

    /// Refuses a request whose API no worker of the model supports.
    pub(super) fn check(self, model: &ModelView) -> Result<(), ApiError> {
        if self.by_some(model) {
            return Ok(());
        }
        let message = format!(
            "model {:?} is served only by workers of type anthropic, which have no such route: send a chat, or a message to {MESSAGES}",
            super::overrides::printable(&model.id)
        );
        Err(ApiError::new(ErrorCode::InvalidRequest, message).param("model"))
    }
}

/// The translations of one request.
#[derive(Debug)]
pub(super) struct RequestTranslator {
    dialect: Dialect,
    pub(super) api_support: ApiSupport,
    /// The chat that stands for the request in routing.
    chat: Option<Bytes>,
    /// The members that stand in that chat as the client sent them.
    passed_on: PassedOn,
    fidelity: Fidelity,
    /// The part of a messages request that a chat cannot express.
    untranslatable: Option<String>,
    /// The engine stores the result: it must not be computed twice.
    pub(super) keeps_state: bool,
    /// The stored response that this request continues.
    previous: Option<Box<str>>,
    /// The volatile line was removed, whatever the worker.
    pub(super) shortened: bool,
}

impl RequestTranslator {
    /// Creates the translator of a request that is routed and sent as received.
    pub(super) fn untranslated(dialect: Dialect, api_support: ApiSupport) -> Self {
        Self {
            dialect,
            api_support,
            chat: None,
            passed_on: PassedOn::default(),
            fidelity: Fidelity::Exact,
            untranslatable: None,
            keeps_state: false,
            previous: None,
            shortened: false,
        }
    }

    /// Determines the dialects that the request can be sent in. A long body is parsed off the
    /// runtime threads.
    pub(super) async fn of(
        stage: &TranslationStage,
        dialect: Dialect,
        call: &mut AcceptedRequest,
    ) -> Result<Self, ApiError> {
        let shortened = stage.settings.strip_volatile_prefix
            && matches!(dialect, Dialect::Chat | Dialect::Messages)
            && stage.shorten(dialect, call).await;
        let translated = matches!(dialect, Dialect::Messages | Dialect::Chat);
        let api_support = if translated {
            ApiSupport::All
        } else {
            ApiSupport::Openai
        };
        let own = Self {
            shortened,
            ..Self::untranslated(dialect, api_support)
        };
        match dialect {
            Dialect::Messages => own.with_chat_of_message(stage, call).await,
            Dialect::Responses => own.with_chat_of_response(stage, call).await,
            _ => Ok(own),
        }
    }

    /// Adds the chat that is equivalent to a message.
    async fn with_chat_of_message(
        self,
        stage: &TranslationStage,
        call: &AcceptedRequest,
    ) -> Result<Self, ApiError> {
        let TranslatedRequest {
            body,
            untranslatable,
            passed_on,
        } = stage
            .on_compute_pool(call, |body| dialect::messages_to_chat(&body))
            .await??;
        let api_support = if untranslatable.is_some() {
            ApiSupport::Native
        } else {
            self.api_support
        };
        Ok(Self {
            chat: Some(body.into()),
            passed_on,
            untranslatable,
            api_support,
            ..self
        })
    }

    /// Adds the chat that stands for a request of the responses API in routing.
    async fn with_chat_of_response(
        self,
        stage: &TranslationStage,
        call: &AcceptedRequest,
    ) -> Result<Self, ApiError> {
        let read = |body: Bytes| {
            let ResponsesView {
                stored,
                previous,
                chat,
                fidelity,
                passed_on,
            } = dialect::responses_view(&body)?;
            let previous = previous.map(|id| Box::from(&*id));
            Ok::<_, dialect::ViewError>((stored, previous, (chat, passed_on), fidelity))
        };
        let (stored, previous, (chat, passed_on), fidelity) =
            stage.on_compute_pool(call, read).await??;
        Ok(Self {
            chat: Some(chat.into()),
            passed_on,
            fidelity,
            keeps_state: stored || previous.is_some(),
            previous,
            ..self
        })
    }

    /// Refuses a request whose API no worker of the model supports.
    pub(super) fn check_supported(&self, model: &ModelView) -> Result<(), ApiError> {
        match &self.untranslatable {
            Some(why) if !self.api_support.by_some(model) => {
                Err(ApiError::new(ErrorCode::InvalidRequest, why.clone()))
            }
            Some(_) => Ok(()),
            None => self.api_support.check(model),
        }
    }

    /// Returns the dialect by which the request is routed, and the body in that dialect.
    pub(super) fn routing_body(&self, call: &AcceptedRequest) -> (Dialect, Bytes) {
        match &self.chat {
            Some(chat) => (Dialect::Chat, chat.clone()),
            None => (self.dialect, call.body.bytes().clone()),
        }
    }

    /// Returns the view of that body, of which only what the translation wrote is walked; later ones
    /// walk all of it.
    pub(super) fn request_view<'b>(
        &mut self,
        dialect: Dialect,
        body: &'b [u8],
    ) -> Result<RequestView<'b>, ApiError> {
        let mut view =
            dialect::view_of_translated(dialect, body, &std::mem::take(&mut self.passed_on))?;
        if self.fidelity == Fidelity::Likeness {
            view.fidelity = Fidelity::Likeness;
        }
        if let (Dialect::Embeddings | Dialect::Rerank | Dialect::Score, None) =
            (self.dialect, view.max_tokens)
        {
            view.max_tokens = Some(0);
        }
        Ok(view)
    }

    /// Returns whether the reply begins with the number of the prompt's tokens.
    pub(super) fn repeats_token_count(&self) -> bool {
        self.dialect == Dialect::Messages
    }

    /// Returns whether another worker may compute the prompt.
    pub(super) fn can_split(&self) -> bool {
        !matches!(
            self.dialect,
            Dialect::Responses | Dialect::ChatBatch | Dialect::TokenIds | Dialect::SglangGenerate
        )
    }

    /// Returns the worker that holds the response that this request continues, if it is known and
    /// present.
    ///
    /// # Errors
    ///
    /// It is not known that the tenant created that response, and there are other tenants: the
    /// engine would put their conversation into the prompt.
    pub(super) fn response_worker(
        &self,
        affinity: &ResponseAffinity,
        workers: &Snapshot,
        call: &AcceptedRequest,
    ) -> Result<Option<Pin>, ApiError> {
        let Some(id) = self.previous.as_deref() else {
            return Ok(None);
        };
        let Some(home) = affinity.find(call.response(id), call.received) else {
            let is_alone = call.tenant.as_ref().is_none_or(|tenant| tenant.is_alone());
            let unknown = || errors::response_not_remembered(id, "previous_response_id");
            return if is_alone { Ok(None) } else { Err(unknown()) };
        };
        let worker = home.worker;
        Ok(workers.worker(worker).map(|_| Pin { worker, rank: None }))
    }

    /// Builds the request for this worker.
    pub(super) async fn upstream_request<'c>(
        &self,
        stage: &TranslationStage,
        call: &'c AcceptedRequest,
        worker: ReplyWorker<'_>,
        context: &ReplyContext,
    ) -> Result<UpstreamRequest<'c>, ApiError> {
        let mut rewrites = if self.shortened {
            vec![VOLATILE_PREFIX]
        } else {
            Vec::new()
        };
        if self.dialect == Dialect::Chat && worker.view.engine.kind == EngineKind::Anthropic {
            return Box::pin(self.as_message(stage, call, context, rewrites)).await;
        }
        let (Dialect::Messages, Some(chat)) = (self.dialect, &self.chat) else {
            let is_openai = matches!(
                self.dialect,
                Dialect::Chat
                    | Dialect::Completions
                    | Dialect::ChatBatch
                    | Dialect::TokenIds
                    | Dialect::SglangGenerate
            );
            return Ok(UpstreamRequest {
                is_openai,
                ..UpstreamRequest::as_received(call, rewrites)
            });
        };
        // Engines know no salt in a message.
        let is_sent_natively = worker.view.engine.messages == MessagesMode::Native
            && !worker.gets_prompt
            && (!call.salted || worker.view.engine.kind == EngineKind::Anthropic);
        if is_sent_natively {
            return Box::pin(native_message(stage, call, rewrites)).await;
        }
        if let Some(why) = &self.untranslatable {
            return Err(ApiError::new(ErrorCode::InvalidRequest, why.clone()));
        }
        rewrites.insert(0, "messages");
        Ok(UpstreamRequest {
            call: Cow::Owned(call.with_dialect(at(call, CHAT), chat.clone())),
            reply_translator: ReplyTranslator::Message {
                model: Arc::clone(&context.model),
                prompt_tokens: context.prompt_tokens,
                request_id: Arc::clone(&call.request_id),
            },
            rewrites,
            is_openai: true,
        })
    }
}

/// Builds a message for a worker with a messages API of its own.
async fn native_message<'c>(
    stage: &TranslationStage,
    call: &'c AcceptedRequest,
    mut rewrites: Vec<&'static str>,
) -> Result<UpstreamRequest<'c>, ApiError> {
    let marked = if stage.settings.anthropic_cache_control_injection {
        stage
            .on_compute_pool(call, |body| dialect::with_cache_control(&body))
            .await?
    } else {
        None
    };
    if marked.is_none() && call.target.path() == MESSAGES {
        return Ok(UpstreamRequest::as_received(call, rewrites));
    }
    rewrites.extend(marked.iter().map(|_| "cache_control"));
    let body = marked.map_or_else(|| call.body.bytes().clone(), Bytes::from);
    Ok(UpstreamRequest {
        call: Cow::Owned(call.with_dialect(at(call, MESSAGES), body)),
        ..UpstreamRequest::as_received(call, rewrites)
    })
}

impl RequestTranslator {
    /// Translates a chat for a worker that supports only messages.
    async fn as_message<'c>(
        &self,
        stage: &TranslationStage,
        call: &'c AcceptedRequest,
        context: &ReplyContext,
        mut rewrites: Vec<&'static str>,
    ) -> Result<UpstreamRequest<'c>, ApiError> {
        let marks = stage.settings.anthropic_cache_control_injection;
        let translate = move |body: Bytes| {
            let TranslatedRequest {
                body,
                untranslatable,
                passed_on: _,
            } = dialect::chat_to_messages(&body)?;
            let marked = if marks {
                dialect::with_cache_control(&body)
            } else {
                None
            };
            Ok::<_, dialect::ViewError>((marked.is_some(), marked.unwrap_or(body), untranslatable))
        };
        let (marked, body, untranslatable) = stage.on_compute_pool(call, translate).await??;
        if let Some(why) = untranslatable {
            return Err(ApiError::new(ErrorCode::InvalidRequest, why));
        }
        rewrites.insert(0, "messages");
        if marked {
            rewrites.push("cache_control");
        }
        let completion = CompletionOptions {
            model: (&*context.model).into(),
            created: stage.clock.unix_s(),
            include_usage: context.include_usage,
        };
        Ok(UpstreamRequest {
            call: Cow::Owned(call.with_dialect(at(call, MESSAGES), body.into())),
            reply_translator: ReplyTranslator::Chat {
                completion,
                request_id: Arc::clone(&call.request_id),
            },
            rewrites,
            is_openai: false,
        })
    }
}

/// Facts of a request that its reply repeats.
#[derive(Clone, Debug)]
pub(super) struct ReplyContext {
    /// The model by the client's name for it.
    pub(super) model: Arc<str>,
    /// Tokens of the prompt by the router's count; 0 where that is an estimate.
    pub(super) prompt_tokens: u32,
    /// Whether the stream ends with the usage.
    pub(super) include_usage: bool,
}

/// The worker that generates the reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyWorker<'a> {
    pub(super) view: &'a WorkerView,
    /// Whether it gets the prompt's KV from another worker, which only a chat can express.
    pub(super) gets_prompt: bool,
}

/// A request in a dialect that its worker supports.
#[derive(Debug)]
pub(super) struct UpstreamRequest<'c> {
    pub(super) call: Cow<'c, AcceptedRequest>,
    /// Translates the reply back.
    pub(super) reply_translator: ReplyTranslator,
    pub(super) rewrites: Vec<&'static str>,
    /// Whether it is a chat, a completion or a form of these: engines accept their priority member
    /// with these, and count their prompts as the router does.
    pub(super) is_openai: bool,
}

impl<'c> UpstreamRequest<'c> {
    fn as_received(call: &'c AcceptedRequest, rewrites: Vec<&'static str>) -> Self {
        Self {
            call: Cow::Borrowed(call),
            reply_translator: ReplyTranslator::AsItCame,
            rewrites,
            is_openai: false,
        }
    }
}

/// Returns the client's target with another path; the query stays.
fn at(call: &AcceptedRequest, path: &'static str) -> PathAndQuery {
    match call.target.query() {
        // It was a valid target with the other path.
        Some(query) => format!("{path}?{query}")
            .parse()
            .unwrap_or_else(|_| PathAndQuery::from_static(path)),
        None => PathAndQuery::from_static(path),
    }
}
