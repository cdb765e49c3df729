//! SGLang's `/generate`: texts or token ids, one or a list.

use std::collections::HashMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{generation::RenderedToken, script::StopCause};

use super::{
    SimApiError,
    reply::{FinishedGeneration, ReplyFormat, RunningChoice, Usage, data},
    request::{self, GenerationBody, Prompts},
};

/// Default number of generated tokens.
const DEFAULT_TOKENS: u32 = 128;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SglangBody {
    text: Option<Prompts>,
    input_ids: Option<Prompts>,
    sampling_params: Option<SamplingParams>,
    stream: Option<bool>,
    rid: Option<String>,
    lora_path: Option<String>,
    cache_salt: Option<String>,
    extra_key: Option<String>,
}

/// The sampling parameters that decide the length and number of replies.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SamplingParams {
    max_new_tokens: Option<u32>,
    n: Option<u32>,
    ignore_eos: Option<bool>,
    stop: Option<Value>,
}

/// The parts of a request that its reply needs.
#[derive(Clone, Debug)]
pub(crate) struct SglangContext {
    /// The id that the client gave.
    pub(crate) rid: Option<String>,
    /// Whether the reply is one object and no list.
    is_single: bool,
}

/// Reads a request, as the equivalent completion.
pub(crate) fn read(bytes: &[u8]) -> Result<(GenerationBody, SglangContext), SimApiError> {
    let body: SglangBody = request::parse(bytes)?;
    let sampling = body.sampling_params.unwrap_or_default();
    let prompt = body.input_ids.or(body.text).ok_or_else(|| {
        SimApiError::bad_request(
            "Either text, input_ids or input_embeds should be provided.",
            None,
        )
    })?;
    let context = SglangContext {
        rid: body.rid,
        is_single: matches!(prompt, Prompts::Text(_) | Prompts::Ids(_))
            && sampling.n.unwrap_or(1) == 1,
    };
    let salt = [body.cache_salt, body.extra_key].into_iter().flatten();
    let salt: String = salt.collect();
    let completion = GenerationBody {
        model: body.lora_path,
        prompt: Some(prompt),
        max_tokens: Some(sampling.max_new_tokens.unwrap_or(DEFAULT_TOKENS)),
        n: sampling.n,
        ignore_eos: sampling.ignore_eos,
        stop: sampling.stop,
        stream: body.stream,
        cache_salt: Some(salt).filter(|salt| !salt.is_empty()),
        ..GenerationBody::default()
    };
    Ok((completion, context))
}

/// A reply of SGLang; each event of its streams repeats the text so far.
#[derive(Debug)]
pub(crate) struct SglangReply {
    id: String,
    is_single: bool,
    /// Text and tokens so far, by choice.
    progress: HashMap<usize, (String, Vec<u32>)>,
}

impl SglangReply {
    pub(crate) fn new(id: String, context: SglangContext) -> Self {
        Self {
            id,
            is_single: context.is_single,
            progress: HashMap::new(),
        }
    }

    /// Returns the id of one choice.
    fn id_of(&self, index: usize) -> String {
        if self.is_single {
            self.id.clone()
        } else {
            format!("{}_{index}", self.id)
        }
    }
}

/// The counts in `meta_info`.
#[derive(Clone, Copy, Debug)]
struct Counts {
    prompt: usize,
    completion: usize,
    cached: u32,
}

fn meta(id: &str, ending: Option<&StopCause>, counts: Counts) -> Value {
    let finish_reason = match ending {
        None => Value::Null,
        Some(StopCause::Length) => json!({"type": "length", "length": counts.completion}),
        Some(StopCause::StopString(stop)) => json!({"type": "stop", "matched": stop}),
        Some(StopCause::Stop | StopCause::ToolCalls) => json!({"type": "stop", "matched": 2}),
    };
    json!({
        "id": id,
        "finish_reason": finish_reason,
        "prompt_tokens": counts.prompt,
        "weight_version": "default",
        "total_retractions": 0,
        "completion_tokens": counts.completion,
        "cached_tokens": counts.cached,
    })
}

impl ReplyFormat for SglangReply {
    fn whole(&mut self, finished: &[FinishedGeneration]) -> Value {
        let reply = |(index, one): (usize, &FinishedGeneration)| {
            let counts = Counts {
                prompt: one.prompt.len(),
                completion: one.tokens.len(),
                cached: one.cached_tokens,
            };
            json!({
                "text": one.content,
                "output_ids": one.tokens,
                "meta_info": meta(&self.id_of(index), Some(&one.ending), counts),
            })
        };
        let mut replies: Vec<Value> = finished.iter().enumerate().map(reply).collect();
        if self.is_single {
            replies.pop().unwrap_or_default()
        } else {
            replies.into()
        }
    }

    fn token(&mut self, line: &RunningChoice, rendered: &RenderedToken) -> Vec<Bytes> {
        let (text, tokens) = self.progress.entry(line.index).or_default();
        text.push_str(&rendered.text.text);
        tokens.push(rendered.token);
        let counts = Counts {
            prompt: line.generation.prompt.len(),
            completion: tokens.len(),
            cached: rendered.cached_tokens,
        };
        let mut event = json!({"text": text, "output_ids": tokens});
        event["meta_info"] = meta(&self.id_of(line.index), rendered.ending.as_ref(), counts);
        if !self.is_single {
            event["index"] = json!(line.index);
        }
        vec![data(&event)]
    }

    fn end(&mut self, _usage: Usage) -> Vec<Bytes> {
        Vec::new()
    }

    fn last(&mut self) -> Bytes {
        Bytes::from_static(b"data: [DONE]\n\n")
    }

    fn broken(&mut self, error: &SimApiError) -> Vec<Bytes> {
        vec![data(&error.sglang()), self.last()]
    }
}
