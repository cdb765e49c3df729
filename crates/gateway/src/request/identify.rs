//! Stage 3: what the prompt is, in tokens if they can be had, else as text.
//!
//! Nothing here can fail a request: whatever goes wrong, the prompt is known by its text prefix, and the receipt says so.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use dialect::{Dialect, PromptPart, RawJson, RequestView};
use fleet::ModelArtefacts;
use kv_blocks::{HashScheme, PromptBlocks};
use net::Clock;
use prompt::{ChatRequest, PromptModel};
use routing::receipt::PromptSource;
use tokio::sync::Semaphore;

/// A prompt as the decision sees it.
#[derive(Debug)]
pub(crate) struct Identified {
    pub(crate) source: PromptSource,
    pub(crate) blocks: Option<PromptBlocks>,
    pub(crate) tokens: u32,
    /// Tokens that no earlier prompt had told.
    pub(crate) new_tokens: u32,
    /// Microseconds.
    pub(crate) render_us: f64,
    pub(crate) tokenize_us: f64,
}

/// What the stage needs beside the request.
#[derive(Clone, Debug)]
pub(crate) struct Identify {
    pub(crate) scheme: HashScheme,
    pub(crate) budget: Duration,
    pub(crate) clock: Clock,
    /// Long prompts tokenised at once, a seat each: the next waits its turn. More than there are cores would only slow each
    /// other down, and tokenizers keep tables for every thread they run on.
    pub(crate) seats: Arc<Semaphore>,
}

/// Longest computation on a runtime thread: beyond it the work moves to the blocking pool, so that no other stream waits.
/// A text may cost some ten times what is predicted (one word of many kilobytes), so this is well below what would hurt.
const ON_RUNTIME: Duration = Duration::from_micros(500);

impl Identify {
    /// Finds the prompt's identity. `bytes` is the body that `view` was read from.
    pub(crate) async fn run(
        &self,
        artefacts: &Arc<ModelArtefacts>,
        dialect: Dialect,
        bytes: &Bytes,
        view: &RequestView<'_>,
    ) -> Identified {
        if let PromptPart::TokenIds(ids) = &view.prompt {
            let blocks = PromptBlocks::of_tokens(self.scheme, ids.as_slice().into());
            return Identified::of(PromptSource::Given, blocks);
        }
        let model = artefacts.prompt.as_ref().filter(|model| model.predicted_cost(prompt_bytes(view)) <= self.budget);
        let Some(model) = model else { return self.by_text(view) };
        let tokenised = if model.predicted_cost(prompt_bytes(view)) <= ON_RUNTIME {
            tokenise(model, view, &self.clock)
        } else {
            let (model, bytes, clock) = (Arc::clone(model), bytes.clone(), self.clock);
            let seat = Arc::clone(&self.seats).acquire_owned().await;
            let work = move || {
                // Held by the work itself: it goes on when the client has left.
                let _seat = seat;
                dialect::view(dialect, &bytes).ok().and_then(|view| tokenise(&model, &view, &clock))
            };
            tokio::task::spawn_blocking(work).await.unwrap_or_default()
        };
        match tokenised {
            Some(Tokenised { tokens, new_tokens, render_us, tokenize_us }) => {
                let blocks = PromptBlocks::of_tokens(self.scheme, tokens.into());
                Identified { new_tokens, render_us, tokenize_us, ..Identified::of(PromptSource::Tokens, blocks) }
            }
            None => self.by_text(view),
        }
    }

    fn by_text(&self, view: &RequestView<'_>) -> Identified {
        let identity = match &view.prompt {
            PromptPart::Messages(messages) => {
                prompt::chat_identity(messages.as_str(), view.rendering.tools.map(RawJson::as_str))
            }
            PromptPart::Text(text) => prompt::text_identity(text),
            PromptPart::TokenIds(_) | PromptPart::Batch | PromptPart::None => {
                return Identified {
                    source: PromptSource::None,
                    blocks: None,
                    tokens: 0,
                    new_tokens: 0,
                    render_us: 0.0,
                    tokenize_us: 0.0,
                };
            }
        };
        Identified::of(PromptSource::TextPrefix, PromptBlocks::of_text(self.scheme, &identity))
    }
}

impl Identified {
    fn of(source: PromptSource, blocks: PromptBlocks) -> Self {
        let tokens = blocks.token_count();
        Self { source, tokens, new_tokens: tokens, blocks: Some(blocks), render_us: 0.0, tokenize_us: 0.0 }
    }
}

#[derive(Debug)]
struct Tokenised {
    tokens: Vec<u32>,
    new_tokens: u32,
    render_us: f64,
    tokenize_us: f64,
}

/// The engine's token ids, or nothing where they cannot be told.
fn tokenise(model: &PromptModel, view: &RequestView<'_>, clock: &Clock) -> Option<Tokenised> {
    let rendering = &view.rendering;
    // An engine that cuts prompts does it after tokenising, and by rules of its own.
    if rendering.truncate_prompt_tokens.is_some() {
        return None;
    }
    let started = clock.now();
    let text = match &view.prompt {
        PromptPart::Messages(messages) => {
            let chat = ChatRequest {
                messages: messages.as_str(),
                tools: rendering.tools.map(RawJson::as_str),
                documents: rendering.documents.map(RawJson::as_str),
                chat_template: rendering.chat_template.map(RawJson::as_str),
                chat_template_kwargs: rendering.chat_template_kwargs.map(RawJson::as_str),
                reasoning_effort: rendering.reasoning_effort.map(RawJson::as_str),
                add_generation_prompt: rendering.add_generation_prompt.unwrap_or(true),
                continue_final_message: rendering.continue_final_message.unwrap_or(false),
                add_special_tokens: rendering.add_special_tokens.unwrap_or(false),
            };
            match model.chat_text(&chat, clock.unix_s()) {
                Ok(text) => Cow::Owned(text),
                Err(error) => {
                    tracing::debug!(%error, "the chat could not be rendered, going by its text");
                    return None;
                }
            }
        }
        PromptPart::Text(text) => Cow::Borrowed(&**text),
        PromptPart::TokenIds(_) | PromptPart::Batch | PromptPart::None => return None,
    };
    let rendered = clock.now();
    let chat = matches!(view.prompt, PromptPart::Messages(_));
    // A chat template writes the special tokens itself; a plain prompt gets those of the tokenizer.
    let add_special_tokens = rendering.add_special_tokens.unwrap_or(!chat);
    let (tokens, new_tokens) = model.text_tokens_counted(&text, add_special_tokens).ok()?;
    let done = clock.now();
    Some(Tokenised {
        tokens,
        new_tokens,
        render_us: rendered.ms_since(started) * 1e3,
        tokenize_us: done.ms_since(rendered) * 1e3,
    })
}

/// Bytes that would be rendered and tokenised, about.
fn prompt_bytes(view: &RequestView<'_>) -> usize {
    match &view.prompt {
        PromptPart::Messages(messages) => {
            messages.as_str().len() + view.rendering.tools.map_or(0, |tools| tools.as_str().len())
        }
        PromptPart::Text(text) => text.len(),
        PromptPart::TokenIds(_) | PromptPart::Batch | PromptPart::None => 0,
    }
}
