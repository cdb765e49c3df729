//! Tokens from the model's own tokenizer.

use std::{borrow::Cow, time::Duration};

use dialect::{PromptPart, RawJson, Rendering, RequestView};
use net::Clock;
use prompt::{ChatRequest, PromptError, PromptModel};

/// Returns the cost of `bytes` bytes.
pub fn cost_of(bytes: usize, per_byte: Duration) -> Duration {
    per_byte.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX))
}

#[derive(Debug)]
pub(crate) struct LocalTokens {
    pub(crate) tokens: Vec<u32>,
    pub(crate) new_tokens: u32,
    pub(crate) render_us: f64,
    pub(crate) tokenize_us: f64,
}

/// Returns the engine's token ids; `None` where they cannot be computed within the budget.
pub(crate) fn tokenize_locally(
    model: &PromptModel,
    view: &RequestView<'_>,
    budget: Duration,
    clock: Clock,
) -> Option<LocalTokens> {
    // An engine truncates prompts after tokenizing, by rules of its own.
    if view.rendering.truncate_prompt_tokens.is_some() {
        return None;
    }
    let started = clock.now();
    let (text, special) = match text_of(model, &view.prompt, &view.rendering, clock)? {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(
                why = error.word(),
                "the chat could not be rendered, going by its text"
            );
            return None;
        }
    };
    if model.predicted_cost(text.len()) > budget
        && model.predicted_cost(model.new_bytes(&text, special)) > budget
    {
        return None;
    }
    let rendered = clock.now();
    let (tokens, new_tokens) = model.text_tokens_counted(&text, special).ok()?;
    let done = clock.now();
    Some(LocalTokens {
        tokens,
        new_tokens,
        render_us: rendered.ms_since(started) * 1e3,
        tokenize_us: done.ms_since(rendered) * 1e3,
    })
}

/// Returns the text of a chat or a prompt, and whether the tokenizer adds its special tokens to it;
/// `None` for a prompt that is not text.
pub fn text_of<'v>(
    model: &PromptModel,
    prompt: &'v PromptPart<'_>,
    rendering: &Rendering<'_>,
    clock: Clock,
) -> Option<Result<(Cow<'v, str>, bool), PromptError>> {
    match prompt {
        PromptPart::Messages(messages) => {
            // A template writes the special tokens itself; a plain prompt gets those of the
            // tokenizer.
            let add_special_tokens = rendering.add_special_tokens.unwrap_or(false);
            let chat = ChatRequest {
                messages: messages.as_str(),
                tools: rendering.tools.map(RawJson::as_str),
                documents: rendering.documents.map(RawJson::as_str),
                chat_template: rendering.chat_template.map(RawJson::as_str),
                chat_template_kwargs: rendering.chat_template_kwargs.map(RawJson::as_str),
                reasoning_effort: rendering.reasoning_effort.map(RawJson::as_str),
                add_generation_prompt: rendering.add_generation_prompt.unwrap_or(true),
                continue_final_message: rendering.continue_final_message.unwrap_or(false),
                add_special_tokens,
            };
            Some(
                model
                    .chat_text(&chat, clock.unix_s())
                    .map(|text| (Cow::Owned(text), add_special_tokens)),
            )
        }
        PromptPart::Text(text) => Some(Ok((
            Cow::Borrowed(&**text),
            rendering.add_special_tokens.unwrap_or(true),
        ))),
        PromptPart::TokenIds(_) | PromptPart::Batch { .. } | PromptPart::None => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use dialect::{Dialect, view};
    use prompt::Artefacts;
    use serde_json::json;

    use super::*;

    fn model() -> PromptModel {
        let files = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures/vllm-real/tiny-qwen");
        let read = |name: &str| std::fs::read(files.join(name)).expect("the fixture is there");
        let (tokenizer_json, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
        let artefacts = Artefacts {
            tokenizer_json: &tokenizer_json,
            tokenizer_config: Some(&config),
            chat_template: None,
        };
        PromptModel::load(artefacts).expect("the fixture is a model's own files")
    }

    #[test]
    fn only_the_new_part_of_a_conversation_counts_against_the_time_budget() {
        let model = model();
        // A microsecond a byte: two thousand bytes fit.
        model.set_cost(1_000.0);
        let budget = Duration::from_millis(2);
        let long = json!({"role": "user", "content": "word ".repeat(1_000)});
        let first = json!({"model": "m", "messages": [long]}).to_string();
        let second = json!({"model": "m", "messages": [
            long, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and now?"}
        ]});
        let second = second.to_string();
        let tokens = |body: &str, budget: Duration| {
            let view = view(Dialect::Chat, body.as_bytes()).expect("the body is a chat");
            tokenize_locally(&model, &view, budget, Clock::system())
                .map(|found| (found.tokens.len(), found.new_tokens as usize))
        };
        assert_eq!(tokens(&second, budget), None, "nothing of it is known");
        let (all, new) = tokens(&first, Duration::MAX).expect("time enough");
        assert_eq!(all, new);
        let (all, new) = tokens(&second, budget).expect("only the last turn is new");
        assert!(new < 40 && all > 1_000, "{new} of {all}");
    }
}
