//! A prompt as the decision reads it.

use std::sync::Arc;

use dialect::{PromptPart, RequestView};
use kv_blocks::PromptBlocks;
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
pub(crate) fn identify_by_text(view: &RequestView<'_>) -> TokenizedPrompt {
    let identity = match &view.prompt {
        PromptPart::Messages(messages) => dialect::chat_identity(messages, view.rendering.tools),
        PromptPart::Text(text) => text.as_bytes().to_vec(),
        // Several prompts have no common prefix; their length still counts as load.
        PromptPart::Batch { text_bytes, ids } => {
            return TokenizedPrompt::without_blocks(batch_tokens(*text_bytes, *ids));
        }
        PromptPart::TokenIds(_) | PromptPart::TokenIdsWithMedia { .. } | PromptPart::None => {
            return TokenizedPrompt::without_blocks(0);
        }
    };
    TokenizedPrompt::of(PromptSource::TextPrefix, PromptBlocks::of_text(identity))
}

/// Returns about how many tokens several prompts have together.
fn batch_tokens(text_bytes: usize, ids: usize) -> u32 {
    estimate_tokens(text_bytes).saturating_add(u32::try_from(ids).unwrap_or(u32::MAX))
}

impl TokenizedPrompt {
    pub(crate) fn of(source: PromptSource, blocks: impl Into<Arc<PromptBlocks>>) -> Self {
        let blocks = blocks.into();
        let tokens = blocks.token_count();
        Self {
            source,
            tokens,
            new_tokens: tokens,
            blocks: Some(blocks),
            render_us: 0.0,
            tokenize_us: 0.0,
        }
    }

    /// A prompt of which only the length is needed, computed or estimated from the request.
    pub fn of_length(view: &RequestView<'_>) -> Self {
        let tokens = match &view.prompt {
            PromptPart::TokenIds(ids) | PromptPart::TokenIdsWithMedia { ids, .. } => {
                u32::try_from(ids.len()).unwrap_or(u32::MAX)
            }
            PromptPart::Batch { text_bytes, ids } => batch_tokens(*text_bytes, *ids),
            _ => estimate_tokens(prompt_bytes(view)),
        };
        let further = estimate_tokens(view.counts.further_bytes);
        Self::without_blocks(tokens).with_further(further)
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

impl TokenizedPrompt {
    /// Adds tokens that the engine computes beside this prompt.
    pub(crate) fn with_further(self, tokens: u32) -> Self {
        Self {
            tokens: self.tokens.saturating_add(tokens),
            new_tokens: self.new_tokens.saturating_add(tokens),
            ..self
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
        PromptPart::TokenIds(_)
        | PromptPart::TokenIdsWithMedia { .. }
        | PromptPart::Batch { .. }
        | PromptPart::None => 0,
    }
}

#[cfg(test)]
mod tests {
    use dialect::Dialect;
    use kv_blocks::PromptIdentity;

    use super::*;

    fn by_text(dialect: Dialect, body: &str) -> TokenizedPrompt {
        let view = dialect::view(dialect, body.as_bytes()).expect("a good body");
        identify_by_text(&view)
    }

    #[test]
    fn a_text_or_a_chat_is_identified_by_its_text_and_never_passes_for_tokens() {
        for (dialect, body) in [
            (
                Dialect::Completions,
                r#"{"model":"m","prompt":"some words"}"#,
            ),
            (
                Dialect::Chat,
                r#"{"model":"m","messages":[{"role":"user","content":"some words"}]}"#,
            ),
        ] {
            let found = by_text(dialect, body);
            let blocks = found.blocks.as_ref().expect("its text stands for it");
            assert_eq!(blocks.identity(), PromptIdentity::TextPrefix);
            assert_eq!(found.source, PromptSource::TextPrefix);
            assert!(found.tokens > 0 && found.new_tokens == found.tokens);
        }
    }

    #[test]
    fn several_prompts_have_a_length_and_no_blocks() {
        let ids = by_text(
            Dialect::Completions,
            r#"{"model":"m","prompt":[[1,2,3],[4,5]]}"#,
        );
        assert_eq!((ids.tokens, ids.blocks.is_none()), (5, true));
        let long = "a".repeat(4000);
        let body = format!(r#"{{"model":"m","prompt":["{long}","{long}"]}}"#);
        let texts = by_text(Dialect::Completions, &body);
        assert!(texts.blocks.is_none() && texts.tokens >= estimate_tokens(8000));
    }

    #[test]
    fn a_prompt_known_by_its_length_has_no_blocks_whatever_its_form() {
        let length = |dialect, body: &str| {
            let view = dialect::view(dialect, body.as_bytes()).expect("a good body");
            let prompt = TokenizedPrompt::of_length(&view);
            assert!(prompt.blocks.is_none() && prompt.source == PromptSource::None);
            assert_eq!(prompt.new_tokens, prompt.tokens);
            prompt.tokens
        };
        let text = "a".repeat(4000);
        for (dialect, fields, tokens) in [
            (Dialect::Completions, format!(r#""prompt":"{text}""#), 1000),
            (Dialect::Completions, r#""prompt":[7,8,9]"#.to_owned(), 3),
            (
                Dialect::Completions,
                r#""prompt":[[1,2,3],[4,5]]"#.to_owned(),
                5,
            ),
            (
                Dialect::Chat,
                format!(r#""messages":[{{"role":"user","content":"{text}"}}]"#),
                1008,
            ),
            (
                Dialect::ChatBatch,
                r#""messages":[[{"a":1}],[{"a":1}]]"#.to_owned(),
                6,
            ),
            (Dialect::Chat, r#""messages":null"#.to_owned(), 0),
        ] {
            let body = format!(r#"{{"model":"m",{fields}}}"#);
            assert_eq!(length(dialect, &body), tokens, "{body:.60}");
        }
    }

    #[test]
    fn the_tools_of_a_chat_count_among_the_bytes_of_its_prompt() {
        let bytes = |dialect, body: &str| {
            let view = dialect::view(dialect, body.as_bytes()).expect("a good body");
            prompt_bytes(&view)
        };
        let chat = r#"{"model":"m","messages":[]}"#;
        assert_eq!(bytes(Dialect::Chat, chat), "[]".len());
        let tools = r#"{"model":"m","messages":[],"tools":[{"type":"function"}]}"#;
        let both = "[]".len() + r#"[{"type":"function"}]"#.len();
        assert_eq!(bytes(Dialect::Chat, tools), both);
        assert_eq!(
            bytes(Dialect::Completions, r#"{"model":"m","prompt":"abc"}"#),
            3
        );
        assert_eq!(
            bytes(Dialect::Completions, r#"{"model":"m","prompt":[1]}"#),
            0
        );
    }
}
