//! The other way: a chat completion asked of a worker that has Anthropic's messages only.

mod content;
mod reply;
mod request;
mod stream;

pub use reply::{chat_from_message, error_from_message};
pub use request::chat_to_messages;
pub use stream::{ChatStream, CompletionOptions};
