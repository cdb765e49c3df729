//! Joins a stream into the object of the same request without a stream.
//!
//! It reads chunks of chats and of completions. It does not check whether the reply is good:
//! [`super::check_reply`] does, on the joined object, as for whole replies.
//!
//! **Invariant**: an object comes only from a stream that ended with `[DONE]`, and contains all of
//! the stream's content.

mod write;

use super::{
    CacheableReply, NotCacheable,
    check::check_reply,
    partial::{PartialObject, PartialValue, is_empty_value},
    rules::{JoinRule, chat_choice, completion_choice},
};
use crate::{
    Dialect, SseEvent, SseSplitter, is_done,
    json::{self, RawJson},
};

/// The state between the events of one stream. It holds at most the content of the events: the
/// caller bounds them.
#[derive(Debug)]
pub struct StreamObject {
    dialect: Dialect,
    /// Members beside the choices and the usage.
    members: PartialObject,
    choices: PartialValue,
    usage: Option<String>,
    done: bool,
}

impl StreamObject {
    /// Returns the state at the start of a stream; `None` if streams of that dialect are not
    /// cached.
    pub fn new(dialect: Dialect) -> Option<Self> {
        matches!(dialect, Dialect::Chat | Dialect::Completions).then(|| Self {
            dialect,
            members: PartialObject::default(),
            choices: PartialValue::Null,
            usage: None,
            done: false,
        })
    }

    /// Joins a whole stream. `sse`: its bytes, in pieces cut anywhere.
    ///
    /// ```
    /// use dialect::{Dialect, StreamObject};
    ///
    /// let stream = [
    ///     &b"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hel\"}}]}\n\nda"[..],
    ///     b"ta: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"},\"finish_reason\":\"stop\"}]}\n\n",
    ///     b"data: [DONE]\n\n",
    /// ];
    /// let kept = StreamObject::read(Dialect::Chat, &stream).unwrap();
    /// let text = r#"{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"logprobs":null,"finish_reason":"stop"}]}"#;
    /// assert_eq!(String::from_utf8(kept.body).unwrap(), text);
    /// assert!(!kept.has_usage);
    /// ```
    ///
    /// # Errors
    ///
    /// If the reply may not be cached.
    pub fn read(dialect: Dialect, sse: &[&[u8]]) -> Result<CacheableReply, NotCacheable> {
        let mut object = Self::new(dialect).ok_or(NotCacheable::OtherDialect)?;
        let mut read = Ok(());
        let mut splitter = SseSplitter::new();
        let mut take = |event: SseEvent<'_>| {
            if read.is_ok() {
                read = match event {
                    SseEvent::Data { name, data } => object.push(name.as_deref(), &data),
                    SseEvent::Oversized => Err(NotCacheable::Unreadable),
                };
            }
        };
        for piece in sse {
            splitter.push(piece, &mut take);
        }
        splitter.finish(&mut take);
        read?;
        let end = sse
            .iter()
            .rev()
            .flat_map(|piece| piece.iter().rev())
            .skip_while(|byte| byte.is_ascii_whitespace());
        if object.done && !end.take(6).eq(b"]ENOD[") {
            // A comment: not an event, but also not the end that a good engine sends.
            return Err(NotCacheable::AfterDone);
        }
        object.finish()
    }

    /// Takes the next event: its name, if it has one, and its data.
    ///
    /// # Errors
    ///
    /// If the stream may not be cached: no later event changes that.
    pub fn push(&mut self, name: Option<&[u8]>, data: &[u8]) -> Result<(), NotCacheable> {
        match name {
            None | Some(b"" | b"message") => {}
            Some(b"error") => return Err(NotCacheable::ErrorInBand),
            Some(_) => return Err(NotCacheable::UnknownShape),
        }
        if self.done {
            return Err(NotCacheable::AfterDone);
        }
        if is_done(data) {
            self.done = true;
            return Ok(());
        }
        // A keep-alive event.
        if data.trim_ascii().is_empty() {
            return Ok(());
        }
        let chunk = std::str::from_utf8(data).map_err(|_| NotCacheable::Unreadable)?;
        let mut choices = None;
        self.members.begin();
        for member in json::members(chunk) {
            let (key, value) = member.map_err(|_| NotCacheable::Unreadable)?;
            match &*json::decode(key) {
                "choices" if choices.is_some() => return Err(NotCacheable::UnknownShape),
                "choices" => choices = Some(value),
                "error" if !is_empty_value(value.as_str()) => {
                    return Err(NotCacheable::ErrorInBand);
                }
                "object" => self.is_chunk(value)?,
                "usage" if value.is_null() => {}
                "usage" if value.members().is_none() => return Err(NotCacheable::UnknownShape),
                "usage" => self.usage = Some(value.as_str().to_owned()),
                // Padding that hides the length of chunks.
                "obfuscation" | "error" => {}
                name => self.members.first(name, value)?,
            }
        }
        let table = if self.dialect == Dialect::Chat {
            chat_choice
        } else {
            completion_choice
        };
        choices.map_or(Ok(()), |choices| {
            self.choices.join(choices, JoinRule::Indexed(table))
        })
    }

    /// Ends the stream; returns its content as one object.
    ///
    /// # Errors
    ///
    /// If the reply may not be cached.
    pub fn finish(self) -> Result<CacheableReply, NotCacheable> {
        if !self.done {
            return Err(NotCacheable::NotWhole);
        }
        let mut text = String::new();
        self.write(&mut text);
        let has_usage = check_reply(self.dialect, &text)?;
        let mut body = Vec::with_capacity(text.len());
        json::compact::compact(&text, &mut body);
        Ok(CacheableReply { body, has_usage })
    }

    fn is_chunk(&self, object: RawJson<'_>) -> Result<(), NotCacheable> {
        let name = object.string().unwrap_or_default();
        let known = if self.dialect == Dialect::Chat {
            "chat.completion"
        } else {
            "text_completion"
        };
        match &*name {
            "error" => Err(NotCacheable::ErrorInBand),
            name if name.is_empty() || name.starts_with(known) => Ok(()),
            _ => Err(NotCacheable::UnknownShape),
        }
    }
}
