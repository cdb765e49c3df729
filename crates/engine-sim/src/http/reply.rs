//! The common part of all APIs: a reply made of generations, whole or as events.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    config::UsageDetails,
    generation::{Generation, RenderedToken},
    script::{Channel, StopCause, ToolCall},
};

use super::SimApiError;

/// The form of a reply in one API.
pub(crate) trait ReplyFormat: Send {
    /// Returns the body of a reply without a stream.
    fn whole(&mut self, finished: &[FinishedGeneration]) -> Value;

    /// Returns the events of one token.
    fn token(&mut self, line: &RunningChoice, rendered: &RenderedToken) -> Vec<Bytes>;

    /// Returns the events between the last token and the last event.
    fn end(&mut self, usage: Usage) -> Vec<Bytes>;

    /// Returns the event that marks a complete stream.
    fn last(&mut self) -> Bytes;

    /// Returns the events of a stream whose engine died.
    fn broken(&mut self, error: &SimApiError) -> Vec<Bytes>;
}

/// A running generation with its place in the reply.
#[derive(Debug)]
pub(crate) struct RunningChoice {
    pub(crate) index: usize,
    /// Whether its prompt counts in the usage: several choices share one.
    pub(crate) counts_prompt: bool,
    pub(crate) generation: Generation,
}

/// One finished generation.
#[derive(Clone, Debug)]
pub(crate) struct FinishedGeneration {
    pub(crate) content: String,
    /// `None` without reasoning.
    pub(crate) reasoning: Option<String>,
    /// The started calls with their arguments.
    pub(crate) calls: Vec<(ToolCall, String)>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) reasoning_tokens: usize,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) counts_prompt: bool,
    pub(crate) ending: StopCause,
    pub(crate) cached_tokens: u32,
}

impl FinishedGeneration {
    pub(crate) fn new(line: &RunningChoice) -> Self {
        Self {
            content: String::new(),
            reasoning: None,
            calls: Vec::new(),
            tokens: Vec::new(),
            reasoning_tokens: 0,
            prompt: Arc::clone(&line.generation.prompt),
            counts_prompt: line.counts_prompt,
            ending: StopCause::Length,
            cached_tokens: 0,
        }
    }

    /// Adds one token.
    pub(crate) fn record(&mut self, line: &RunningChoice, rendered: &RenderedToken) {
        let text = &rendered.text.text;
        match rendered.text.channel {
            Channel::Hidden => {}
            Channel::Content => self.content.push_str(text),
            Channel::Reasoning => {
                self.reasoning.get_or_insert_default().push_str(text);
                self.reasoning_tokens += 1;
            }
            Channel::Call(index) => {
                if index == self.calls.len()
                    && let Some(call) = line.generation.call(index)
                {
                    self.calls.push((call.clone(), String::new()));
                }
                if let Some((_, arguments)) = self.calls.get_mut(index) {
                    arguments.push_str(text);
                }
            }
        }
        self.tokens.push(rendered.token);
        self.cached_tokens = rendered.cached_tokens;
        if let Some(ending) = &rendered.ending {
            self.ending = ending.clone();
        }
    }
}

/// Token counts of a reply.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
    pub(crate) cached: u64,
    pub(crate) reasoning: usize,
}

impl Usage {
    pub(crate) fn of(finished: &[FinishedGeneration]) -> Self {
        let mut usage = Self::default();
        for one in finished {
            if one.counts_prompt {
                usage.prompt += one.prompt.len();
                usage.cached += u64::from(one.cached_tokens);
            }
            usage.completion += one.tokens.len();
            usage.reasoning += one.reasoning_tokens;
        }
        usage
    }

    /// Adds one token of a stream; `first` of its choice.
    pub(crate) fn record(&mut self, line: &RunningChoice, rendered: &RenderedToken, first: bool) {
        if first && line.counts_prompt {
            self.prompt += line.generation.prompt.len();
            self.cached += u64::from(rendered.cached_tokens);
        }
        self.completion += 1;
        self.reasoning += usize::from(rendered.text.channel == Channel::Reasoning);
    }

    /// Returns whether the usage reports cached tokens.
    pub(crate) fn reports_cached(self, details: UsageDetails) -> bool {
        match details {
            UsageDetails::Always => true,
            UsageDetails::OnHits => self.cached > 0,
            UsageDetails::Never => false,
        }
    }

    /// Returns the usage in the form of chats and completions.
    pub(crate) fn value(self, details: UsageDetails) -> Value {
        let reasoning_details = if self.reasoning > 0 {
            json!({"reasoning_tokens": self.reasoning})
        } else {
            Value::Null
        };
        let cached = if self.reports_cached(details) {
            json!({"cached_tokens": self.cached})
        } else {
            Value::Null
        };
        json!({
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": cached,
            "completion_tokens_details": reasoning_details,
        })
    }
}

/// Returns an event without a name.
pub(crate) fn data(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

/// Returns an event named by the type in its data.
pub(crate) fn named(value: &Value) -> Bytes {
    format!(
        "event: {}\ndata: {value}\n\n",
        value["type"].as_str().unwrap_or("message")
    )
    .into()
}
