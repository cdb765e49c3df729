//! Reads the facts for accounting from a reply: usage, finish reason, error.
//!
//! Works on the data of one stream event and on a whole body alike. Anything unknown is ignored:
//! replies pass whatever they contain.

use std::borrow::Cow;

use memchr::memmem;

use crate::{
    Dialect, InternalDetail, KnownText, internal_detail,
    json::{self, RawJson},
};

/// Token counts from the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the reply so far.
    pub completion_tokens: u32,
    /// Prompt tokens from the cache; `None` if the engine does not report them.
    pub cached_tokens: Option<u32>,
}

/// An error in a reply of status 200.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InBandError<'a> {
    /// Its status.
    pub status: Option<u16>,
    /// Its type.
    pub kind: Option<Cow<'a, str>>,
}

/// Which of several replies to one request a chunk is about. Others tell of all replies at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyPart {
    /// The one of this number, in a stream of SGLang's own API.
    Numbered(u32),
    /// All, from the list of them that a whole body of that API is.
    List,
}

/// The facts of one event or body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamChunk<'a> {
    /// Token counts.
    pub usage: Option<Usage>,
    /// Finish reason of the first finished choice.
    pub finish_reason: Option<Cow<'a, str>>,
    /// The error, if the chunk is one.
    pub error: Option<InBandError<'a>>,
    /// Whether the chunk carries output: text, reasoning or a call, not only a role.
    pub has_output: bool,
    /// The id under which an engine stores a `/v1/responses` reply.
    pub response_id: Option<Cow<'a, str>>,
    /// The part of the request's replies to which the facts belong; `None`: they are those of all.
    pub part: Option<ReplyPart>,
    /// Whether this event ends a stream of messages or of a response.
    pub is_last: bool,
    /// Whether the chunk is one of SGLang's own API, which has its facts in `meta_info`.
    is_native: bool,
    /// The text of the error.
    error_value: Option<RawJson<'a>>,
}

/// Types of the events that end a stream in dialects where no choice has a finish reason.
const LAST_EVENTS: [&str; 4] = [
    "message_stop",
    "response.completed",
    "response.incomplete",
    "response.failed",
];

impl<'a> StreamChunk<'a> {
    /// Reads the data of one event, or a whole body. `None` if it is neither a JSON object nor a
    /// list of replies.
    ///
    /// ```
    /// let data = br#"{"choices":[{"text":"x","finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    /// let chunk = dialect::StreamChunk::read(data).unwrap();
    /// assert_eq!(chunk.finish_reason.as_deref(), Some("stop"));
    /// assert_eq!(chunk.usage.unwrap().cached_tokens, None);
    /// ```
    pub fn read(data: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(data).ok()?;
        if text.trim_ascii_start().starts_with('[') {
            return Self::read_list(text);
        }
        Self::read_object(text)
    }

    /// Reads the list of replies to several prompts, or several replies to one. `None` if it is
    /// another list.
    fn read_list(text: &'a str) -> Option<Self> {
        let mut all: Option<Self> = None;
        for element in json::elements(text) {
            let reply = Self::read_object(element.ok()?.as_str());
            let reply = reply.filter(|reply| reply.is_native)?;
            all = Some(match all {
                Some(all) => all.merge(reply),
                None => reply,
            });
        }
        all.map(|all| Self {
            part: Some(ReplyPart::List),
            ..all
        })
    }

    /// Returns the facts of this reply and another one.
    fn merge(self, other: Self) -> Self {
        let counts = self.usage.zip(other.usage);
        Self {
            // The counts of some of them would pass for those of all.
            usage: counts.map(|(one, other)| one.plus(other)),
            finish_reason: self.finish_reason.or(other.finish_reason),
            error: self.error.or(other.error),
            error_value: self.error_value.or(other.error_value),
            has_output: self.has_output || other.has_output,
            ..self
        }
    }

    fn read_object(text: &'a str) -> Option<Self> {
        let mut chunk = Self::default();
        let (mut id, mut is_response) = (None, false);
        let mut index = None;
        let mut generated = false;
        for member in json::members(text) {
            let (key, value) = member.ok()?;
            match &*json::decode(key) {
                "usage" => chunk.usage = usage(value),
                "choices" => chunk.read_choices(value),
                "error" if !value.is_null() => chunk.set_error(value),
                "id" => id = value.string(),
                "index" => index = count(value),
                "text" | "output_ids" => generated |= !is_empty(value),
                "meta_info" => chunk.read_meta(value),
                "type" => {
                    chunk.is_last = value
                        .string()
                        .is_some_and(|kind| LAST_EVENTS.contains(&&*kind))
                }
                "object" => is_response = value.as_str() == "\"response\"",
                // The events of a response contain the whole response.
                "response" => chunk.read_response(value),
                // A message begins with its usage, and ends with its stop reason.
                "message" => chunk.usage = value.member("usage").and_then(usage).or(chunk.usage),
                "delta" => {
                    chunk.finish_reason = value.member("stop_reason").and_then(RawJson::string)
                }
                "stop_reason" => chunk.finish_reason = value.string(),
                _ => {}
            }
        }
        // Other dialects repeat finished text under these names.
        chunk.has_output |= generated && chunk.is_native;
        chunk.response_id = chunk.response_id.or_else(|| id.filter(|_| is_response));
        // Elsewhere it is the number of a block.
        chunk.part = index.filter(|_| chunk.is_native).map(ReplyPart::Numbered);
        Some(chunk)
    }

    /// Returns the detail of a server that the chunk's error has, if it is one with any.
    ///
    /// ```
    /// let data = br#"{"error":{"message":"connect to 10.0.0.7:8000 failed"},"choices":[]}"#;
    /// let chunk = dialect::StreamChunk::read(data).unwrap();
    /// assert_eq!(chunk.error_detail(), Some(dialect::InternalDetail::Address));
    /// ```
    pub fn error_detail(&self) -> Option<InternalDetail> {
        let text = self.error_value?.as_str();
        internal_detail(text.as_bytes(), KnownText::default(), "")
    }

    fn set_error(&mut self, value: RawJson<'a>) {
        self.error = Some(error(value));
        self.error_value = Some(value);
    }

    /// Returns whether the chunk marks the end of the reply.
    ///
    /// ```
    /// let chunk = dialect::StreamChunk::read(br#"{"type":"message_stop"}"#).unwrap();
    /// assert!(chunk.ends());
    /// ```
    pub fn ends(&self) -> bool {
        self.is_last || self.finish_reason.is_some()
    }

    /// Reads the facts of a reply of SGLang's own API; its finish reason is an object with a type.
    fn read_meta(&mut self, meta: RawJson<'a>) {
        self.is_native = true;
        self.usage = usage(meta).map(|usage| Usage {
            cached_tokens: meta.member("cached_tokens").and_then(count),
            ..usage
        });
        self.finish_reason = meta.member("finish_reason").and_then(|reason| {
            let kind = reason.member("type").and_then(RawJson::string);
            kind.or_else(|| reason.string())
        });
    }

    fn read_response(&mut self, response: RawJson<'a>) {
        self.response_id = response.member("id").and_then(RawJson::string);
        self.usage = response.member("usage").and_then(usage).or(self.usage);
        if let Some(value) = response.member("error") {
            self.set_error(value);
        }
    }

    fn read_choices(&mut self, choices: RawJson<'a>) {
        for choice in choices.elements().into_iter().flatten() {
            for (key, value) in choice.members().into_iter().flatten() {
                match &*key {
                    "finish_reason" => {
                        self.finish_reason = self.finish_reason.take().or_else(|| value.string())
                    }
                    "text" | "token_ids" => self.has_output |= !is_empty(value),
                    "delta" | "message" => {
                        let mut members = value.members().into_iter().flatten();
                        self.has_output |=
                            members.any(|(key, value)| key != "role" && !is_empty(value));
                    }
                    _ => {}
                }
            }
        }
    }
}

fn is_empty(value: RawJson<'_>) -> bool {
    matches!(value.as_str(), "null" | "\"\"" | "[]" | "{}")
}

/// Reads the counts in the field names of any dialect.
pub(crate) fn usage(value: RawJson<'_>) -> Option<Usage> {
    let mut usage = Usage::default();
    let mut any = false;
    // Anthropic's input counts only the tokens that came from no cache.
    let (mut beside_cache, mut from_cache) = (0, None);
    for (key, value) in value.members()? {
        match &*key {
            "prompt_tokens" | "input_tokens" => {
                usage.prompt_tokens = count(value)?;
                any = true;
            }
            "completion_tokens" | "output_tokens" => {
                usage.completion_tokens = count(value).unwrap_or(0);
                any |= key == "output_tokens";
            }
            "prompt_tokens_details" | "input_tokens_details" => {
                let mut details = value.members().into_iter().flatten();
                usage.cached_tokens = details
                    .find(|(key, _)| key == "cached_tokens")
                    .and_then(|(_, value)| count(value));
            }
            "cache_read_input_tokens" => from_cache = count(value),
            "cache_creation_input_tokens" => beside_cache = count(value).unwrap_or(0),
            _ => {}
        }
    }
    if let Some(cached) = from_cache {
        usage.prompt_tokens = usage
            .prompt_tokens
            .saturating_add(cached)
            .saturating_add(beside_cache);
        usage.cached_tokens = Some(cached);
    }
    any.then_some(usage)
}

impl Usage {
    /// Merges these counts with earlier ones of the same reply: a message reports its input at its
    /// beginning, and at its end perhaps only its output.
    #[must_use]
    pub fn after(self, before: Option<Self>) -> Self {
        match before {
            Some(before) if self.prompt_tokens == 0 => Self {
                completion_tokens: self.completion_tokens,
                ..before
            },
            _ => self,
        }
    }

    /// Returns the counts of two replies to the same request.
    fn plus(self, other: Self) -> Self {
        let cached = self.cached_tokens.zip(other.cached_tokens);
        Self {
            prompt_tokens: self.prompt_tokens.saturating_add(other.prompt_tokens),
            completion_tokens: (self.completion_tokens).saturating_add(other.completion_tokens),
            cached_tokens: cached.map(|(one, other)| one.saturating_add(other)),
        }
    }
}

fn count(value: RawJson<'_>) -> Option<u32> {
    value.as_str().parse().ok()
}

fn error(value: RawJson<'_>) -> InBandError<'_> {
    let mut error = InBandError::default();
    for (key, value) in value.members().into_iter().flatten() {
        match &*key {
            "code" | "status" => {
                error.status = error
                    .status
                    .or_else(|| u16::try_from(value.integer()?).ok())
            }
            "type" => error.kind = value.string(),
            _ => {}
        }
    }
    error
}

/// Returns the usage in one event's data.
pub fn usage_from_chunk(data: &[u8]) -> Option<Usage> {
    StreamChunk::read(data)?.usage
}

/// Most places of a body's end where its usage may begin.
const TAIL_TRIES: usize = 4;

/// Returns the usage in the last bytes of a whole body, if it stands there as a member of the body.
///
/// ```
/// let tail = br#".25,0.5]}],"usage":{"prompt_tokens":9,"completion_tokens":0},"model":"m"}"#;
/// assert_eq!(dialect::usage_from_tail(tail).unwrap().prompt_tokens, 9);
/// let inner = br#"},"about":{"usage":{"prompt_tokens":9}}}"#;
/// assert_eq!(dialect::usage_from_tail(inner), None);
/// ```
pub fn usage_from_tail(tail: &[u8]) -> Option<Usage> {
    let names = memmem::rfind_iter(tail, "\"usage\"");
    names.take(TAIL_TRIES).find_map(|at| {
        // From a member of the body to the end there are whole members and the end of one object; in
        // an inner object there are the ends of several.
        let rest = ["{".as_bytes(), &tail[at..]].concat();
        usage_from_body(&rest)
    })
}

/// Returns the usage in a whole body.
pub fn usage_from_body(body: &[u8]) -> Option<Usage> {
    StreamChunk::read(body)?.usage
}

/// Returns the finish reason in one event's data or a whole body.
pub fn finish_reason(data: &[u8]) -> Option<Cow<'_, str>> {
    StreamChunk::read(data)?.finish_reason
}

/// Returns the error in one event's data or a whole body.
pub fn in_band_error(data: &[u8]) -> Option<InBandError<'_>> {
    StreamChunk::read(data)?.error
}

/// Types of the events of a response that engines send before they compute its prompt.
const ANNOUNCEMENTS: [&str; 3] = [
    "response.created",
    "response.queued",
    "response.in_progress",
];

/// Returns whether the data of an event only announces a response: its prompt may not be computed yet.
///
/// ```
/// let created = br#"{"response":{"id":"r","output":[]},"type":"response.created"}"#;
/// assert!(dialect::announces_response(created));
/// let first = br#"{"delta":"a","type":"response.output_text.delta"}"#;
/// assert!(!dialect::announces_response(first));
/// ```
pub fn announces_response(data: &[u8]) -> bool {
    let members = std::str::from_utf8(data).ok().map(json::members);
    let members = members.into_iter().flatten().map_while(Result::ok);
    let mut kinds = members
        .filter(|(key, _)| json::decode(key) == "type")
        .filter_map(|(_, kind)| kind.string());
    kinds.any(|kind| ANNOUNCEMENTS.contains(&&*kind))
}

/// Returns whether an event's data is the end mark `[DONE]`.
pub fn is_done(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]"
}

/// Tracks whether a stream is complete: the engine sent a stop reason or its end marker. Only the
/// engine's own events count.
#[derive(Debug)]
pub struct EndingTracker {
    /// The event that ends a stream of this dialect contains one of these.
    words: &'static [&'static [u8]],
    seen: bool,
}

impl EndingTracker {
    /// Creates the tracker for this dialect; `None` where streams have no end marker.
    pub fn of(dialect: Dialect) -> Option<Self> {
        let words: &[&[u8]] = match dialect {
            Dialect::Chat
            | Dialect::Completions
            | Dialect::ChatBatch
            | Dialect::TokenIds
            | Dialect::SglangGenerate => &[b"finish_reason"],
            Dialect::Messages => &[b"message_stop"],
            Dialect::Responses => &[
                b"response.completed",
                b"response.incomplete",
                b"response.failed",
            ],
            Dialect::Embeddings | Dialect::Rerank | Dialect::Score => return None,
        };
        Some(Self { words, seen: false })
    }

    /// Checks one event: its data, and what was read from it if it [may have
    /// facts](crate::may_have_facts).
    pub fn observe_event(&mut self, data: &[u8], chunk: Option<&StreamChunk<'_>>) {
        let stands = |word: &&[u8]| memmem::find(data, word).is_some();
        let ends = || chunk.is_some_and(StreamChunk::ends) && self.words.iter().any(stands);
        self.seen = self.seen || is_done(data) || ends();
    }

    /// Skips an event that is too long to parse: its content is unknown, so the stream counts as
    /// complete.
    pub fn skip_event(&mut self) {
        self.seen = true;
    }

    /// Returns whether the engine has marked its stream as complete.
    pub fn is_complete(&self) -> bool {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn whole(dialect: Dialect, events: &[&str]) -> bool {
        let mut ending = EndingTracker::of(dialect).expect("it has streams");
        for data in events {
            let chunk = StreamChunk::read(data.as_bytes());
            ending.observe_event(data.as_bytes(), chunk.as_ref());
        }
        ending.is_complete()
    }

    #[test]
    #[contract("F20")]
    fn each_dialect_has_its_own_end_marker() {
        for (dialect, last) in [
            (
                Dialect::Chat,
                r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
            ),
            (
                Dialect::Completions,
                r#"{"choices":[{"text":"","finish_reason":"length"}]}"#,
            ),
            (Dialect::Chat, "[DONE]"),
            (
                Dialect::TokenIds,
                r#"{"choices":[{"token_ids":[7],"finish_reason":"length"}]}"#,
            ),
            (
                Dialect::SglangGenerate,
                r#"{"text":"a","meta_info":{"finish_reason":{"type":"stop","matched":2}}}"#,
            ),
            (Dialect::Messages, r#"{"type":"message_stop"}"#),
            (
                Dialect::Responses,
                r#"{"type":"response.completed","response":{"id":"r"}}"#,
            ),
            (
                Dialect::Responses,
                r#"{"type":"response.incomplete","response":{"id":"r"}}"#,
            ),
        ] {
            assert!(whole(dialect, &["{}", last]), "{last}");
        }
    }

    #[test]
    fn the_facts_of_sglangs_own_replies_are_in_meta_info() {
        let read = |data: &'static str| StreamChunk::read(data.as_bytes()).expect("an object");
        let event = read(
            r#"{"text":"a","meta_info":{"id":"r","finish_reason":null,"prompt_tokens":9,"completion_tokens":1,"cached_tokens":4}}"#,
        );
        let usage = event.usage.expect("its counts");
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (9, 1));
        assert_eq!(usage.cached_tokens, Some(4));
        assert!(event.has_output && !event.ends());
        let last = read(
            r#"{"text":"","output_ids":[1],"meta_info":{"finish_reason":{"type":"length","length":1}}}"#,
        );
        assert_eq!(last.finish_reason.as_deref(), Some("length"));
        assert!(last.has_output);
        assert!(!read(r#"{"type":"response.output_text.done","text":"a"}"#).has_output);
    }

    #[test]
    fn token_ids_of_a_choice_are_output() {
        let chunk = StreamChunk::read(br#"{"choices":[{"index":0,"token_ids":[7]}]}"#);
        assert!(chunk.expect("an object").has_output);
        let role = br#"{"choices":[{"delta":{"role":"assistant"},"token_ids":null}]}"#;
        assert!(!StreamChunk::read(role).expect("an object").has_output);
    }

    #[test]
    #[contract("F20")]
    fn end_markers_in_the_generated_text_are_ignored() {
        for (dialect, data) in [
            (
                Dialect::Chat,
                r#"{"choices":[{"delta":{"content":"finish_reason"},"finish_reason":null}]}"#,
            ),
            (
                Dialect::Chat,
                r#"{"choices":[{"delta":{"content":"[DONE]"},"finish_reason":null}]}"#,
            ),
            (
                Dialect::SglangGenerate,
                r#"{"text":"finish_reason","meta_info":{"finish_reason":null}}"#,
            ),
            (
                Dialect::Messages,
                r#"{"type":"content_block_delta","delta":{"text":"message_stop"}}"#,
            ),
            (
                Dialect::Responses,
                r#"{"type":"response.output_text.delta","delta":"response.completed"}"#,
            ),
        ] {
            assert!(!whole(dialect, &[data]), "{data}");
        }
    }
}
