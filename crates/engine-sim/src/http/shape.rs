//! Replies of chat and completion requests, whole and in chunks.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    config::UsageDetails,
    generation::RenderedToken,
    script::{Channel, StopCause},
    server_state::ServerState,
};

use super::{
    SimApiError,
    chat_api::ChatApi,
    disaggregated,
    logprobs::Logprobs,
    reply::{FinishedGeneration, ReplyFormat, RunningChoice, Usage, data},
    transfer,
};

const FINGERPRINT: &str = "vllm-0.32.0-sim";

/// The common data of all parts of one chat or completion reply.
#[derive(Debug)]
pub(crate) struct ReplyShape {
    pub(crate) state: Arc<ServerState>,
    pub(crate) dialect: ChatApi,
    pub(crate) id: String,
    pub(crate) created: i64,
    pub(crate) model: String,
    pub(crate) return_token_ids: bool,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: Option<Logprobs>,
    /// The prompt's KV that another engine will fetch.
    pub(crate) offers: Option<KvOffer>,
    /// The number of a context request, whose prompt another engine continues.
    pub(crate) context_id: Option<u64>,
    /// Choices whose stream has begun, by index.
    pub(crate) progress: HashMap<usize, ChoiceProgress>,
}

/// The engine's identity in its offer of a prompt's KV.
#[derive(Clone, Debug)]
pub(crate) struct KvOffer {
    pub(crate) engine_id: String,
    pub(crate) block_tokens: u32,
}

/// The progress of one choice's stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChoiceProgress {
    calls: usize,
    text_bytes: usize,
}

/// Returns OpenAI's finish reason and vLLM's stop reason.
pub(crate) fn reasons(ending: &StopCause) -> (&'static str, Value) {
    match ending {
        StopCause::Stop => ("stop", Value::Null),
        StopCause::StopString(stop) => ("stop", json!(stop)),
        StopCause::Length => ("length", Value::Null),
        StopCause::ToolCalls => ("tool_calls", Value::Null),
    }
}

/// Returns the id of a call in the form of chats.
fn call_id(id: &str) -> String {
    format!("chatcmpl-tool-{id}")
}

impl ReplyShape {
    /// Returns when the usage reports cached tokens: never in that of a batch.
    fn usage_details(&self) -> UsageDetails {
        match self.dialect {
            ChatApi::ChatBatch => UsageDetails::Never,
            _ => self.state.config.api.usage_details,
        }
    }

    fn choice(&self, index: usize, one: &FinishedGeneration) -> Value {
        let mut choice = json!({"index": index});
        match self.dialect {
            ChatApi::Completions => choice["text"] = json!(one.content),
            _ => choice["message"] = message(one),
        }
        choice["logprobs"] = match &self.logprobs {
            None => Value::Null,
            Some(logprobs) if self.dialect == ChatApi::Completions => {
                logprobs.completion(&self.state.tokenizer, &one.tokens, 0)
            }
            Some(logprobs) => logprobs.chat(&self.state.tokenizer, &one.tokens),
        };
        let (finish_reason, stop_reason) = reasons(&one.ending);
        choice["finish_reason"] = json!(finish_reason);
        choice["stop_reason"] = stop_reason;
        choice["token_ids"] = if self.return_token_ids {
            json!(one.tokens)
        } else {
            Value::Null
        };
        if self.dialect == ChatApi::Completions {
            choice["prompt_logprobs"] = Value::Null;
            choice["prompt_token_ids"] = if self.return_token_ids {
                json!(one.prompt)
            } else {
                Value::Null
            };
        }
        choice["routed_experts"] = Value::Null;
        choice
    }

    /// Returns the first chunk of a chat's choice, sent with its first token.
    fn role_chunk(&self, line: &RunningChoice) -> Value {
        let mut chunk = self.chunk(json!([{
            "index": line.index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null,
        }]));
        chunk["prompt_token_ids"] = if self.return_token_ids {
            json!(line.generation.prompt)
        } else {
            Value::Null
        };
        chunk["prompt_text"] = Value::Null;
        chunk
    }

    /// Returns the chunk of one token; `first` of its choice.
    fn token_chunk(
        &self,
        line: &RunningChoice,
        rendered: &RenderedToken,
        first: bool,
        begun: ChoiceProgress,
    ) -> Value {
        let mut choice = json!({"index": line.index});
        match self.dialect {
            ChatApi::Completions => choice["text"] = json!(rendered.text.text),
            _ => choice["delta"] = delta(rendered),
        }
        choice["logprobs"] = match &self.logprobs {
            None => Value::Null,
            Some(logprobs) if self.dialect == ChatApi::Completions => {
                logprobs.completion(&self.state.tokenizer, &[rendered.token], begun.text_bytes)
            }
            Some(logprobs) => logprobs.chat(&self.state.tokenizer, &[rendered.token]),
        };
        let ending = rendered.ending.as_ref().map(reasons);
        choice["finish_reason"] = json!(ending.as_ref().map(|(reason, _)| reason));
        if ending.is_some() || self.dialect == ChatApi::Completions {
            choice["stop_reason"] = ending.map_or(Value::Null, |(_, stop_reason)| stop_reason);
        }
        if self.dialect == ChatApi::Completions {
            let reports_prompt = first && self.return_token_ids;
            choice["prompt_token_ids"] = if reports_prompt {
                json!(line.generation.prompt)
            } else {
                Value::Null
            };
        }
        choice["token_ids"] = if self.return_token_ids {
            json!([rendered.token])
        } else {
            Value::Null
        };
        self.chunk(json!([choice]))
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "the choices become part of the chunk"
    )]
    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": if self.dialect == ChatApi::Completions { "text_completion" } else { "chat.completion.chunk" },
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

fn message(one: &FinishedGeneration) -> Value {
    // An empty content is `null` beside reasoning or a call.
    let without_text = one.content.is_empty() && (one.reasoning.is_some() || !one.calls.is_empty());
    let mut message = json!({
        "role": "assistant",
        "content": if without_text { Value::Null } else { json!(one.content) },
        "refusal": null, "annotations": null, "audio": null, "function_call": null,
        "reasoning": one.reasoning,
    });
    if let Some(reasoning) = &one.reasoning {
        // Older clients use this name.
        message["reasoning_content"] = json!(reasoning);
    }
    if !one.calls.is_empty() {
        let calls = one.calls.iter().map(|(call, arguments)| {
            let function = json!({"name": call.name, "arguments": arguments});
            json!({"id": call_id(&call.id), "type": "function", "function": function})
        });
        message["tool_calls"] = calls.collect();
    }
    message
}

fn delta(rendered: &RenderedToken) -> Value {
    let text = &rendered.text.text;
    match rendered.text.channel {
        Channel::Hidden => json!({}),
        Channel::Content => json!({"content": text}),
        Channel::Reasoning => json!({"reasoning": text, "reasoning_content": text}),
        Channel::Call(index) => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        }
    }
}

impl ReplyFormat for ReplyShape {
    fn whole(&mut self, finished: &[FinishedGeneration]) -> Value {
        let choices: Vec<_> = finished
            .iter()
            .enumerate()
            .map(|(index, one)| self.choice(index, one))
            .collect();
        let mut reply = json!({
            "id": self.id,
            "object": if self.dialect == ChatApi::Completions { "text_completion" } else { "chat.completion" },
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "service_tier": null,
            "system_fingerprint": FINGERPRINT,
            "usage": Usage::of(finished).value(self.usage_details()),
        });
        if self.dialect == ChatApi::Chat {
            reply["prompt_logprobs"] = Value::Null;
            reply["prompt_token_ids"] = match finished.first() {
                Some(one) if self.return_token_ids => json!(one.prompt),
                _ => Value::Null,
            };
            reply["prompt_text"] = Value::Null;
        }
        reply["kv_transfer_params"] = match (finished, &self.offers) {
            ([one], Some(offer)) => {
                transfer::offered(&one.prompt, offer.block_tokens, &offer.engine_id)
            }
            _ => Value::Null,
        };
        if let ([one], Some(id)) = (finished, self.context_id) {
            reply["prompt_token_ids"] = json!(one.prompt);
            reply["choices"][0]["disaggregated_params"] =
                disaggregated::offered(&one.prompt, &one.tokens, id);
        }
        reply["ec_transfer_params"] = Value::Null;
        reply["metrics"] = Value::Null;
        reply
    }

    fn token(&mut self, line: &RunningChoice, rendered: &RenderedToken) -> Vec<Bytes> {
        let mut events = Vec::new();
        let first = !self.progress.contains_key(&line.index);
        let mut begun = self.progress.get(&line.index).copied().unwrap_or_default();
        if first && self.dialect == ChatApi::Chat {
            events.push(data(&self.role_chunk(line)));
        }
        if let Channel::Call(index) = rendered.text.channel
            && index >= begun.calls
            && let Some(call) = line.generation.call(index)
        {
            begun.calls = index + 1;
            let call = json!({
                "index": index, "id": call_id(&call.id), "type": "function",
                "function": {"name": call.name, "arguments": ""},
            });
            events.push(data(&self.chunk(json!([{
                "index": line.index, "delta": {"tool_calls": [call]}, "logprobs": null, "finish_reason": null,
            }]))));
        }
        // A hidden token is worth a chunk only to clients that count tokens.
        let shown = rendered.text.channel != Channel::Hidden
            || self.return_token_ids
            || self.logprobs.is_some();
        if shown || rendered.ending.is_some() {
            events.push(data(&self.token_chunk(line, rendered, first, begun)));
        }
        begun.text_bytes += rendered.text.text.len();
        self.progress.insert(line.index, begun);
        events
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage.value(self.state.config.api.usage_details);
        chunk["system_fingerprint"] = json!(FINGERPRINT);
        vec![data(&chunk)]
    }

    fn last(&mut self) -> Bytes {
        Bytes::from_static(b"data: [DONE]\n\n")
    }

    fn broken(&mut self, error: &SimApiError) -> Vec<Bytes> {
        vec![data(&error.value()), self.last()]
    }
}
