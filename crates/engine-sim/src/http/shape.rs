//! Replies of chat and completion requests, whole and in chunks.

use engine_model::Finish;
use serde_json::{Value, json};

use super::transfer;
use crate::config::UsageDetails;

const FINGERPRINT: &str = "vllm-0.32.0-sim";

/// Which of the two dialects a reply is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// What all parts of one reply have in common.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) dialect: Dialect,
    pub(crate) id: String,
    pub(crate) created: i64,
    pub(crate) model: String,
    pub(crate) return_token_ids: bool,
    pub(crate) include_usage: bool,
    /// When usage says how much of the prompt was cached.
    pub(crate) usage_details: UsageDetails,
    /// Whose KV the prompt's is, where another engine is to fetch it.
    pub(crate) offers: Option<Offer>,
}

/// What an engine says of itself when it offers a prompt's KV.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) engine_id: String,
    pub(crate) block_tokens: u32,
}

/// One finished generation.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt: std::sync::Arc<[u32]>,
    pub(crate) finish: Finish,
    pub(crate) cached_tokens: u32,
}

/// Token counts of a reply.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
    pub(crate) cached: u64,
}

impl Usage {
    fn value(self, details: UsageDetails) -> Value {
        let details = match details {
            UsageDetails::Always => true,
            UsageDetails::OnHits => self.cached > 0,
            UsageDetails::Never => false,
        };
        json!({
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": if details { json!({"cached_tokens": self.cached}) } else { Value::Null },
            "completion_tokens_details": null,
        })
    }
}

/// OpenAI's word for why a generation ended.
fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

impl Shape {
    /// The reply of a request that is not streamed; several generations only for several prompts.
    pub(crate) fn whole(&self, generations: &[Finished]) -> Value {
        let mut usage = Usage::default();
        for one in generations {
            usage.prompt += one.prompt.len();
            usage.completion += one.tokens.len();
            usage.cached += u64::from(one.cached_tokens);
        }
        let choices: Vec<_> = generations.iter().enumerate().map(|(index, one)| self.choice(index, one)).collect();
        let mut reply = json!({
            "id": self.id,
            "object": match self.dialect {
                Dialect::Chat => "chat.completion",
                Dialect::Completions => "text_completion",
            },
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "service_tier": null,
            "system_fingerprint": FINGERPRINT,
            "usage": usage.value(self.usage_details),
        });
        if self.dialect == Dialect::Chat {
            reply["prompt_logprobs"] = Value::Null;
            reply["prompt_token_ids"] = match generations {
                [one] if self.return_token_ids => json!(one.prompt),
                _ => Value::Null,
            };
            reply["prompt_text"] = Value::Null;
        }
        reply["kv_transfer_params"] = match (generations, &self.offers) {
            ([one], Some(offer)) => transfer::offered(&one.prompt, offer.block_tokens, &offer.engine_id),
            _ => Value::Null,
        };
        reply["ec_transfer_params"] = Value::Null;
        reply["metrics"] = Value::Null;
        reply
    }

    fn choice(&self, index: usize, one: &Finished) -> Value {
        let mut choice = json!({"index": index});
        match self.dialect {
            Dialect::Chat => {
                choice["message"] = json!({
                    "role": "assistant", "content": one.text, "refusal": null, "annotations": null, "audio": null,
                    "function_call": null, "reasoning": null,
                });
            }
            Dialect::Completions => choice["text"] = json!(one.text),
        }
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = json!(reason(one.finish));
        choice["stop_reason"] = Value::Null;
        choice["token_ids"] = if self.return_token_ids { json!(one.tokens) } else { Value::Null };
        if self.dialect == Dialect::Completions {
            choice["prompt_logprobs"] = Value::Null;
            choice["prompt_token_ids"] = if self.return_token_ids { json!(one.prompt) } else { Value::Null };
        }
        choice["routed_experts"] = Value::Null;
        choice
    }

    /// The chunk with which a chat stream begins, sent with the first token.
    pub(crate) fn role_chunk(&self, prompt: &[u32]) -> Option<Value> {
        if self.dialect == Dialect::Completions {
            return None;
        }
        let mut chunk = self.chunk(json!([{
            "index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null,
        }]));
        chunk["prompt_token_ids"] = if self.return_token_ids { json!(prompt) } else { Value::Null };
        chunk["prompt_text"] = Value::Null;
        Some(chunk)
    }

    /// The chunk of one token; `first_of` carries the prompt on the first one.
    pub(crate) fn token_chunk(
        &self,
        text: &str,
        token: u32,
        finish: Option<Finish>,
        first_of: Option<&[u32]>,
    ) -> Value {
        let mut choice = json!({"index": 0});
        match self.dialect {
            Dialect::Chat => choice["delta"] = json!({"content": text}),
            Dialect::Completions => choice["text"] = json!(text),
        }
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = json!(finish.map(reason));
        if finish.is_some() || self.dialect == Dialect::Completions {
            choice["stop_reason"] = Value::Null;
        }
        if self.dialect == Dialect::Completions {
            choice["prompt_token_ids"] = match first_of {
                Some(prompt) if self.return_token_ids => json!(prompt),
                _ => Value::Null,
            };
        }
        choice["token_ids"] = if self.return_token_ids { json!([token]) } else { Value::Null };
        self.chunk(json!([choice]))
    }

    /// The chunk that `stream_options.include_usage` asks for.
    pub(crate) fn usage_chunk(&self, usage: Usage) -> Value {
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage.value(self.usage_details);
        chunk["system_fingerprint"] = json!(FINGERPRINT);
        chunk
    }

    #[expect(clippy::needless_pass_by_value, reason = "the choices become part of the chunk")]
    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": match self.dialect {
                Dialect::Chat => "chat.completion.chunk",
                Dialect::Completions => "text_completion",
            },
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}
