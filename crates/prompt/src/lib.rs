//! From a request's messages or text to the token ids that the engine will compute.
//!
//! Bytes of a model's own files come in ([`Artefacts`]), a [`PromptModel`] comes out: it renders chats as vLLM does and
//! tokenises the result. It opens no file, asks no engine and reads no clock. Where it cannot say the engine's ids it
//! answers an error, and the caller falls back to [`chat_identity`] or [`text_identity`].
//!
//! **Invariant**: nothing a client sends makes this crate panic, loop without end or grow without bound; every failure
//! is a value.

mod artefacts;
mod cancel;
mod chat;
mod identity;
mod model;
mod template;
mod tokenizer;

pub use artefacts::{Artefacts, LoadError, TemplateSource};
pub use cancel::{CancelFlag, CancelGuard};
pub use chat::{ChatRequest, text_only};
pub use identity::{chat_identity, estimate_tokens, text_identity};
pub use model::{PromptError, PromptModel, RenderedChat};
pub use tokenizer::sample_text;
