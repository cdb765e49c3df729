//! `POST /v1/messages/count_tokens`: the token count of a message's prompt.
//!
//! The router counts where it has the model's tokenizer, with or without workers. Otherwise it
//! forwards the request to a worker with a messages API; without one it gets the tokens of the
//! equivalent chat from an engine.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use dialect::{ApiError, Dialect, ErrorCode};
use fleet::ModelView;
use http::Response;
use kv_blocks::Moment;
use prompt::PromptModel;
use tokenization::{PromptInput, text_of};

use super::{
    accept::AcceptedRequest,
    record::RequestGuard,
    reply::{self, refused},
    reply_body::ReplyBody,
    tokenize_api,
    translate::{ApiSupport, RequestTranslator, VOLATILE_PREFIX},
};
use crate::Gateway;

/// Counts the tokens here, or forwards the request to a worker.
pub(super) async fn count_tokens(
    gateway: &Arc<Gateway>,
    mut call: AcceptedRequest,
    mut guard: Box<RequestGuard>,
) -> Response<ReplyBody> {
    let prepared = async {
        let mut translator = RequestTranslator::of(
            gateway.generation.translation(),
            Dialect::Messages,
            &mut call,
        )
        .await?;
        let (dialect, chat) = translator.routing_body(&call);
        if translator.shortened {
            guard.notes().record_rewrite(VOLATILE_PREFIX);
        }
        let id: Arc<str> = Arc::from(&*translator.request_view(dialect, &chat)?.model);
        let (model, own) = tokenize_api::tokenizer_of(gateway, &id).await?;
        Ok::<_, ApiError>((chat, model, own))
    };
    let (chat, model, own) = match prepared.await {
        Ok(found) => found,
        Err(error) => return refused(guard, &error),
    };
    let mut counted = None;
    if let Some(tokenizer) = own {
        counted = count_locally(gateway, tokenizer, chat.clone(), &call).await;
    }
    if let (None, Some(model)) = (counted, &model) {
        if model
            .candidates
            .iter()
            .any(|candidate| ApiSupport::Native.by(&candidate.worker))
        {
            let stages = &gateway.generation;
            let model = Arc::clone(model);
            return stages.forward(call, model, ApiSupport::Native, guard).await;
        }
        let deadline = call.received + gateway.generation.request_timeout();
        counted = count_at_engine(gateway, model, &chat, deadline).await;
    }
    match counted {
        Some(count) => {
            guard.record_passthrough(200);
            let body = format!(r#"{{"input_tokens":{count}}}"#).into_bytes();
            let mut response = reply::bytes(200, body, guard.request_id());
            // The count is that of the body as a worker would get it.
            reply::add_rewrite_header(response.headers_mut(), guard.routing_notes().rewrites());
            response
        }
        None => {
            let message = "the tokens of this request can be counted neither here nor by a worker: set a tokenizer for the \
                           model under models.entries, or use a worker that speaks messages itself";
            refused(guard, &ApiError::new(ErrorCode::UnknownRoute, message))
        }
    }
}

pub(super) async fn count_locally(
    gateway: &Gateway,
    tokenizer: Arc<PromptModel>,
    chat: Bytes,
    call: &AcceptedRequest,
) -> Option<usize> {
    let clock = gateway.clock();
    let limit = tokenize_api::max_wait(gateway, call.received);
    let group = call.salt_group();
    let own = Arc::clone(&tokenizer);
    let count = move || {
        let view = dialect::view(Dialect::Chat, &chat).ok()?;
        let (text, special) = text_of(&own, &view.prompt, &view.rendering, clock)?.ok()?;
        let text: Cow<'_, str> = text;
        own.text_tokens_counted(group, &text, special)
            .ok()
            .map(|(tokens, _)| tokens.len())
    };
    gateway
        .generation
        .tokenization
        .low_priority_pool()
        .compute(&tokenizer, limit, clock, count)
        .await
        .ok()
        .flatten()
}

async fn count_at_engine(
    gateway: &Gateway,
    model: &ModelView,
    chat: &Bytes,
    deadline: Moment,
) -> Option<usize> {
    let view = dialect::view(Dialect::Chat, chat).ok()?;
    let found = gateway
        .generation
        .tokenization
        .run_low_priority(
            &model.artefacts,
            PromptInput {
                dialect: Dialect::Chat,
                bytes: chat,
                view: &view,
                deadline,
            },
        )
        .await;
    found.source.is_exact().then_some(found.tokens as usize)
}
