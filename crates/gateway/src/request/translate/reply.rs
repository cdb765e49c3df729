//! Translates a worker's reply back into the client's dialect.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use dialect::{ChatStream, CompletionOptions, MessageStream};
use http::{HeaderValue, header, response::Parts};
use proxy::BodyBuffer;

use super::{
    super::{
        attempt_failure::{AttemptFailure, FinalError},
        body_budget::BufferedBody,
        dispatch::{BodyContent, BodyKind, CommittedReply},
    },
    stream::StreamTranslator,
};

/// Longest reply that is translated: the translation buffers all of it.
const LONGEST: usize = 16 * 1024 * 1024;

/// The translation of a reply.
#[derive(Clone, Debug)]
pub(in crate::request) enum ReplyTranslator {
    /// None: forwarded as received.
    AsItCame,
    /// A chat completion becomes a message.
    Message {
        model: Arc<str>,
        prompt_tokens: u32,
        request_id: Arc<str>,
    },
    /// A message becomes a chat completion.
    Chat {
        completion: CompletionOptions,
        request_id: Arc<str>,
    },
}

impl ReplyTranslator {
    /// Translates the reply; a stream stays in the worker's dialect, see [`Self::stream`]. `left`
    /// is the time limit for the rest of a long one. The translated reply counts beside `body`, the
    /// request's.
    pub(in crate::request) async fn reply(
        &self,
        committed: CommittedReply,
        left: Duration,
        body: &BufferedBody,
    ) -> Result<CommittedReply, AttemptFailure> {
        if matches!(self, Self::AsItCame) {
            return Ok(committed);
        }
        match tokio::time::timeout(left, Box::pin(self.translated(committed, body))).await {
            Ok(translated) => translated,
            Err(_) => Err(AttemptFailure::timeout(left)),
        }
    }
    /// Translates a failed attempt.
    pub(in crate::request) fn failure(&self, mut failure: AttemptFailure) -> AttemptFailure {
        if let FinalError::Pass(head, bytes) = &mut failure.reply
            && let Some(error) = self.error(head.status.as_u16(), bytes)
        {
            *bytes = error;
            is_json(head);
        }
        failure
    }

    /// Returns the translator for the events of a stream.
    pub(in crate::request) fn stream(&self) -> Option<StreamTranslator> {
        match self {
            Self::AsItCame => None,
            Self::Message {
                model,
                prompt_tokens,
                ..
            } => Some(StreamTranslator::Message(MessageStream::new(
                &**model,
                *prompt_tokens,
            ))),
            Self::Chat { completion, .. } => {
                Some(StreamTranslator::Chat(ChatStream::new(completion.clone())))
            }
        }
    }

    async fn translated(
        &self,
        committed: CommittedReply,
        body: &BufferedBody,
    ) -> Result<CommittedReply, AttemptFailure> {
        let CommittedReply { mut head, content } = committed;
        let ok = head.status.is_success();
        let bytes = match content {
            BodyContent::Begun {
                kind: BodyKind::Events,
                ..
            } if ok => return Ok(CommittedReply { head, content }),
            BodyContent::Switched(..) => return Ok(CommittedReply { head, content }),
            BodyContent::Whole(bytes) => bytes,
            BodyContent::Begun {
                first, mut rest, ..
            } => {
                let mut buffer = BodyBuffer::default();
                buffer.push(first);
                while let Some(data) = rest.next_data().await {
                    buffer.push(data.map_err(|_| unread("ended before its announced end"))?);
                    if buffer.len() > LONGEST {
                        return Err(unread("is longer than 16 MiB and cannot be translated"));
                    }
                }
                buffer.into_bytes()
            }
        };
        let translated = if ok {
            let whole = self.whole(&bytes);
            body.hold_reply(
                whole.ok_or_else(|| unread("is not in the words that it was asked in"))?,
            )
        } else {
            let error = self.error(head.status.as_u16(), &bytes);
            error.map_or(bytes, |error| body.hold_reply(error))
        };
        is_json(&mut head);
        Ok(CommittedReply {
            head,
            content: BodyContent::Whole(translated),
        })
    }

    /// Translates a whole reply; `None`: it is not one.
    fn whole(&self, bytes: &Bytes) -> Option<Bytes> {
        match self {
            Self::AsItCame => Some(bytes.clone()),
            Self::Message { model, .. } => {
                dialect::message_from_chat(bytes, model).map(Bytes::from)
            }
            Self::Chat { completion, .. } => {
                dialect::chat_from_message(bytes, &completion.model, completion.created)
                    .map(Bytes::from)
            }
        }
    }

    /// Translates an error of the worker; `None`: it stays unchanged.
    fn error(&self, status: u16, bytes: &[u8]) -> Option<Bytes> {
        match self {
            Self::AsItCame => None,
            Self::Message { request_id, .. } => {
                Some(dialect::error_from_chat(status, bytes, request_id).into())
            }
            Self::Chat { request_id, .. } => {
                Some(dialect::error_from_message(status, bytes, request_id).into())
            }
        }
    }
}

fn is_json(head: &mut Parts) {
    head.headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
}

fn unread(why: &str) -> AttemptFailure {
    AttemptFailure::protocol(format!("the worker's reply {why}: try again"))
}
