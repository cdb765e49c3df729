//! `POST /v1/responses/input_tokens`: the token count of a response's prompt.
//!
//! The router counts where it has the model's tokenizer and knows the chat that the engine makes of
//! the request. Otherwise a worker of the model gets the request: the one that holds the response
//! that it continues, else any.

use std::sync::Arc;

use bytes::Bytes;
use dialect::{ApiError, Dialect, Fidelity};
use fleet::ModelView;
use http::Response;
use prompt::PromptModel;
use routing::Pin;

use super::{
    accept::AcceptedRequest,
    count_tokens,
    record::RequestGuard,
    reply::{self, refused},
    reply_body::ReplyBody,
    tokenize_api::{self, ForwardRules},
    translate::{ApiSupport, RequestTranslator},
};
use crate::{Gateway, errors};

/// The prompt to count, and where it can be counted.
struct CountSubject {
    /// The chat that stands for the request.
    chat: Bytes,
    /// `None`: no worker has listed the model.
    model: Option<Arc<ModelView>>,
    /// The tokenizer, if the router's count is the engine's.
    tokenizer: Option<Arc<PromptModel>>,
    /// The worker that holds the response that the request continues.
    pin: Option<Pin>,
}

/// Counts the tokens here, or forwards the request to a worker.
pub(super) async fn input_tokens(
    gateway: &Arc<Gateway>,
    mut call: AcceptedRequest,
    mut guard: Box<RequestGuard>,
) -> Response<ReplyBody> {
    let subject = match CountSubject::of(gateway, &mut call).await {
        Ok(subject) => subject,
        Err(error) => return refused(guard, &error),
    };
    if let Some(tokenizer) = subject.tokenizer
        && let Some(count) =
            count_tokens::count_locally(gateway, tokenizer, subject.chat, &call).await
    {
        guard.record_passthrough(200);
        let body = format!(r#"{{"object":"response.input_tokens","input_tokens":{count}}}"#);
        let mut response = reply::bytes(200, body.into_bytes(), guard.request_id());
        // The count is that of the body as a worker would get it.
        reply::add_rewrite_header(response.headers_mut(), guard.routing_notes().rewrites());
        return response;
    }
    let Some(model) = subject.model else {
        return refused(guard, &errors::no_worker());
    };
    let rules = ForwardRules {
        api_support: ApiSupport::Openai,
        pin: subject.pin,
        may_repeat: true,
    };
    let stages = &gateway.generation;
    stages.forward_by(call, model, rules, guard).await
}

impl CountSubject {
    async fn of(gateway: &Gateway, call: &mut AcceptedRequest) -> Result<Self, ApiError> {
        let stages = &gateway.generation;
        let mut translator =
            RequestTranslator::of(stages.translation(), Dialect::Responses, call).await?;
        let (dialect, chat) = translator.routing_body(call);
        let view = translator.request_view(dialect, &chat)?;
        let is_exact = view.fidelity == Fidelity::Exact;
        let id: Arc<str> = Arc::from(&*view.model);
        let (model, tokenizer) = tokenize_api::tokenizer_of(gateway, &id).await?;
        let snapshot = gateway.fleet().snapshot();
        let named = stages.named_worker(call)?;
        let home = translator.response_worker(&stages.responses, &snapshot, call)?;
        Ok(Self {
            model,
            tokenizer: tokenizer.filter(|_| is_exact),
            pin: named.or(home),
            chat,
        })
    }
}
