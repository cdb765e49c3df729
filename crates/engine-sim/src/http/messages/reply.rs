//! Message replies, whole and as events.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    generation::RenderedToken,
    http::{
        SimApiError,
        reply::{FinishedGeneration, ReplyFormat, RunningChoice, Usage, named},
    },
    script::{Channel, StopCause, ToolCall},
    server_state::ServerState,
};

/// A message under construction.
#[derive(Debug)]
pub(crate) struct MessageReply {
    state: Arc<ServerState>,
    id: String,
    model: String,
    begun: bool,
    /// Number of started blocks.
    blocks: usize,
    /// The channel of the open block.
    open: Option<Channel>,
    ending: StopCause,
}

/// A placeholder for a signature that only the real service could check.
const SIGNATURE: &str = "c2lt";

impl MessageReply {
    pub(crate) fn new(state: Arc<ServerState>, id: String, model: String) -> Self {
        Self {
            state,
            id,
            model,
            begun: false,
            blocks: 0,
            open: None,
            ending: StopCause::Stop,
        }
    }

    fn message(&self, content: Value, ending: Option<&StopCause>, usage: &Value) -> Value {
        let (reason, sequence) = ending.map_or((Value::Null, Value::Null), reasons);
        let mut message =
            json!({"id": format!("msg_{}", self.id), "type": "message", "role": "assistant"});
        message["content"] = content;
        message["model"] = json!(self.model);
        message["stop_reason"] = reason;
        message["stop_sequence"] = sequence;
        message["usage"] = usage.clone();
        message
    }

    /// Returns the counts in Anthropic's form: cached tokens are not part of the input.
    fn usage(&self, usage: Usage) -> Value {
        let cached = if usage.reports_cached(self.state.config.api.usage_details) {
            usage.cached
        } else {
            0
        };
        json!({
            "input_tokens": (usage.prompt as u64).saturating_sub(cached),
            "output_tokens": usage.completion,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
        })
    }

    fn begin(&mut self, channel: Channel, block: &Value) -> Bytes {
        let event = named(
            &json!({"type": "content_block_start", "index": self.blocks, "content_block": block}),
        );
        self.blocks += 1;
        self.open = Some(channel);
        event
    }

    fn delta(&self, delta: &Value) -> Bytes {
        named(
            &json!({"type": "content_block_delta", "index": self.blocks.saturating_sub(1), "delta": delta}),
        )
    }

    fn close(&mut self) -> Vec<Bytes> {
        let Some(channel) = self.open.take() else {
            return Vec::new();
        };
        let mut events = Vec::new();
        if channel == Channel::Reasoning {
            events.push(self.delta(&json!({"type": "signature_delta", "signature": SIGNATURE})));
        }
        events.push(named(
            &json!({"type": "content_block_stop", "index": self.blocks.saturating_sub(1)}),
        ));
        events
    }
}

/// Returns an empty block; `None` if there is none to begin.
fn begun_block(channel: Channel, line: &RunningChoice) -> Option<Value> {
    Some(match channel {
        Channel::Hidden => return None,
        Channel::Content => json!({"type": "text", "text": ""}),
        Channel::Reasoning => json!({"type": "thinking", "thinking": "", "signature": ""}),
        Channel::Call(index) => {
            let call = line.generation.call(index)?;
            json!({"type": "tool_use", "id": tool_id(call), "name": call.name, "input": {}})
        }
    })
}

fn tool_id(call: &ToolCall) -> String {
    format!("toolu_{}", call.id)
}

fn reasons(ending: &StopCause) -> (Value, Value) {
    match ending {
        StopCause::Stop => (json!("end_turn"), Value::Null),
        StopCause::StopString(stop) => (json!("stop_sequence"), json!(stop)),
        StopCause::Length => (json!("max_tokens"), Value::Null),
        StopCause::ToolCalls => (json!("tool_use"), Value::Null),
    }
}

impl ReplyFormat for MessageReply {
    fn whole(&mut self, finished: &[FinishedGeneration]) -> Value {
        let mut blocks = Vec::new();
        let mut ending = StopCause::Stop;
        for one in finished {
            ending = one.ending.clone();
            blocks.extend(one.reasoning.as_ref().map(
                |thinking| json!({"type": "thinking", "thinking": thinking, "signature": SIGNATURE}),
            ));
            if !one.content.is_empty() {
                blocks.push(json!({"type": "text", "text": one.content}));
            }
            blocks.extend(one.calls.iter().map(|(call, arguments)| {
                // Truncated arguments count as none.
                let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
                json!({"type": "tool_use", "id": tool_id(call), "name": call.name, "input": input})
            }));
        }
        self.message(
            blocks.into(),
            Some(&ending),
            &self.usage(Usage::of(finished)),
        )
    }

    fn token(&mut self, line: &RunningChoice, rendered: &RenderedToken) -> Vec<Bytes> {
        let mut events = Vec::new();
        if !self.begun {
            self.begun = true;
            let cached = u64::from(rendered.cached_tokens);
            let usage = Usage {
                prompt: line.generation.prompt.len(),
                completion: 1,
                cached,
                reasoning: 0,
            };
            let begun = self.message(json!([]), None, &self.usage(usage));
            events.push(named(&json!({"type": "message_start", "message": begun})));
        }
        if let Some(ending) = &rendered.ending {
            self.ending = ending.clone();
        }
        let (channel, text) = (rendered.text.channel, &rendered.text.text);
        if self.open != Some(channel) {
            let Some(block) = begun_block(channel, line) else {
                return events;
            };
            events.extend(self.close());
            events.push(self.begin(channel, &block));
        }
        if !text.is_empty() {
            events.push(self.delta(&match channel {
                Channel::Reasoning => json!({"type": "thinking_delta", "thinking": text}),
                Channel::Call(_) => json!({"type": "input_json_delta", "partial_json": text}),
                _ => json!({"type": "text_delta", "text": text}),
            }));
        }
        events
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        let mut events = self.close();
        let (stop_reason, stop_sequence) = reasons(&self.ending);
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        events.push(named(
            &json!({"type": "message_delta", "delta": delta, "usage": self.usage(usage)}),
        ));
        events
    }

    fn last(&mut self) -> Bytes {
        named(&json!({"type": "message_stop"}))
    }

    fn broken(&mut self, error: &SimApiError) -> Vec<Bytes> {
        vec![named(&error.anthropic())]
    }
}
