//! Translates a stream of chat completion chunks into the events of a message.
//!
//! One block is open at a time: text, thinking or a tool call; the start of another one ends it.
//! The state between events is the number of blocks, the started tool calls, and one call that has
//! no name yet.
//!
//! **Invariant**: events come in Anthropic's order for any chunks; a chunk that does not fit into
//! it ends the stream with an error.

mod blocks;
mod calls;

use super::{
    error,
    event::event,
    reply::{StopReason, only_choice, write_usage},
};
use crate::{RawJson, Usage, chunk::usage, is_done, json};

/// The result of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// The stream continues.
    Going,
    /// The message is complete: its last event is written.
    Whole,
    /// The chunks cannot be a message, or were an error: an `error` event is written and no end may
    /// follow.
    Failed,
}

/// The state between the chunks of one stream.
#[derive(Debug)]
pub struct MessageStream {
    /// The model name from the client's request.
    model: String,
    /// Reported at the start of the message, before the engine's counts arrive.
    prompt_tokens: u32,
    state: StreamPhase,
    /// Blocks started so far; the last one is open if `open` is set.
    blocks: u32,
    open: Option<OpenBlock>,
    /// The started calls, by the engine's indices.
    calls: Vec<u32>,
    unnamed: Option<UnnamedCall>,
    stop: Option<StopReason>,
    usage: Option<Usage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPhase {
    Before,
    Begun,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenBlock {
    Text,
    Thinking,
    Call(u32),
}

/// A call that has no name yet.
#[derive(Debug)]
struct UnnamedCall {
    number: u32,
    id: String,
    arguments: String,
}

/// The reason why the chunks cannot be a message.
type InvalidStream = &'static str;

impl MessageStream {
    /// Returns the state at the start of a stream for a request for `model`; `prompt_tokens` is the
    /// router's own count of its prompt.
    pub fn new(model: impl Into<String>, prompt_tokens: u32) -> Self {
        Self {
            model: model.into(),
            prompt_tokens,
            state: StreamPhase::Before,
            blocks: 0,
            open: None,
            calls: Vec::new(),
            unnamed: None,
            stop: None,
            usage: None,
        }
    }

    /// Takes the data of the next event, and writes the resulting events to `out`.
    ///
    /// ```
    /// use dialect::{MessageStream, ChunkOutcome};
    ///
    /// let mut out = Vec::new();
    /// let mut stream = MessageStream::new("m", 3);
    /// let chunk = br#"{"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}"#;
    /// assert_eq!(stream.push(chunk, &mut out), ChunkOutcome::Going);
    /// assert_eq!(stream.push(b"[DONE]", &mut out), ChunkOutcome::Whole);
    /// assert!(out.starts_with(b"event: message_start\ndata: {"));
    /// assert!(out.ends_with(b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
    /// ```
    pub fn push(&mut self, data: &[u8], out: &mut Vec<u8>) -> ChunkOutcome {
        if self.state == StreamPhase::Over {
            return ChunkOutcome::Whole;
        }
        if is_done(data) {
            return self.finish(out);
        }
        let Some(chunk) = json::object(data) else {
            return self.fail(out, "the worker's stream is no chat completion");
        };
        if let Some(error_member) = chunk.member("error") {
            let status = error_member
                .member("code")
                .and_then(RawJson::integer)
                .and_then(|code| u16::try_from(code).ok());
            let text = error_member
                .member("message")
                .and_then(RawJson::string)
                .or_else(|| error_member.string());
            let event = error::in_stream(
                status,
                text.as_deref().unwrap_or("the worker's reply broke off"),
            );
            return self.failed_with(out, &event);
        }
        match self.chunk(chunk, out) {
            Ok(()) => ChunkOutcome::Going,
            Err(why) => self.fail(out, why),
        }
    }

    /// Ends the worker's stream. Without a finish reason it was cut: nothing is written, and
    /// [`ChunkOutcome::Going`] reports that the message is incomplete.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> ChunkOutcome {
        let Some(stop) = self
            .stop
            .clone()
            .filter(|_| self.state == StreamPhase::Begun)
        else {
            return if self.state == StreamPhase::Over {
                ChunkOutcome::Whole
            } else {
                ChunkOutcome::Going
            };
        };
        if self.unnamed.is_some() {
            return self.fail(out, "the worker's stream has a call without a name");
        }
        self.close(out);
        event(out, "message_delta", |object| {
            let mut delta = object.object("delta");
            stop.write(&mut delta);
            delta.close();
            let counted = self.usage.unwrap_or(Usage {
                prompt_tokens: self.prompt_tokens,
                ..Usage::default()
            });
            write_usage(object, counted);
        });
        event(out, "message_stop", |_| {});
        self.state = StreamPhase::Over;
        ChunkOutcome::Whole
    }

    fn chunk(&mut self, chunk: RawJson<'_>, out: &mut Vec<u8>) -> Result<(), InvalidStream> {
        self.usage = chunk.member("usage").and_then(usage).or(self.usage);
        if self.state == StreamPhase::Before {
            self.begin(chunk, out);
        }
        // The request wants one choice; if an engine sends more, they would be mixed up.
        let Some(choice) = chunk.member("choices").and_then(only_choice) else {
            return Ok(());
        };
        if let Some(delta) = choice.member("delta") {
            for name in ["reasoning_content", "reasoning"] {
                let text = delta
                    .member(name)
                    .and_then(RawJson::string)
                    .filter(|text| !text.is_empty());
                if let Some(text) = text {
                    self.write_text(OpenBlock::Thinking, &text, out);
                    break;
                }
            }
            for name in ["content", "refusal"] {
                if let Some(text) = delta
                    .member(name)
                    .and_then(RawJson::string)
                    .filter(|text| !text.is_empty())
                {
                    self.write_text(OpenBlock::Text, &text, out);
                }
            }
            for call in delta
                .member("tool_calls")
                .and_then(RawJson::elements)
                .into_iter()
                .flatten()
            {
                self.call(call, out)?;
            }
        }
        if let Some(reason) = choice.member("finish_reason").and_then(RawJson::string) {
            self.stop = Some(StopReason::of(
                Some(&reason),
                choice.member("stop_reason"),
                !self.calls.is_empty(),
            ));
        }
        Ok(())
    }

    fn fail(&mut self, out: &mut Vec<u8>, why: InvalidStream) -> ChunkOutcome {
        let message = format!("{why}: what came before this event is incomplete");
        let event = error::in_stream(None, &message);
        self.failed_with(out, &event)
    }

    fn failed_with(&mut self, out: &mut Vec<u8>, data: &[u8]) -> ChunkOutcome {
        self.state = StreamPhase::Over;
        out.extend_from_slice(b"event: error\ndata: ");
        out.extend_from_slice(data);
        out.extend_from_slice(b"\n\n");
        ChunkOutcome::Failed
    }
}
