//! Replays a cached reply as a stream.
//!
//! The order is that of engines: for each choice the role, the reasoning, the content, the calls
//! and the finish reason; then the usage, if the client wants it. Long texts are split into several
//! chunks.
//!
//! **Invariant**: a stream made here, read by [`super::StreamObject`], yields the cached object
//! again.

use std::borrow::Cow;

use super::{
    check::check_reply,
    deltas::{deltas, inside},
    partial::is_empty_value,
    pieces::{PieceMetadata, beside, texts},
};
use crate::{
    Dialect,
    json::{self, ObjectWriter, RawJson},
};

/// Members of every chunk, if the reply has them; the others are in the first chunk.
const STEADY: [&str; 2] = ["service_tier", "system_fingerprint"];

/// Returns the event stream for a cached reply, up to its `[DONE]`. `None` if the reply cannot
/// answer: it is no cached reply of that dialect, the dialect's streams are not cached, or
/// `include_usage` is set and the reply has no usage.
///
/// ```
/// use dialect::{Dialect, StreamObject, replay};
///
/// let kept = br#"{"id":"c","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"logprobs":null,"finish_reason":"stop"}]}"#;
/// let stream = String::from_utf8(replay(Dialect::Chat, kept, false).unwrap()).unwrap();
/// let chunks: Vec<&str> = stream.split_terminator("\n\n").collect();
/// assert_eq!(
///     chunks[1],
///     r#"data: {"id":"c","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":"hi"},"logprobs":null,"finish_reason":null}]}"#
/// );
/// assert_eq!((chunks.len(), chunks[3]), (4, "data: [DONE]"));
/// assert_eq!(StreamObject::read(Dialect::Chat, &[stream.as_bytes()]).unwrap().body, kept);
/// assert_eq!(replay(Dialect::Chat, kept, true), None);
/// ```
pub fn replay(dialect: Dialect, stored: &[u8], include_usage: bool) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(stored.len());
    // A line feed between values would end the line of an event.
    json::compact::compact(std::str::from_utf8(stored).ok()?, &mut text);
    check_reply(dialect, std::str::from_utf8(&text).ok()?).ok()?;
    let reply = json::object(&text)?;
    let usage = reply
        .member("usage")
        .filter(|usage| usage.members().is_some());
    if include_usage && usage.is_none() {
        return None;
    }
    let mut chunks = ChunkWriter::new(dialect, reply, include_usage)?;
    for choice in reply.member("choices")?.elements()? {
        match dialect {
            Dialect::Chat => chunks.chat(choice)?,
            _ => chunks.completion(choice),
        }
    }
    if include_usage {
        chunks.chunk("[]", usage.map_or("null", RawJson::as_str));
    }
    chunks.out.push_str("data: [DONE]\n\n");
    Some(chunks.out.into_bytes())
}

/// The stream under construction.
struct ChunkWriter<'a> {
    out: String,
    object: &'static str,
    /// The start of every chunk, looked up once: a reply may be long.
    id: Option<RawJson<'a>>,
    created: Option<RawJson<'a>>,
    model: Option<RawJson<'a>>,
    /// Index of the current choice.
    index: Option<RawJson<'a>>,
    /// Members for the next chunk: at first all others of the reply, then those of every chunk.
    others: Vec<(Cow<'a, str>, RawJson<'a>)>,
    with_usage: bool,
}

impl<'a> ChunkWriter<'a> {
    fn new(dialect: Dialect, reply: RawJson<'a>, with_usage: bool) -> Option<Self> {
        let object = match dialect {
            Dialect::Chat => "chat.completion.chunk",
            Dialect::Completions => "text_completion",
            _ => return None,
        };
        let own = ["id", "object", "created", "model", "choices", "usage"];
        let others = reply
            .members()?
            .filter(|(name, _)| !own.contains(&&**name))
            .collect();
        let out = String::with_capacity(reply.as_str().len() * 2 + 1024);
        let [id, created, model] = ["id", "created", "model"].map(|name| reply.member(name));
        Some(Self {
            out,
            object,
            id,
            created,
            model,
            index: None,
            others,
            with_usage,
        })
    }

    /// Writes a chat's choice. `None` if it has a member that chunks cannot express.
    fn chat(&mut self, choice: RawJson<'a>) -> Option<()> {
        self.index = choice.member("index");
        let groups = beside(choice.member("logprobs"), choice.member("token_ids"));
        let deltas = deltas(choice.member("message")?, groups.len())?;
        let mut groups = groups.iter();
        for (at, delta) in deltas.objects.iter().enumerate() {
            let group = if at >= deltas.first_content {
                groups.next()
            } else {
                None
            };
            self.piece(("delta", delta), group);
        }
        for group in groups {
            self.piece(("delta", "{}"), Some(group));
        }
        self.end(choice, ("delta", "{}"));
        Some(())
    }

    fn completion(&mut self, choice: RawJson<'a>) {
        self.index = choice.member("index");
        let groups = beside(choice.member("logprobs"), choice.member("token_ids"));
        let pieces: Vec<_> = texts(
            choice.member("text").and_then(inside).unwrap_or_default(),
            groups.len(),
        )
        .collect();
        for at in 0..pieces.len().max(groups.len()) {
            let text = format!("\"{}\"", pieces.get(at).unwrap_or(&""));
            self.piece(("text", &text), groups.get(at));
        }
        self.end(choice, ("text", "\"\""));
    }

    /// Writes a chunk with a piece of the choice.
    fn piece(&mut self, member: (&str, &str), beside: Option<&PieceMetadata>) {
        self.choice(member, |one| {
            one.raw(
                "logprobs",
                beside
                    .and_then(|beside| beside.logprobs.as_deref())
                    .unwrap_or("null"),
            );
            one.raw("finish_reason", "null");
            if let Some(ids) = beside.and_then(|beside| beside.token_ids.as_deref()) {
                one.raw("token_ids", ids);
            }
        });
    }

    /// Writes the last chunk of a choice: its finish reason, and all members outside its pieces.
    fn end(&mut self, choice: RawJson<'a>, member: (&str, &str)) {
        self.choice(member, |one| {
            one.raw("logprobs", "null");
            one.some("finish_reason", choice.member("finish_reason"));
            for (name, value) in choice.members().into_iter().flatten() {
                match &*name {
                    "index" | "message" | "text" | "logprobs" | "finish_reason" => {}
                    "token_ids" if !is_empty_value(value.as_str()) => {}
                    name => one.raw(name, value.as_str()),
                }
            }
        });
    }

    fn choice(&mut self, member: (&str, &str), describe: impl FnOnce(&mut ObjectWriter<'_>)) {
        let mut text = String::with_capacity(member.1.len() + 128);
        text.push('[');
        let mut one = ObjectWriter::open(&mut text);
        one.some("index", self.index);
        one.raw(member.0, member.1);
        describe(&mut one);
        one.close();
        text.push(']');
        self.chunk(&text, "null");
    }

    fn chunk(&mut self, choices: &str, usage: &str) {
        self.out.push_str("data: ");
        let mut chunk = ObjectWriter::open(&mut self.out);
        chunk.some("id", self.id);
        chunk.text("object", self.object);
        chunk.some("created", self.created);
        chunk.some("model", self.model);
        chunk.raw("choices", choices);
        if self.with_usage {
            chunk.raw("usage", usage);
        }
        for (name, value) in &self.others {
            chunk.raw(name, value.as_str());
        }
        chunk.close();
        self.out.push_str("\n\n");
        self.others.retain(|(name, _)| STEADY.contains(&&**name));
    }
}
