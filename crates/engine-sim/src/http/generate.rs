//! `/v1/chat/completions` and `/v1/completions`.

use std::sync::Arc;

use bytes::Bytes;
use engine_model::Scheduling;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use prompt::ChatRequest;

use crate::{
    detokenizer::Detokenizer,
    fault::Fault,
    generation::{EngineGone, Generation, Job, OpenEnd},
    server_state::{Counts, ServerState},
};

use super::{
    ApiError, Body, Cut, body,
    request::{self, GenerationBody, Prompts},
    shape::{Dialect, Finished, Offer, Shape},
    stream::{BrokenEnd, EventStream, broken_body},
    transfer::Transfer,
};

/// What the completions dialect generates when no limit is given.
const COMPLETION_TOKENS: u32 = 16;

/// Answers one generation request, unless a fault says otherwise.
pub(crate) async fn answer(
    state: Arc<ServerState>,
    dialect: Dialect,
    request: Request<Incoming>,
) -> Result<Response<Body>, Cut> {
    Counts::add(&state.counts.requests);
    let headers = request.headers().clone();
    // Also a request that is going to be cut is read first: its client should be waiting for an answer.
    let body = match request::read(request).await {
        Ok(body) => body,
        Err(error) => return Ok(error.into_response()),
    };
    let fault = state.fault.take();
    match fault {
        Some(Fault::Status(status)) => return Ok(ApiError::of_status(status).into_response()),
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Reset) => return Err(Cut),
        _ => {}
    }
    match begin(&state, dialect, &headers, body).await {
        Ok(begun) => reply(state, begun, fault).await,
        Err(error) => Ok(error.into_response()),
    }
}

/// Submitted generations and how to answer with them.
struct Begun {
    shape: Shape,
    stream: bool,
    generations: Vec<Generation>,
}

async fn begin(
    state: &Arc<ServerState>,
    dialect: Dialect,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Begun, ApiError> {
    let body: GenerationBody = request::parse(&body)?;
    let model = body.model.clone().unwrap_or_else(|| state.config.model.clone());
    let lora = state.adapter(&model).ok_or_else(|| {
        let known: Vec<_> =
            std::iter::once(state.config.model.as_str()).chain(state.config.loras.iter().map(AsRef::as_ref)).collect();
        ApiError::unknown_model(&model, &known.join(", "))
    })?;
    if body.n.is_some_and(|n| n != 1) {
        return Err(ApiError::bad_request("This simulated engine generates one choice only: set n to 1.", "n"));
    }
    if body.cache_salt.as_deref() == Some("") {
        return Err(ApiError::bad_request(
            "Parameter 'cache_salt' must be a non-empty string if provided.",
            "cache_salt",
        ));
    }
    let priority = body.priority.unwrap_or(0);
    if priority != 0 && state.config.scheduling == Scheduling::Arrival {
        return Err(ApiError::bad_request(
            format!("Got priority {priority}, but this engine does not schedule by priority."),
            "priority",
        ));
    }
    let params = body.kv_transfer_params.clone().unwrap_or_default();
    let transfer = params.transfer(state.config.role)?;
    let block_tokens = state.config.block_size.tokens();
    let offers = (transfer == Transfer::Leaves)
        .then(|| Offer { engine_id: format!("sim-{:x}-{:x}", state.config.seed, state.started_unix_s), block_tokens });
    let shape = Shape {
        offers,
        dialect,
        id: reply_id(state, dialect, headers),
        created: state.clock.unix_s(),
        model,
        return_token_ids: body.return_token_ids.unwrap_or(false) && state.config.token_ids,
        include_usage: body.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false),
        usage_details: state.config.usage_details,
    };
    let stream = body.stream.unwrap_or(false);
    let max_tokens = body.max_completion_tokens.or(body.max_tokens);
    let open_end = if body.ignore_eos.unwrap_or(false) { OpenEnd::Longest } else { OpenEnd::Natural };
    let salt: Option<Arc<str>> = body.cache_salt.as_deref().map(Arc::from);
    let rank = wanted_rank(headers)?;
    let prompts = prompts(Arc::clone(state), dialect, body).await?;
    if stream && prompts.len() > 1 {
        return Err(ApiError::bad_request("This simulated engine streams one prompt at a time: send one.", "prompt"));
    }
    let mut generations = Vec::new();
    for prompt in prompts {
        if transfer == Transfer::Arrives {
            params.check(&prompt, block_tokens)?;
        }
        let room = state.config.max_model_len.saturating_sub(u32::try_from(prompt.len()).unwrap_or(u32::MAX));
        let job = Job {
            max_tokens: match dialect {
                Dialect::Chat => max_tokens,
                Dialect::Completions => max_tokens.or(Some(COMPLETION_TOKENS.min(room).max(1))),
            },
            prompt,
            open_end,
            lora: lora.clone(),
            salt: salt.clone(),
            rank,
            transferred: transfer == Transfer::Arrives,
            priority,
        };
        generations.push(Generation::start(state, job)?);
    }
    Ok(Begun { shape, stream, generations })
}

async fn reply(state: Arc<ServerState>, begun: Begun, fault: Option<Fault>) -> Result<Response<Body>, Cut> {
    let Begun { shape, stream, mut generations } = begun;
    if stream {
        // `begin` saw to it that there is one.
        let Some(generation) = generations.pop() else { return Err(Cut) };
        let events = EventStream::new(state, shape, generation, fault);
        return Ok(body::chunks("text/event-stream; charset=utf-8", events.chunks()));
    }
    let mut finished = Vec::new();
    for generation in generations {
        match finish(&state, generation).await {
            Ok(one) => finished.push(one),
            Err(EngineGone) => return Err(Cut),
        }
    }
    let whole = Bytes::from(shape.whole(&finished).to_string());
    let (bytes, end) = match fault {
        Some(Fault::ErrorMid(_)) => return Ok(ApiError::of_status(500).into_response()),
        Some(Fault::ResetMid(bytes)) => (bytes, BrokenEnd::Cut),
        Some(Fault::StallMid(bytes)) => (bytes, BrokenEnd::Stall),
        Some(Fault::ShortBody) => (whole.len() / 2, BrokenEnd::Cut),
        _ => return Ok(body::bytes(StatusCode::OK, "application/json", whole)),
    };
    let length = HeaderValue::from(whole.len());
    let mut response = body::chunks("application/json", broken_body(whole, bytes, end));
    response.headers_mut().insert(header::CONTENT_LENGTH, length);
    Ok(response)
}

async fn finish(state: &ServerState, mut generation: Generation) -> Result<Finished, EngineGone> {
    let mut detokenizer = Detokenizer::default();
    let (mut text, mut tokens) = (String::new(), Vec::new());
    loop {
        let emitted = generation.next().await?;
        text.push_str(&detokenizer.push(&state.tokenizer.model, emitted.token));
        tokens.push(emitted.token);
        if let Some(finish) = emitted.finish {
            let prompt = Arc::clone(&generation.prompt);
            return Ok(Finished { text, tokens, prompt, finish, cached_tokens: emitted.cached_tokens });
        }
    }
}

/// Token ids of a request's prompts. Long texts take a while, so this leaves the runtime's threads alone.
pub(crate) async fn prompts(
    state: Arc<ServerState>,
    dialect: Dialect,
    body: GenerationBody,
) -> Result<Vec<Arc<[u32]>>, ApiError> {
    if let Some(ids) = &body.prompt_token_ids {
        return Ok(vec![ids.as_slice().into()]);
    }
    let tokenised = tokio::task::spawn_blocking(move || match dialect {
        Dialect::Chat => Ok(vec![chat_ids(&state, &body)?.into()]),
        Dialect::Completions => text_ids(&state, body),
    });
    tokenised.await.unwrap_or_else(|error| {
        tracing::error!(%error, "tokenising failed");
        Err(ApiError::of_status(500))
    })
}

fn chat_ids(state: &ServerState, body: &GenerationBody) -> Result<Vec<u32>, ApiError> {
    let messages =
        body.messages.as_ref().ok_or_else(|| ApiError::bad_request("messages: Field required", "messages"))?;
    if messages.get().trim_start_matches(['[', ' ', '\n', '\t', '\r']).starts_with(']') {
        return Err(ApiError::bad_request(
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
            None,
        ));
    }
    if body.chat_template.is_some() {
        return Err(ApiError::bad_request(
            "Chat template is passed with request, but this engine trusts its own only: leave chat_template out.",
            "chat_template",
        ));
    }
    let chat = ChatRequest {
        messages: messages.get(),
        tools: body.tools.as_ref().map(|tools| tools.get()),
        documents: body.documents.as_ref().map(|documents| documents.get()),
        chat_template: None,
        chat_template_kwargs: body.chat_template_kwargs.as_ref().map(|kwargs| kwargs.get()),
        reasoning_effort: body.reasoning_effort.as_ref().map(|effort| effort.get()),
        add_generation_prompt: body.add_generation_prompt.unwrap_or(true),
        continue_final_message: body.continue_final_message.unwrap_or(false),
        add_special_tokens: body.add_special_tokens.unwrap_or(false),
    };
    let rendered = state.tokenizer.model.chat_tokens(&chat, state.clock.unix_s());
    rendered.map(|rendered| rendered.tokens).map_err(|error| ApiError::bad_request(error.to_string(), "messages"))
}

fn text_ids(state: &ServerState, body: GenerationBody) -> Result<Vec<Arc<[u32]>>, ApiError> {
    let special = body.add_special_tokens.unwrap_or(true);
    let ids = |text: &str| -> Result<Arc<[u32]>, ApiError> {
        let ids = state.tokenizer.model.text_tokens(text, special);
        ids.map(Arc::from).map_err(|error| ApiError::bad_request(error.to_string(), "prompt"))
    };
    let prompts: Vec<Arc<[u32]>> = match body.prompt {
        None => return Err(ApiError::bad_request("prompt: Field required", "prompt")),
        Some(Prompts::Text(text)) => vec![ids(&text)?],
        Some(Prompts::Ids(ids)) => vec![ids.into()],
        Some(Prompts::Texts(texts)) => texts.iter().map(|text| ids(text)).collect::<Result<_, _>>()?,
        Some(Prompts::IdLists(lists)) => lists.into_iter().map(Arc::from).collect(),
    };
    if prompts.is_empty() {
        return Err(ApiError::bad_request("The prompt is empty: provide at least one.", "prompt"));
    }
    Ok(prompts)
}

/// The client's `x-request-id` becomes the reply's id.
fn reply_id(state: &ServerState, dialect: Dialect, headers: &HeaderMap) -> String {
    let given = headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let given = given.filter(|id| (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()));
    let id = given.map_or_else(
        || format!("{:08x}{:08x}", state.started_unix_s & 0xffff_ffff, state.counts.next_id()),
        str::to_owned,
    );
    match dialect {
        Dialect::Chat => format!("chatcmpl-{id}"),
        Dialect::Completions => format!("cmpl-{id}"),
    }
}

fn wanted_rank(headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
    let Some(value) = headers.get("x-data-parallel-rank") else { return Ok(None) };
    value.to_str().ok().and_then(|rank| rank.trim().parse().ok()).map(Some).ok_or_else(|| {
        ApiError::bad_request(
            "Header x-data-parallel-rank is not a rank: send a number from 0 up.",
            "data_parallel_rank",
        )
    })
}
