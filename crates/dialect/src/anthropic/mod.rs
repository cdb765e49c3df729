//! Anthropic's messages in the words of a chat completion, and back: requests, replies, streams, errors.
//!
//! For workers that have no `/v1/messages` of their own; in `chat` the other way, for those that have nothing else. What a chat has no word for is carried on as it stands where it
//! is a plain member, and refused by name where it would change what is asked ([`Translated::untranslatable`]).
//!
//! **Invariant**: a translated stream ends with `message_stop` only where the worker's own stream came to its end.

mod blocks;
mod chat;
mod error;
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
