//! The other direction: chat completions for a worker that has only Anthropic's messages.

mod content;
mod reply;
mod request;
mod stream;

pub use reply::{chat_from_message, error_from_message};
pub use request::chat_to_messages;
pub use stream::{ChatStream, CompletionOptions};
