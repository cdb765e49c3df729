//! A worker's reply in the words of the client.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use dialect::MessageStream;
use http::{HeaderValue, header, response::Parts};

use super::super::dispatch::{self, BodyKind, Committed, Content, Failure, Held, LastWord};

/// Longest reply that is put into other words: all of it is held while that is done.
const LONGEST: usize = 16 * 1024 * 1024;

/// How a reply comes into the client's words.
#[derive(Clone, Debug)]
pub(in crate::request) enum Back {
    /// As it came.
    AsItCame,
    /// A chat completion becomes a message.
    Message { model: Arc<str>, prompt_tokens: u32, request_id: Arc<str> },
}

impl Back {
    pub(super) fn message(model: Arc<str>, prompt_tokens: u32, request_id: Arc<str>) -> Self {
        Self::Message { model, prompt_tokens, request_id }
    }

    /// The reply, of which a stream is still in the worker's words: see [`Self::stream`]. `left` is the time for the rest of
    /// one that is long.
    pub(in crate::request) async fn reply(&self, committed: Committed, left: Duration) -> Result<Committed, Failure> {
        let Self::Message { model, request_id, .. } = self else { return Ok(committed) };
        match tokio::time::timeout(left, translated(committed, model, request_id)).await {
            Ok(translated) => translated,
            Err(_) => Err(Failure::timeout(left)),
        }
    }
    /// What is left of an attempt that failed.
    pub(in crate::request) fn failure(&self, mut failure: Failure) -> Failure {
        if let (Self::Message { request_id, .. }, LastWord::Pass(head, bytes)) = (self, &mut failure.reply) {
            *bytes = Bytes::from(dialect::error_from_chat(head.status.as_u16(), bytes, request_id));
            is_json(head);
        }
        failure
    }

    /// What puts the events of a stream into the client's words.
    pub(in crate::request) fn stream(&self) -> Option<MessageStream> {
        match self {
            Self::AsItCame => None,
            Self::Message { model, prompt_tokens, .. } => Some(MessageStream::new(&**model, *prompt_tokens)),
        }
    }
}

async fn translated(committed: Committed, model: &str, request_id: &str) -> Result<Committed, Failure> {
    let Committed { mut head, content } = committed;
    let ok = head.status.is_success();
    let bytes = match content {
        Content::Begun { kind: BodyKind::Events, .. } if ok => return Ok(Committed { head, content }),
        Content::Whole(bytes) => bytes,
        Content::Begun { first, mut rest, .. } => {
            let mut held = Held::default();
            held.push(first);
            while let Some(data) = dispatch::next_data(&mut rest).await {
                held.push(data.map_err(|_| unread("ended before its announced end"))?);
                if held.len() > LONGEST {
                    return Err(unread("is longer than 16 MiB and cannot become a message"));
                }
            }
            held.into_bytes()
        }
    };
    let translated = if ok {
        dialect::message_from_chat(&bytes, model).ok_or_else(|| unread("is no chat completion"))?
    } else {
        dialect::error_from_chat(head.status.as_u16(), &bytes, request_id)
    };
    is_json(&mut head);
    Ok(Committed { head, content: Content::Whole(translated.into()) })
}

fn is_json(head: &mut Parts) {
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
}

fn unread(why: &str) -> Failure {
    Failure::protocol(format!("the worker's reply {why}: try again"))
}
