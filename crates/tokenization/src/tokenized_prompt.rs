//! A prompt as the decision reads it.

use std::sync::Arc;

use dialect::{PromptPart, RawJson, RequestView};
use kv_blocks::{HashScheme, PromptBlocks};
use prompt::estimate_tokens;
use routing::receipt::PromptSource;

/// A prompt as the decision reads it.
#[derive(Debug)]
pub struct TokenizedPrompt {
    /// The source of its identity.
    pub source: PromptSource,
    /// Its blocks; `None`: they are unknown.
    pub blocks: Option<Arc<PromptBlocks>>,
    /// Its length in tokens, exact or estimated.
    pub tokens: u32,
    /// Tokens that no earlier prompt contained.
    pub new_tokens: u32,
    /// Time to render it, in microseconds.
    pub render_us: f64,
    /// Time to tokenize it, in microseconds.
    pub tokenize_us: f64,
}

/// Identifies a prompt by its text.
pub(crate) fn identify_by_text(scheme: HashScheme, view: &RequestView<'_>) -> TokenizedPrompt {
    let identity = match &view.prompt {
        PromptPart::Messages(messages) => {
            prompt::chat_identity(messages.as_str(), view.rendering.tools.map(RawJson::as_str))
        }
        PromptPart::Text(text) => prompt::text_identity(text),
        // Several prompts have no common prefix; their length still counts as load.
        PromptPart::Batch { text_bytes, ids } => {
            let ids = u32::try_from(*ids).unwrap_or(u32::MAX);
            return TokenizedPrompt::without_blocks(
                estimate_tokens(*text_bytes).saturating_add(ids),
            );
        }
        PromptPart::TokenIds(_) | PromptPart::None => return TokenizedPrompt::without_blocks(0),
    };
    TokenizedPrompt::of(
        PromptSource::TextPrefix,
        PromptBlocks::of_text(scheme, &identity),
    )
}

impl TokenizedPrompt {
    pub(crate) fn of(source: PromptSource, blocks: PromptBlocks) -> Self {
        let tokens = blocks.token_count();
        Self {
            source,
            tokens,
            new_tokens: tokens,
            blocks: Some(Arc::new(blocks)),
            render_us: 0.0,
            tokenize_us: 0.0,
        }
    }

    /// A prompt of about this many tokens without any known block.
    pub fn without_blocks(tokens: u32) -> Self {
        let source = PromptSource::None;
        Self {
            source,
            tokens,
            new_tokens: tokens,
            blocks: None,
            render_us: 0.0,
            tokenize_us: 0.0,
        }
    }
}

/// Returns about how many bytes would be rendered and tokenized.
pub(crate) fn prompt_bytes(view: &RequestView<'_>) -> usize {
    match &view.prompt {
        PromptPart::Messages(messages) => {
            messages.as_str().len() + view.rendering.tools.map_or(0, |tools| tools.as_str().len())
        }
        PromptPart::Text(text) => text.len(),
        PromptPart::TokenIds(_) | PromptPart::Batch { .. } | PromptPart::None => 0,
    }
}
