//! Tokenizes the prompts of a request.

use std::sync::Arc;

use prompt::{ChatRequest, PromptError, SaltGroup};
use serde_json::value::RawValue;

use crate::server_state::ServerState;

use super::{
    SimApiError,
    chat_api::ChatApi,
    chat_batch,
    media::{ChatWithoutMedia, SimPrompt},
    request::{GenerationBody, Prompts},
};

/// Returns the token ids of a request's prompts.
pub(crate) async fn ids(
    state: Arc<ServerState>,
    dialect: ChatApi,
    body: GenerationBody,
) -> Result<Vec<Arc<[u32]>>, SimApiError> {
    let prompts = prompts(state, dialect, body).await?;
    Ok(prompts.into_iter().map(|prompt| prompt.ids).collect())
}

/// Returns a request's prompts. Long texts take a while, so this runs outside the runtime's
/// threads.
pub(crate) async fn prompts(
    state: Arc<ServerState>,
    dialect: ChatApi,
    body: GenerationBody,
) -> Result<Vec<SimPrompt>, SimApiError> {
    if let Some(ids) = &body.prompt_token_ids {
        return Ok(vec![SimPrompt::of_text(ids.as_slice())]);
    }
    let tokenised = runtime::spawn_blocking(move || match dialect {
        dialect if dialect.has_plain_prompts() => plain_prompts(&state, body),
        ChatApi::ChatBatch => chat_batch::conversations(&body)?
            .iter()
            .map(|messages| chat_prompt(&state, &body, messages))
            .collect(),
        _ => {
            let messages = body
                .messages
                .as_ref()
                .ok_or_else(|| SimApiError::bad_request("messages: Field required", "messages"))?;
            Ok(vec![chat_prompt(&state, &body, messages)?])
        }
    });
    tokenised.await.unwrap_or_else(|error| {
        tracing::error!(%error, "tokenising failed");
        Err(SimApiError::of_status(500))
    })
}

fn chat_prompt(
    state: &ServerState,
    body: &GenerationBody,
    messages: &RawValue,
) -> Result<SimPrompt, SimApiError> {
    if messages
        .get()
        .trim_start_matches(['[', ' ', '\n', '\t', '\r'])
        .starts_with(']')
    {
        return Err(SimApiError::bad_request(
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
            None,
        ));
    }
    if body.chat_template.is_some() {
        return Err(SimApiError::bad_request(
            "Chat template is passed with request, but this engine trusts its own only: leave chat_template out.",
            "chat_template",
        ));
    }
    let without_media = ChatWithoutMedia::of(messages.get())?;
    let chat = ChatRequest {
        messages: &without_media.messages,
        tools: body.tools.as_ref().map(|tools| tools.get()),
        documents: body.documents.as_ref().map(|documents| documents.get()),
        chat_template: None,
        chat_template_kwargs: body
            .chat_template_kwargs
            .as_ref()
            .map(|kwargs| kwargs.get()),
        reasoning_effort: body.reasoning_effort.as_ref().map(|effort| effort.get()),
        add_generation_prompt: body.add_generation_prompt.unwrap_or(true),
        continue_final_message: body.continue_final_message.unwrap_or(false),
        add_special_tokens: body.add_special_tokens.unwrap_or(false),
    };
    let model = &state.tokenizer.model;
    let refused = |error: PromptError| SimApiError::bad_request(error.to_string(), "messages");
    let text = model
        .chat_text(&chat, state.clock.unix_s())
        .map_err(refused)?;
    let special = chat.add_special_tokens;
    without_media.prompt(&text, |piece, is_first| {
        let ids = model.text_tokens_counted(salt_group(body), piece, special && is_first);
        ids.map(|(ids, _)| ids).map_err(refused)
    })
}

/// What the tokenizer remembers of texts is kept apart by salts, as the blocks are: no time may tell
/// what was sent under another one.
fn salt_group(body: &GenerationBody) -> SaltGroup {
    SaltGroup::of(body.cache_salt.as_deref())
}

fn plain_prompts(state: &ServerState, body: GenerationBody) -> Result<Vec<SimPrompt>, SimApiError> {
    let special = body.add_special_tokens.unwrap_or(true);
    let group = salt_group(&body);
    let ids = |text: &str| -> Result<SimPrompt, SimApiError> {
        let ids = (state.tokenizer.model).text_tokens_counted(group, text, special);
        ids.map(|(ids, _)| SimPrompt::of_text(ids))
            .map_err(|error| SimApiError::bad_request(error.to_string(), "prompt"))
    };
    let prompts: Vec<SimPrompt> = match body.prompt {
        None => return Err(SimApiError::bad_request("prompt: Field required", "prompt")),
        Some(Prompts::Text(text)) => vec![ids(&text)?],
        Some(Prompts::Ids(ids)) => vec![SimPrompt {
            media: body.media,
            ..SimPrompt::of_text(ids)
        }],
        Some(Prompts::Texts(texts)) => texts
            .iter()
            .map(|text| ids(text))
            .collect::<Result<_, _>>()?,
        Some(Prompts::IdLists(lists)) => lists.into_iter().map(SimPrompt::of_text).collect(),
    };
    if prompts.is_empty() {
        return Err(SimApiError::bad_request(
            "The prompt is empty: provide at least one.",
            "prompt",
        ));
    }
    Ok(prompts)
}
