//! Converts a request's messages or text into the token ids that the engine will compute.
//!
//! The input are the bytes of a model's own files ([`Artefacts`]), the result is a [`PromptModel`]:
//! it renders chats as vLLM does and tokenises the result. It opens no file, calls no engine and
//! reads no clock. If it cannot determine the engine's ids it returns an error, and the caller
//! goes by the text.
//!
//! **Invariant**: no client input makes this crate panic, loop forever or grow without bound; every
//! failure is a value.

mod artefacts;
mod cancel;
mod chat;
mod conversation;
mod error;
mod estimate;
mod model;
mod salt_group;
mod shared_text;
mod template;
mod tokenizer;

pub use artefacts::{Artefacts, LoadError, TemplateSource};
pub use cancel::{CancelFlag, CancelGuard};
pub use chat::{ChatRequest, text_only};
pub use conversation::{ConversationMemory, ConversationTurn, RenderedTurn, TokenizedTurn};
pub use error::PromptError;
pub use estimate::estimate_tokens;
pub use model::{PromptModel, RenderedChat};
pub use salt_group::SaltGroup;
pub use tokenizer::sample_text;
