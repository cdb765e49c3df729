//! Generation requests: chats, completions, responses and messages.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use engine_model::Scheduling;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;

use crate::{
    fault::InjectedFault,
    generation::EngineRestarted,
    server_state::{RequestCounts, ServerState},
};

use super::{
    ConnectionCut, SimApiError, SimBody, body,
    chat_api::ChatApi,
    chat_batch, lines,
    logprobs::Logprobs,
    messages::{self, MessageReply},
    reply::{FinishedGeneration, ReplyFormat, RunningChoice},
    request::{self, GenerationBody},
    responses::{self, ResponseHead, ResponseReply},
    sglang::{self, SglangReply},
    shape::{KvOffer, ReplyShape},
    stream::{BrokenEnd, SseReply, broken_body},
    token_ids::{self, TokenIdsReply},
    transfer::Transfer,
};

/// Answers one generation request, subject to injected faults.
pub(crate) async fn answer(
    state: Arc<ServerState>,
    dialect: ChatApi,
    request: Request<Incoming>,
) -> Result<Response<SimBody>, ConnectionCut> {
    RequestCounts::add(&state.counts.requests);
    let headers = request.headers().clone();
    // A request that will be cut is also read first: its client should be waiting for an answer.
    let body = match request::read(request).await {
        Ok(body) => body,
        Err(error) => return Ok(error.into_response_in(dialect)),
    };
    let fault = state.fault.take();
    match fault {
        Some(InjectedFault::Status(status)) => {
            return Ok(SimApiError::of_status(status).into_response_in(dialect));
        }
        Some(InjectedFault::Hang) => std::future::pending().await,
        Some(InjectedFault::Reset) => return Err(ConnectionCut),
        _ => {}
    }
    match begin(&state, dialect, &headers, body).await {
        Ok(begun) => reply(begun, fault, dialect).await,
        Err(error) => Ok(error.into_response_in(dialect)),
    }
}

/// Submitted generations and the form of their reply.
struct StartedGenerations {
    reply: Box<dyn ReplyFormat>,
    stream: bool,
    lines: Vec<RunningChoice>,
}

/// The API's data beyond the chat that a request is converted to.
enum ApiContext {
    OpenAi,
    Response(Box<responses::ResponseContext>),
    Message,
    /// The id that the client gave, if any.
    TokenIds(Option<String>),
    Sglang(sglang::SglangContext),
}

/// What a request says beside its body, checked.
pub(super) struct GenerationHead<'a> {
    pub(super) dialect: ChatApi,
    pub(super) headers: &'a HeaderMap,
    pub(super) model: String,
    pub(super) transfer: Transfer,
}

async fn begin(
    state: &Arc<ServerState>,
    dialect: ChatApi,
    headers: &HeaderMap,
    bytes: Bytes,
) -> Result<StartedGenerations, SimApiError> {
    let (body, frame) = read(state, dialect, &bytes)?;
    let model = known_model(state, body.model.as_deref())?;
    check(state, &body)?;
    let role = state.config.role;
    let transfer = match &body.disaggregated_params {
        Some(params) => params.transfer(role)?,
        None => {
            let params = body.kv_transfer_params.clone().unwrap_or_default();
            params.transfer(role)?
        }
    };
    let head = GenerationHead {
        dialect,
        headers,
        model,
        transfer,
    };
    let reply = reply_of(state, &head, &body, frame)?;
    let stream = body.stream.unwrap_or(false);
    let lines = lines::start(state, &head, body).await?;
    Ok(StartedGenerations {
        reply,
        stream,
        lines,
    })
}

/// Reads a body in the form of its API.
fn read(
    state: &ServerState,
    dialect: ChatApi,
    bytes: &[u8],
) -> Result<(GenerationBody, ApiContext), SimApiError> {
    Ok(match dialect {
        ChatApi::Responses => {
            let (body, frame) = responses::read(state, bytes)?;
            (body, ApiContext::Response(Box::new(frame)))
        }
        ChatApi::Messages => (
            messages::read(bytes, messages::LengthRequirement::Needed)?,
            ApiContext::Message,
        ),
        ChatApi::Chat | ChatApi::Completions => {
            (request::parse::<GenerationBody>(bytes)?, ApiContext::OpenAi)
        }
        ChatApi::ChatBatch => (chat_batch::read(bytes)?, ApiContext::OpenAi),
        ChatApi::TokenIds => {
            let (body, id) = token_ids::read(bytes)?;
            (body, ApiContext::TokenIds(id))
        }
        ChatApi::SglangGenerate => {
            let (body, frame) = sglang::read(bytes)?;
            (body, ApiContext::Sglang(frame))
        }
    })
}

/// Checks the fields that all APIs share.
fn check(state: &ServerState, body: &GenerationBody) -> Result<(), SimApiError> {
    if body.cache_salt.as_deref() == Some("") {
        return Err(SimApiError::bad_request(
            "Parameter 'cache_salt' must be a non-empty string if provided.",
            "cache_salt",
        ));
    }
    let priority = body.priority.unwrap_or(0);
    if priority != 0 && state.config.batch.scheduling == Scheduling::Arrival {
        return Err(SimApiError::bad_request(
            format!("Got priority {priority}, but this engine does not schedule by priority."),
            "priority",
        ));
    }
    Ok(())
}

fn reply_of(
    state: &Arc<ServerState>,
    head: &GenerationHead<'_>,
    body: &GenerationBody,
    frame: ApiContext,
) -> Result<Box<dyn ReplyFormat>, SimApiError> {
    let GenerationHead {
        dialect,
        headers,
        transfer,
        ..
    } = *head;
    let (state, model) = (Arc::clone(state), head.model.clone());
    let created = state.clock.unix_s();
    Ok(match frame {
        ApiContext::Response(frame) => Box::new(ResponseReply::new(
            Arc::clone(&state),
            ResponseHead {
                id: bare_id(&state, headers),
                created,
                model,
            },
            *frame,
        )),
        ApiContext::Message => Box::new(MessageReply::new(
            Arc::clone(&state),
            bare_id(&state, headers),
            model,
        )),
        ApiContext::TokenIds(id) => Box::new(TokenIdsReply::new(
            given_id(headers)
                .or(id)
                .unwrap_or_else(|| bare_id(&state, headers)),
            body,
            state.config.api.usage_details,
        )),
        ApiContext::Sglang(frame) => {
            let id = frame.rid.clone();
            let id = id.unwrap_or_else(|| bare_id(&state, headers));
            Box::new(SglangReply::new(id, frame))
        }
        ApiContext::OpenAi => {
            let kind = if dialect == ChatApi::Completions {
                "cmpl"
            } else {
                "chatcmpl"
            };
            Box::new(ReplyShape {
                offers: (transfer == Transfer::Leaves && body.disaggregated_params.is_none())
                    .then(|| kv_offer(&state)),
                context_id: (transfer == Transfer::Leaves && body.disaggregated_params.is_some())
                    .then(|| state.counts.next_id()),
                dialect,
                id: reply_id(&state, kind, headers),
                created,
                model,
                return_token_ids: body.return_token_ids.unwrap_or(false)
                    && state.config.api.token_ids,
                include_usage: body
                    .stream_options
                    .as_ref()
                    .and_then(|options| options.include_usage)
                    .unwrap_or(false),
                logprobs: Logprobs::of(body, dialect)?,
                progress: HashMap::new(),
                state,
            })
        }
    })
}

fn kv_offer(state: &ServerState) -> KvOffer {
    KvOffer {
        engine_id: format!("sim-{:x}-{:x}", state.config.seed, state.started_unix_s),
        block_tokens: state.config.cache.block_size.tokens(),
    }
}

async fn reply(
    begun: StartedGenerations,
    fault: Option<InjectedFault>,
    dialect: ChatApi,
) -> Result<Response<SimBody>, ConnectionCut> {
    let StartedGenerations {
        mut reply,
        stream,
        lines,
    } = begun;
    if stream {
        let events = SseReply::new(reply, lines, fault);
        return Ok(body::chunks(
            "text/event-stream; charset=utf-8",
            events.chunks(),
        ));
    }
    let mut finished = Vec::new();
    for line in lines {
        match finish(line).await {
            Ok(one) => finished.push(one),
            Err(EngineRestarted) => return Err(ConnectionCut),
        }
    }
    let whole = Bytes::from(reply.whole(&finished).to_string());
    let (bytes, end) = match fault {
        Some(InjectedFault::ErrorMid(_)) => {
            return Ok(SimApiError::of_status(500).into_response_in(dialect));
        }
        Some(InjectedFault::ResetMid(bytes)) => (bytes, BrokenEnd::Cut),
        Some(InjectedFault::StallMid(bytes)) => (bytes, BrokenEnd::Stall),
        Some(InjectedFault::ShortBody) => (whole.len() / 2, BrokenEnd::Cut),
        _ => return Ok(body::bytes(StatusCode::OK, "application/json", whole)),
    };
    let length = HeaderValue::from(whole.len());
    let mut response = body::chunks("application/json", broken_body(whole, bytes, end));
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, length);
    Ok(response)
}

async fn finish(mut line: RunningChoice) -> Result<FinishedGeneration, EngineRestarted> {
    let mut finished = FinishedGeneration::new(&line);
    loop {
        let rendered = line.generation.next().await?;
        finished.record(&line, &rendered);
        if rendered.ending.is_some() {
            return Ok(finished);
        }
    }
}

/// Returns the model of a request.
pub(crate) fn known_model(state: &ServerState, model: Option<&str>) -> Result<String, SimApiError> {
    let model = model.unwrap_or(&state.config.model);
    if state.adapter(model).is_some() {
        return Ok(model.to_owned());
    }
    let known: Vec<_> = std::iter::once(state.config.model.as_str())
        .chain(state.config.loras.iter().map(AsRef::as_ref))
        .collect();
    Err(SimApiError::unknown_model(model, &known.join(", ")))
}

/// Returns the reply's id: a prefix and the client's `x-request-id`, or a generated id.
pub(crate) fn reply_id(state: &ServerState, kind: &str, headers: &HeaderMap) -> String {
    format!("{kind}-{}", bare_id(state, headers))
}

/// Returns the client's `x-request-id`.
fn given_id(headers: &HeaderMap) -> Option<String> {
    let given = headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let given = given.filter(|id| {
        (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
    });
    given.map(str::to_owned)
}

pub(crate) fn bare_id(state: &ServerState, headers: &HeaderMap) -> String {
    given_id(headers).unwrap_or_else(|| {
        format!(
            "{:08x}{:08x}",
            state.started_unix_s & 0xffff_ffff,
            state.counts.next_id()
        )
    })
}
