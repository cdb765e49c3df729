//! Translates the events of a message into a stream of chat completion chunks.
//!
//! The state between events is the head of every chunk, the map from blocks to calls, and the
//! counts.
//!
//! **Invariant**: `[DONE]` comes only after the message's own `message_stop`.

use super::{
    super::ChunkOutcome,
    reply::{CompletionHead, completion_id, finish, write_usage},
};
use crate::{
    RawJson, Usage,
    api_error::OpenAiError,
    chunk::usage,
    json::{self, ObjectWriter},
};

/// Maximum number of calls in one completion.
const MOST_CALLS: usize = 256;

/// Options from the client's request.
#[derive(Clone, Debug)]
pub struct CompletionOptions {
    /// The model name from the client's request.
    pub model: String,
    /// Creation time in Unix seconds.
    pub created: i64,
    /// Whether the stream ends with the usage.
    pub include_usage: bool,
}

/// The state between the events of one message.
#[derive(Debug)]
pub struct ChatStream {
    options: CompletionOptions,
    id: String,
    /// The indices of the blocks that are calls, in their order.
    calls: Vec<i64>,
    usage: Option<Usage>,
    over: bool,
}

impl ChatStream {
    /// Returns the state at the start of the stream for this request.
    pub fn new(options: CompletionOptions) -> Self {
        Self {
            options,
            id: completion_id(None),
            calls: Vec::new(),
            usage: None,
            over: false,
        }
    }

    /// Takes the data of the next event, and writes the resulting chunks to `out`.
    ///
    /// ```
    /// use dialect::{ChatStream, CompletionOptions, ChunkOutcome};
    ///
    /// let mut out = Vec::new();
    /// let mut stream = ChatStream::new(CompletionOptions { model: "m".into(), created: 7, include_usage: false });
    /// let delta = br#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}"#;
    /// assert_eq!(stream.push(delta, &mut out), ChunkOutcome::Going);
    /// assert_eq!(stream.push(br#"{"type":"message_stop"}"#, &mut out), ChunkOutcome::Whole);
    /// assert!(out.ends_with(b"data: [DONE]\n\n"));
    /// ```
    pub fn push(&mut self, data: &[u8], out: &mut Vec<u8>) -> ChunkOutcome {
        if self.over {
            return ChunkOutcome::Whole;
        }
        let Some(event) = json::object(data) else {
            return self.fail(out, "api_error", "the worker's stream is no message");
        };
        match event.member("type").and_then(RawJson::string).as_deref() {
            Some("message_start") => self.begin(event, out),
            Some("content_block_start") => return self.block(event, out),
            Some("content_block_delta") => self.delta(event, out),
            Some("message_delta") => {
                self.count(event.member("usage"));
                let why = event
                    .member("delta")
                    .and_then(|delta| delta.member("stop_reason"))
                    .and_then(RawJson::string);
                if let Some(why) = why {
                    self.choice(out, Some(finish(Some(&why))), |_| {});
                }
            }
            Some("message_stop") => {
                self.end(out);
                return ChunkOutcome::Whole;
            }
            Some("error") => {
                let text = |name| {
                    event
                        .member("error")
                        .and_then(|error| error.member(name))
                        .and_then(RawJson::string)
                };
                let (kind, message) = (text("type"), text("message"));
                let message = message.as_deref().unwrap_or("the worker's reply broke off");
                return self.fail(out, kind.as_deref().unwrap_or("api_error"), message);
            }
            // Pings, ends of blocks, and future events.
            _ => {}
        }
        ChunkOutcome::Going
    }

    /// Ends the worker's stream. Unless its message had ended, it was cut; there is nothing left to
    /// write.
    pub fn finish(&self) -> ChunkOutcome {
        if self.over {
            ChunkOutcome::Whole
        } else {
            ChunkOutcome::Going
        }
    }

    fn begin(&mut self, event: RawJson<'_>, out: &mut Vec<u8>) {
        let message = event.member("message");
        let text = |name| {
            message
                .and_then(|message| message.member(name))
                .and_then(RawJson::string)
        };
        self.id = completion_id(text("id").as_deref());
        if let Some(model) = text("model") {
            self.options.model = model.into_owned();
        }
        self.count(message.and_then(|message| message.member("usage")));
        self.choice(out, None, |delta| {
            delta.text("role", "assistant");
            delta.text("content", "");
        });
    }

    fn block(&mut self, event: RawJson<'_>, out: &mut Vec<u8>) -> ChunkOutcome {
        let Some(block) = event.member("content_block") else {
            return ChunkOutcome::Going;
        };
        if block.member("type").and_then(RawJson::string).as_deref() != Some("tool_use") {
            return ChunkOutcome::Going;
        }
        if self.calls.len() >= MOST_CALLS {
            return self.fail(
                out,
                "api_error",
                "the worker's stream has more than 256 calls",
            );
        }
        self.calls.push(
            event
                .member("index")
                .and_then(RawJson::integer)
                .unwrap_or(-1),
        );
        let number = self.calls.len() - 1;
        self.choice(out, None, |delta| {
            call(delta, number, |call| {
                call.some("id", block.member("id"));
                call.text("type", "function");
                let mut function = call.object("function");
                function.some("name", block.member("name"));
                function.text("arguments", "");
                function.close();
            });
        });
        ChunkOutcome::Going
    }

    fn delta(&mut self, event: RawJson<'_>, out: &mut Vec<u8>) {
        let delta = event.member("delta");
        let text = |name| {
            delta
                .and_then(|delta| delta.member(name))
                .and_then(RawJson::string)
        };
        let kind = text("type");
        match kind.as_deref() {
            Some("text_delta") => {
                let text = text("text").unwrap_or_default();
                self.choice(out, None, |delta| delta.text("content", &text));
            }
            Some("thinking_delta") => {
                let text = text("thinking").unwrap_or_default();
                self.choice(out, None, |delta| delta.text("reasoning_content", &text));
            }
            Some("input_json_delta") => {
                let index = event
                    .member("index")
                    .and_then(RawJson::integer)
                    .unwrap_or(-1);
                let Some(number) = self.calls.iter().position(|call| *call == index) else {
                    return;
                };
                let text = text("partial_json").unwrap_or_default();
                self.choice(out, None, |delta| {
                    call(delta, number, |call| {
                        let mut function = call.object("function");
                        function.text("arguments", &text);
                        function.close();
                    });
                });
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        self.over = true;
        if self.options.include_usage {
            let counted = self.usage.unwrap_or_default();
            self.chunk(out, |chunk| {
                chunk.raw("choices", "[]");
                write_usage(chunk, counted);
            });
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn count(&mut self, counted: Option<RawJson<'_>>) {
        self.usage = counted
            .and_then(usage)
            .map(|usage| usage.after(self.usage))
            .or(self.usage);
    }

    fn choice(
        &self,
        out: &mut Vec<u8>,
        finish_reason: Option<&str>,
        describe: impl FnOnce(&mut ObjectWriter<'_>),
    ) {
        self.chunk(out, |chunk| {
            let mut choices = chunk.array("choices");
            let mut choice = choices.object();
            choice.number("index", 0);
            let mut delta = choice.object("delta");
            describe(&mut delta);
            delta.close();
            match finish_reason {
                Some(reason) => choice.text("finish_reason", reason),
                None => choice.raw("finish_reason", "null"),
            }
            choice.close();
            choices.close();
        });
    }

    fn chunk(&self, out: &mut Vec<u8>, describe: impl FnOnce(&mut ObjectWriter<'_>)) {
        let mut text = String::with_capacity(200);
        text.push_str("data: ");
        let mut chunk = ObjectWriter::open(&mut text);
        let head = CompletionHead {
            kind: "chat.completion.chunk",
            id: &self.id,
            created: self.options.created,
            model: &self.options.model,
        };
        head.write(&mut chunk);
        describe(&mut chunk);
        chunk.close();
        text.push_str("\n\n");
        out.extend_from_slice(text.as_bytes());
    }

    fn fail(&mut self, out: &mut Vec<u8>, kind: &str, message: &str) -> ChunkOutcome {
        self.over = true;
        out.extend_from_slice(b"data: ");
        let error = OpenAiError {
            message,
            kind,
            param: None,
            code: kind,
        };
        out.extend_from_slice(&error.body(None));
        out.extend_from_slice(b"\n\n");
        ChunkOutcome::Failed
    }
}

fn call(delta: &mut ObjectWriter<'_>, number: usize, describe: impl FnOnce(&mut ObjectWriter<'_>)) {
    let mut list = delta.array("tool_calls");
    let mut call = list.object();
    call.number("index", number);
    describe(&mut call);
    call.close();
    list.close();
}
