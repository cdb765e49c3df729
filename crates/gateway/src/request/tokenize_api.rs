//! `POST /tokenize` and `POST /detokenize`: text to token ids and back, as the engine would do it.
//!
//! The router answers where it has the model's tokenizer, with or without workers. Otherwise the
//! request goes to an engine through the usual stages and leaves no trace in the view of its cache.

use std::{borrow::Cow, sync::Arc, time::Duration};

use dialect::{ApiError, ErrorCode, TokenizeView};
use fleet::{Fleet, ModelView};
use http::Response;
use kv_blocks::Moment;
use net::Clock;
use prompt::{PromptError, PromptModel, SaltGroup};
use routing::Pin;
use serde::Serialize;
use tokenization::{TokenizedPrompt, cost_of, text_of};

use super::{
    accept::AcceptedRequest,
    decide,
    generation::GenerationStages,
    prefill::Handover,
    queue_wait::{WaitRecord, find_model},
    receipt::RequestFacts,
    record::RequestGuard,
    reply::{self, refused},
    reply_body::ReplyBody,
    send::{ForwardedFacts, RoutedRequest},
    translate::ApiSupport,
};
use crate::Gateway;

/// Cost per byte to read the model's name from a body.
const NAME_COST_PER_BYTE: Duration = Duration::from_nanos(4);

/// Longest wait for a local answer: a mebibyte takes a tenth of a second.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// `POST /tokenize`.
pub(super) async fn tokenize(
    gateway: &Arc<Gateway>,
    call: AcceptedRequest,
    guard: Box<RequestGuard>,
) -> Response<ReplyBody> {
    let route = TokenizeRoute {
        model: |bytes| dialect::tokenize_view(bytes).map(|view| view.model.map(Cow::into_owned)),
        work: tokens,
    };
    answered(gateway, call, guard, route).await
}

/// `POST /detokenize`.
pub(super) async fn detokenize(
    gateway: &Arc<Gateway>,
    call: AcceptedRequest,
    guard: Box<RequestGuard>,
) -> Response<ReplyBody> {
    let route = TokenizeRoute {
        model: |bytes| dialect::detokenize_view(bytes).map(|view| view.model.map(Cow::into_owned)),
        work: text,
    };
    answered(gateway, call, guard, route).await
}

/// The work of one of the two routes on a request's body.
#[derive(Clone, Copy)]
struct TokenizeRoute {
    /// Reads the model's name.
    model: fn(&[u8]) -> Result<Option<String>, dialect::ViewError>,
    /// Computes the reply.
    work: fn(&[u8], &TokenizeSubject) -> Result<Vec<u8>, NoLocalAnswer>,
}

/// The tokenizer and its context for one request.
struct TokenizeSubject {
    tokenizer: Arc<PromptModel>,
    group: SaltGroup,
    max_model_len: Option<u32>,
    clock: Clock,
}

/// The reason why there is no local answer.
enum NoLocalAnswer {
    /// The request is invalid.
    Refused(ApiError),
    /// Only an engine can answer it, for this reason.
    Elsewhere(String),
}

impl From<PromptError> for NoLocalAnswer {
    fn from(error: PromptError) -> Self {
        if error.is_refusal() {
            Self::Refused(ApiError::new(ErrorCode::InvalidRequest, error.to_string()))
        } else {
            Self::Elsewhere(error.to_string())
        }
    }
}

/// Answers locally if possible, else through a worker of the model.
async fn answered(
    gateway: &Arc<Gateway>,
    call: AcceptedRequest,
    mut guard: Box<RequestGuard>,
    route: TokenizeRoute,
) -> Response<ReplyBody> {
    let (model, tokenizer) = match model_and_tokenizer(gateway, &call, route).await {
        Ok(found) => found,
        Err(error) => return refused(guard, &error),
    };
    let mut why = None;
    if let Some(tokenizer) = tokenizer {
        let longest = model
            .as_ref()
            .and_then(|model| model.max_model_len)
            .or_else(|| tokenizer.max_len());
        let subject = TokenizeSubject {
            tokenizer: Arc::clone(&tokenizer),
            group: call.salt_group(),
            max_model_len: longest,
            clock: gateway.clock(),
        };
        let bytes = call.body.bytes().clone();
        let limit = max_wait(gateway, call.received);
        let pool = gateway.generation.tokenization.low_priority_pool();
        let work = move || (route.work)(&bytes, &subject);
        match pool.compute(&tokenizer, limit, gateway.clock(), work).await {
            Ok(Ok(body)) => {
                guard.record_passthrough(200);
                return reply::bytes(200, body, guard.request_id());
            }
            Ok(Err(NoLocalAnswer::Refused(error))) => return refused(guard, &error),
            Ok(Err(NoLocalAnswer::Elsewhere(reason))) => why = Some(reason),
            Err(reason) => why = Some(format!("the model's tokenizer is {}", reason.as_str())),
        }
    }
    let model = model.filter(|model| why.is_none() || !model.candidates.is_empty());
    if let Some(model) = model {
        let stages = &gateway.generation;
        return stages.forward(call, model, ApiSupport::Openai, guard).await;
    }
    let why = why.unwrap_or_else(|| "the tokenizer gave up".to_owned());
    let message = format!("{why}, and no worker of the model can be asked now: try again");
    let error = ApiError::new(ErrorCode::NoWorker, message).with_retry_after(1);
    refused(guard, &error)
}

/// Finds the model that the request names and its tokenizer.
async fn model_and_tokenizer(
    gateway: &Gateway,
    call: &AcceptedRequest,
    route: TokenizeRoute,
) -> Result<(Option<Arc<ModelView>>, Option<Arc<PromptModel>>), ApiError> {
    let bytes = call.body.bytes().clone();
    let cost = cost_of(bytes.len(), NAME_COST_PER_BYTE);
    let pool = gateway.generation.tokenization.low_priority_pool();
    let named = pool.run(cost, move || (route.model)(&bytes)).await;
    let named =
        named.ok_or_else(|| ApiError::new(ErrorCode::Internal, "the body could not be read"))?;
    let id = model_asked_for(gateway.fleet(), named?)?;
    tokenizer_of(gateway, &id).await
}

/// Returns the model of this id and its tokenizer. A tokenizer suffices for a model that no worker
/// has ever listed.
pub(super) async fn tokenizer_of(
    gateway: &Gateway,
    id: &Arc<str>,
) -> Result<(Option<Arc<ModelView>>, Option<Arc<PromptModel>>), ApiError> {
    let snapshot = gateway.fleet().snapshot();
    let own = snapshot
        .model(id)
        .and_then(|model| model.artefacts.prompt.clone());
    let tokenizer = match own {
        Some(tokenizer) => Some(tokenizer),
        None => gateway
            .fleet()
            .configured_artefacts(id)
            .await
            .and_then(|found| found.prompt.clone()),
    };
    let model = if tokenizer.is_some() {
        snapshot.model(id).cloned()
    } else {
        Some(find_model(&snapshot, id)?)
    };
    Ok((model, tokenizer))
}

/// Returns how long a client waits for a local answer.
pub(super) fn max_wait(gateway: &Gateway, received: Moment) -> Duration {
    let deadline = received + gateway.generation.request_timeout();
    deadline.since(gateway.clock().now()).min(LONGEST_WAIT)
}

/// Returns the model's id: the requested one, else the only one.
pub(super) fn model_asked_for(fleet: &Fleet, named: Option<String>) -> Result<Arc<str>, ApiError> {
    named
        .map(Arc::from)
        .or_else(|| fleet.only_model())
        .ok_or_else(|| {
            let message =
                "model is missing and there is not exactly one: name a model that /v1/models lists";
            ApiError::new(ErrorCode::InvalidRequest, message).param("model")
        })
}

/// The workers that a forwarded request may go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardRules {
    pub(super) api_support: ApiSupport,
    pub(super) pin: Option<Pin>,
    /// Whether a worker may get it a second time.
    pub(super) may_repeat: bool,
}

impl GenerationStages {
    /// Returns the worker that the request's header names.
    pub(super) fn named_worker(&self, call: &AcceptedRequest) -> Result<Option<Pin>, ApiError> {
        let snapshot = self.delivery.queue.fleet.snapshot();
        let named = call.overrides.worker.as_deref();
        decide::pin(&snapshot, named, "x-warmroute-worker")
    }

    /// Forwards the request to any worker of the model, or to the one that its header names.
    pub(super) async fn forward(
        &self,
        call: AcceptedRequest,
        model: Arc<ModelView>,
        api_support: ApiSupport,
        guard: Box<RequestGuard>,
    ) -> Response<ReplyBody> {
        let pin = match self.named_worker(&call) {
            Ok(pin) => pin,
            Err(error) => return refused(guard, &error),
        };
        let rules = ForwardRules {
            api_support,
            pin,
            may_repeat: true,
        };
        self.forward_by(call, model, rules, guard).await
    }

    /// Forwards the request to a worker: no prompt is computed there, so no load is counted and no
    /// cache content expected.
    pub(super) async fn forward_by(
        &self,
        call: AcceptedRequest,
        model: Arc<ModelView>,
        rules: ForwardRules,
        mut guard: Box<RequestGuard>,
    ) -> Response<ReplyBody> {
        let ForwardRules {
            api_support,
            pin,
            may_repeat,
        } = rules;
        let prompt = TokenizedPrompt::without_blocks(0);
        let view = dialect::RequestView {
            model: (&*model.id).into(),
            ..dialect::RequestView::default()
        };
        guard.set_request_facts(RequestFacts::of(
            &view,
            &model,
            call.overrides.priority,
            &prompt,
        ));
        if let Err(error) = api_support.check(&model) {
            return refused(guard, &error);
        }
        let facts = ForwardedFacts {
            prompt,
            pin,
            handover: Handover::NoPrompt,
            api_support,
            keeps_state: !may_repeat,
        };
        let deadline = call.received + self.request_timeout();
        // The request is too small to be queued for.
        let wait = WaitRecord::new(0, deadline).of_tenant(call.tenant.as_ref());
        let request = RoutedRequest::forwarded(call, model, wait, facts);
        Box::pin(self.delivery.run(request, guard)).await
    }
}

#[derive(Serialize)]
struct TokenizeReply<'a> {
    count: usize,
    max_model_len: Option<u32>,
    tokens: &'a [u32],
    token_strs: Option<Vec<String>>,
}

#[derive(Serialize)]
struct DetokenizeReply {
    prompt: String,
}

fn tokens(body: &[u8], subject: &TokenizeSubject) -> Result<Vec<u8>, NoLocalAnswer> {
    let TokenizeView {
        prompt,
        rendering,
        return_token_strs,
        ..
    } = dialect::tokenize_view(body).map_err(wrong)?;
    let Some(rendered) = text_of(&subject.tokenizer, &prompt, &rendering, subject.clock) else {
        return Err(NoLocalAnswer::Elsewhere(
            "the prompt is neither a text nor a chat".to_owned(),
        ));
    };
    let (text, special) = rendered?;
    let (tokens, _) = subject
        .tokenizer
        .text_tokens_counted(subject.group, &text, special)?;
    let spelled = || {
        subject
            .tokenizer
            .token_strings(&tokens)
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect()
    };
    Ok(json(&TokenizeReply {
        count: tokens.len(),
        max_model_len: subject.max_model_len,
        tokens: &tokens,
        token_strs: return_token_strs.then(spelled),
    }))
}

fn text(body: &[u8], subject: &TokenizeSubject) -> Result<Vec<u8>, NoLocalAnswer> {
    let view = dialect::detokenize_view(body).map_err(wrong)?;
    Ok(json(&DetokenizeReply {
        prompt: subject.tokenizer.decode(&view.tokens)?,
    }))
}

fn wrong(error: dialect::ViewError) -> NoLocalAnswer {
    NoLocalAnswer::Refused(error.into())
}

fn json(reply: &impl Serialize) -> Vec<u8> {
    // The router's own types have string keys and no floats outside JSON.
    serde_json::to_vec(reply).unwrap_or_default()
}
