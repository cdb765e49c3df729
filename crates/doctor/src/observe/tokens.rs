//! Compares the engine's token ids with our own, for texts and chats in which tokenizers and
//! templates usually differ.

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use prompt::{ChatRequest, PromptError, PromptModel};
use serde_json::Value;

use super::{
    ProbeSession,
    engine_client::EngineClient,
    token_case::{EngineTokenization, TokenCase, TokenComparison},
    token_samples::{AS_REQUESTS, TEXTS, WITH_SPECIAL, chats},
    tokenize_probe::{AT_ONCE, TokenizeProbe},
};
use crate::ProbeMode;

/// Compares everything. Without our own tokenizer nothing is compared; the engine's route is still
/// probed.
pub(crate) async fn compare(
    engine: &EngineClient,
    session: ProbeSession<'_>,
    probe: ProbeMode,
) -> TokenComparison {
    let tokenizer = TokenizeProbe {
        engine,
        model: &session.worker_probe.base,
        budget: session.budget,
    };
    let has_route = match tokenizer.text(TEXTS[0].1, false).await {
        EngineTokenization::Ids(_) => Some(true),
        EngineTokenization::Refused => Some(false),
        EngineTokenization::Count(_) | EngineTokenization::Silent(_) => None,
    };
    let mut seen = TokenComparison {
        has_route,
        ..TokenComparison::default()
    };
    let Some(own) = session.worker_probe.artefacts.prompt.as_deref() else {
        return seen;
    };
    if has_route == Some(true) {
        seen.texts = tokenizer.texts(own, &TEXTS, false).await;
        seen.special = tokenizer.texts(own, &TEXTS[..WITH_SPECIAL], true).await;
    }
    let by_request = has_route == Some(false) && probe == ProbeMode::Send;
    let limit = match (has_route, by_request) {
        (Some(true), _) => usize::MAX,
        (_, true) => AS_REQUESTS,
        _ => 0,
    };
    let now_s = session.clock.unix_s();
    let cases: Vec<BoxFuture<'_, TokenCase>> = chats()
        .into_iter()
        .take(limit)
        .map(|chat| {
            let tokenizer = &tokenizer;
            async move {
                let engine_result = if by_request {
                    tokenizer.chat_by_request(&chat.body).await
                } else {
                    tokenizer.chat(&chat.body).await
                };
                let ours = own_chat(own, &chat.body, now_s).map_err(|error| error.to_string());
                TokenCase::of_chat(&chat, engine_result, ours, own)
            }
            .boxed()
        })
        .collect();
    seen.chats = stream::iter(cases).buffered(AT_ONCE).collect().await;
    seen
}

/// Returns our ids of a chat, a body of `/tokenize`.
pub(super) fn own_chat(
    own: &PromptModel,
    chat: &Value,
    now_s: i64,
) -> Result<Vec<u32>, PromptError> {
    let (messages, tools) = (
        chat["messages"].to_string(),
        chat.get("tools").map(Value::to_string),
    );
    let request = ChatRequest {
        messages: &messages,
        tools: tools.as_deref(),
        documents: None,
        chat_template: None,
        chat_template_kwargs: None,
        reasoning_effort: None,
        add_generation_prompt: chat
            .get("add_generation_prompt")
            .and_then(Value::as_bool)
            .unwrap_or(true),
        continue_final_message: false,
        add_special_tokens: false,
    };
    own.chat_tokens(&request, now_s)
        .map(|rendered| rendered.tokens)
}
