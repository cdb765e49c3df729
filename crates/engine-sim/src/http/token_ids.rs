//! `/inference/v1/generate`: token ids in, token ids out.

use bytes::Bytes;
use kv_blocks::PromptMedia;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{config::UsageDetails, generation::RenderedToken};

use super::{
    SimApiError,
    media::Features,
    reply::{FinishedGeneration, ReplyFormat, RunningChoice, Usage, data},
    request::{self, GenerationBody, Prompts, StreamOptions},
    shape::reasons,
    transfer::TransferParams,
};

#[derive(Deserialize)]
struct TokenIdsBody {
    token_ids: Vec<u32>,
    sampling_params: SamplingParams,
    request_id: Option<String>,
    model: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<String>,
    priority: Option<i64>,
    kv_transfer_params: Option<TransferParams>,
    features: Option<Features>,
}

/// The sampling parameters that decide the length and number of replies.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SamplingParams {
    max_tokens: Option<u32>,
    n: Option<u32>,
    ignore_eos: Option<bool>,
    stop: Option<Value>,
}

/// Reads a request, as the equivalent completion and the id that the client gave.
pub(crate) fn read(bytes: &[u8]) -> Result<(GenerationBody, Option<String>), SimApiError> {
    let body: TokenIdsBody = request::parse(bytes)?;
    let sampling = body.sampling_params;
    let media = match body.features {
        Some(features) => features.media(body.token_ids.len())?,
        None => PromptMedia::default(),
    };
    let completion = GenerationBody {
        model: body.model,
        prompt: Some(Prompts::Ids(body.token_ids)),
        max_tokens: sampling.max_tokens,
        n: sampling.n,
        ignore_eos: sampling.ignore_eos,
        stop: sampling.stop,
        stream: body.stream,
        stream_options: body.stream_options,
        cache_salt: body.cache_salt,
        priority: body.priority,
        kv_transfer_params: body.kv_transfer_params,
        media,
        ..GenerationBody::default()
    };
    Ok((completion, body.request_id))
}

/// A reply of token ids.
#[derive(Debug)]
pub(crate) struct TokenIdsReply {
    id: String,
    include_usage: bool,
    details: UsageDetails,
}

impl TokenIdsReply {
    pub(crate) fn new(id: String, body: &GenerationBody, details: UsageDetails) -> Self {
        let options = body.stream_options.as_ref();
        Self {
            id,
            include_usage: options
                .and_then(|options| options.include_usage)
                .unwrap_or(false),
            details,
        }
    }
}

impl ReplyFormat for TokenIdsReply {
    fn whole(&mut self, finished: &[FinishedGeneration]) -> Value {
        let choice = |(index, one): (usize, &FinishedGeneration)| {
            json!({
                "index": index, "logprobs": null, "finish_reason": reasons(&one.ending).0,
                "token_ids": one.tokens, "routed_experts": null,
            })
        };
        json!({
            "request_id": self.id,
            "choices": finished.iter().enumerate().map(choice).collect::<Vec<_>>(),
            "usage": Usage::of(finished).value(self.details),
            "prompt_logprobs": null,
            "kv_transfer_params": null,
        })
    }

    fn token(&mut self, line: &RunningChoice, rendered: &RenderedToken) -> Vec<Bytes> {
        let ending = rendered.ending.as_ref().map(|ending| reasons(ending).0);
        let choice = json!({
            "index": line.index, "logprobs": null, "finish_reason": ending,
            "token_ids": [rendered.token],
        });
        vec![data(
            &json!({"request_id": self.id, "choices": [choice], "usage": null}),
        )]
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        if !self.include_usage {
            return Vec::new();
        }
        let usage = usage.value(self.details);
        vec![data(
            &json!({"request_id": self.id, "choices": [], "usage": usage}),
        )]
    }

    fn last(&mut self) -> Bytes {
        Bytes::from_static(b"data: [DONE]\n\n")
    }

    fn broken(&mut self, error: &SimApiError) -> Vec<Bytes> {
        vec![data(&error.value()), self.last()]
    }
}
