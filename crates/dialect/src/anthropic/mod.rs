//! Translates Anthropic's messages into chat completions, and back: requests, replies, streams,
//! errors.
//!
//! For workers without `/v1/messages`; `chat` is the other direction, for workers that have nothing
//! else. A plain member without a counterpart in a chat is passed on unchanged; one that would
//! change the meaning of the request is reported by name ([`TranslatedRequest::untranslatable`]).
//!
//! **Invariant**: a translated stream ends with `message_stop` only if the worker's own stream
//! reached its end.

mod blocks;
mod chat;
mod error;
mod event;
mod reply;
mod request;
mod stream;
mod tools;

pub use chat::{
    ChatStream, CompletionOptions, chat_from_message, chat_to_messages, error_from_message,
};
pub use error::error_from_chat;
pub use reply::message_from_chat;
pub use request::{TranslatedRequest, messages_to_chat};
pub use stream::{ChunkOutcome, MessageStream};
