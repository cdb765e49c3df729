//! The generations of one request: submitted together, identified by their place in the reply.

use std::sync::Arc;

use http::HeaderMap;

use crate::{
    generation::{Generation, GenerationJob},
    script::{LengthLimit, OpenEnd, ReplyChoice, ReplyOptions, ReplyScript, Vocabulary, compose},
    server_state::ServerState,
};

use super::{
    SimApiError, chat_api::ChatApi, generate::GenerationHead, peer, prompts::prompts,
    reply::RunningChoice, reply_options, request::GenerationBody, transfer::Transfer,
};

/// Default number of generated tokens in the completions dialect.
const COMPLETION_TOKENS: u32 = 16;
/// Maximum number of choices in one request.
const MOST_CHOICES: u32 = 128;

/// Starts one generation for each choice of each prompt.
pub(crate) async fn start(
    state: &Arc<ServerState>,
    head: &GenerationHead<'_>,
    body: GenerationBody,
) -> Result<Vec<RunningChoice>, SimApiError> {
    let dialect = head.dialect;
    let choices = choice_count(&body)?;
    let options = Arc::new(reply_options::parse(&body, dialect)?);
    let params = body.kv_transfer_params.clone().unwrap_or_default();
    let disaggregated = body.disaggregated_params.clone();
    let max_tokens = body.max_completion_tokens.or(body.max_tokens);
    let open_end = open_end(dialect, &body);
    let salt: Option<Arc<str>> = body.cache_salt.as_deref().map(Arc::from);
    let priority = body.priority.unwrap_or(0);
    let lora = state.adapter(&head.model).flatten();
    let rank = requested_rank(head.headers)?;
    let transferred = head.transfer == Transfer::Arrives;
    let mut lines = Vec::new();
    for prompt in prompts(Arc::clone(state), dialect, body).await? {
        if transferred {
            match &disaggregated {
                Some(state) => state.check(&prompt.ids)?,
                None => params.check(&prompt.ids, state.config.cache.block_size.tokens())?,
            }
        }
        let cached = peer::CachedPrompt {
            ids: &prompt.ids,
            media: &prompt.media,
            lora: lora.as_ref(),
            salt: salt.as_ref(),
        };
        let fetch = peer::fetched(state, params.source(), cached).await;
        let available_tokens = state
            .config
            .max_model_len
            .saturating_sub(prompt.token_count());
        let max_tokens = match dialect {
            ChatApi::Completions => {
                max_tokens.or(Some(COMPLETION_TOKENS.min(available_tokens).max(1)))
            }
            _ => max_tokens,
        };
        let limit = LengthLimit {
            max_tokens,
            open_end,
            available_tokens,
        };
        for number in 0..choices {
            let choice = ReplyChoice {
                prompt: Arc::clone(&prompt.ids),
                number,
                limit,
            };
            let job = GenerationJob {
                max_tokens,
                script: script(state, &options, choice).await?,
                prompt: Arc::clone(&prompt.ids),
                media: prompt.media.clone(),
                open_end,
                lora: lora.clone(),
                salt: salt.clone(),
                rank,
                transferred,
                fetch,
                priority,
            };
            let generation = Generation::start(state, job)?;
            lines.push(RunningChoice {
                index: lines.len(),
                counts_prompt: number == 0,
                generation,
            });
        }
    }
    Ok(lines)
}

fn choice_count(body: &GenerationBody) -> Result<u32, SimApiError> {
    let choices = body.n.unwrap_or(1);
    if (1..=MOST_CHOICES).contains(&choices) {
        return Ok(choices);
    }
    Err(SimApiError::bad_request(
        format!("n is {choices}: expected 1 to {MOST_CHOICES}."),
        "n",
    ))
}

fn open_end(dialect: ChatApi, body: &GenerationBody) -> OpenEnd {
    match dialect {
        _ if body.ignore_eos.unwrap_or(false) => OpenEnd::Longest,
        ChatApi::Responses | ChatApi::Messages => OpenEnd::NaturalWithin,
        _ => OpenEnd::Natural,
    }
}

/// Returns the script of a reply that is more than the words of seed and prompt. Long replies take
/// a while, so this runs outside the runtime's threads.
async fn script(
    state: &Arc<ServerState>,
    options: &Arc<ReplyOptions>,
    choice: ReplyChoice,
) -> Result<Option<Arc<ReplyScript>>, SimApiError> {
    if options.is_plain() && choice.number == 0 {
        return Ok(None);
    }
    let (state, options) = (Arc::clone(state), Arc::clone(options));
    let composed = runtime::spawn_blocking(move || {
        let tokenizer = &state.tokenizer;
        let vocabulary = Vocabulary {
            model: &tokenizer.model,
            alphabet: &tokenizer.alphabet,
            seed: state.config.seed,
        };
        compose(&options, &vocabulary, &choice)
    });
    composed
        .await
        .map(|script| Some(Arc::new(script)))
        .map_err(|error| {
            tracing::error!(%error, "composing failed");
            SimApiError::of_status(500)
        })
}

fn requested_rank(headers: &HeaderMap) -> Result<Option<usize>, SimApiError> {
    let Some(value) = headers.get("x-data-parallel-rank") else {
        return Ok(None);
    };
    value
        .to_str()
        .ok()
        .and_then(|rank| rank.trim().parse().ok())
        .map(Some)
        .ok_or_else(|| {
            SimApiError::bad_request(
                "Header x-data-parallel-rank is not a rank: send a number from 0 up.",
                "data_parallel_rank",
            )
        })
}
