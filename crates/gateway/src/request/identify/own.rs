//! Tokens by the model's own tokenizer, and where it may compute.

use std::{borrow::Cow, sync::Arc, time::Duration};

use dialect::{PromptPart, RawJson, Rendering, RequestView};
use net::Clock;
use prompt::{ChatRequest, PromptError, PromptModel};
use tokio::sync::Semaphore;

/// Longest computation on a runtime thread: beyond it the work moves to the blocking pool, so that no other stream waits.
/// A text may cost some ten times what is predicted (one word of many kilobytes), so this is well below what would hurt.
pub(super) const ON_RUNTIME: Duration = Duration::from_micros(500);

/// Long prompts tokenised at once, a seat each: the next waits its turn.
#[derive(Clone, Debug)]
pub(in crate::request) struct Seats(Arc<Semaphore>);

impl Seats {
    pub(super) fn new(seats: usize) -> Self {
        Self(Arc::new(Semaphore::new(seats)))
    }

    /// Does the work where its `cost`, as predicted, belongs. `None` if it panicked.
    pub(in crate::request) async fn run<T: Send + 'static>(
        &self,
        cost: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if cost <= ON_RUNTIME {
            return Some(work());
        }
        let seat = Arc::clone(&self.0).acquire_owned().await;
        let seated = move || {
            // Held by the work itself: it goes on when the client has left.
            let _seat = seat;
            work()
        };
        tokio::task::spawn_blocking(seated).await.ok()
    }
}

/// What so many bytes cost.
pub(in crate::request) fn cost_of(bytes: usize, per_byte: Duration) -> Duration {
    per_byte.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// What reading and rendering messages costs beside their bytes, about, by what opens in their text: a message, a part of
/// one, a tool.
const COST_PER_OBJECT: Duration = Duration::from_micros(2);

/// What the objects in a JSON text add to the cost of tokenising its bytes.
pub(in crate::request) fn cost_of_objects(text: &[u8]) -> Duration {
    cost_of(text.iter().filter(|byte| **byte == b'{').count(), COST_PER_OBJECT)
}

#[derive(Debug)]
pub(super) struct Tokenised {
    pub(super) tokens: Vec<u32>,
    pub(super) new_tokens: u32,
    pub(super) render_us: f64,
    pub(super) tokenize_us: f64,
}

/// The engine's token ids, or nothing where they cannot be told within the budget.
pub(super) fn tokenise(
    model: &PromptModel,
    view: &RequestView<'_>,
    budget: Duration,
    clock: Clock,
) -> Option<Tokenised> {
    // An engine that cuts prompts does it after tokenising, and by rules of its own.
    if view.rendering.truncate_prompt_tokens.is_some() {
        return None;
    }
    let started = clock.now();
    let (text, special) = match text_of(model, &view.prompt, &view.rendering, clock)? {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(why = error.word(), "the chat could not be rendered, going by its text");
            return None;
        }
    };
    if model.predicted_cost(text.len()) > budget && model.predicted_cost(model.new_bytes(&text, special)) > budget {
        return None;
    }
    let rendered = clock.now();
    let (tokens, new_tokens) = model.text_tokens_counted(&text, special).ok()?;
    let done = clock.now();
    Some(Tokenised {
        tokens,
        new_tokens,
        render_us: rendered.ms_since(started) * 1e3,
        tokenize_us: done.ms_since(rendered) * 1e3,
    })
}

/// The text that a chat or a prompt becomes, and whether the tokenizer adds its special tokens to it; `None` for a prompt
/// that is no text.
pub(in crate::request) fn text_of<'v>(
    model: &PromptModel,
    prompt: &'v PromptPart<'_>,
    rendering: &Rendering<'_>,
    clock: Clock,
) -> Option<Result<(Cow<'v, str>, bool), PromptError>> {
    match prompt {
        PromptPart::Messages(messages) => {
            // A template writes the special tokens itself; a plain prompt gets those of the tokenizer.
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
            Some(model.chat_text(&chat, clock.unix_s()).map(|text| (Cow::Owned(text), add_special_tokens)))
        }
        PromptPart::Text(text) => Some(Ok((Cow::Borrowed(&**text), rendering.add_special_tokens.unwrap_or(true)))),
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
        let files = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vllm-real/tiny-qwen");
        let read = |name: &str| std::fs::read(files.join(name)).expect("the fixture is there");
        let (tokenizer_json, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
        let artefacts =
            Artefacts { tokenizer_json: &tokenizer_json, tokenizer_config: Some(&config), chat_template: None };
        PromptModel::load(artefacts).expect("the fixture is a model's own files")
    }

    #[test]
    fn very_many_tiny_messages_are_too_much_for_a_runtime_thread_whatever_their_bytes_cost() {
        let messages = |count: usize| [r#"{"role":"user","content":"hi"}"#; 5_000][..count].join(",");
        assert!(cost_of_objects(messages(20).as_bytes()) < ON_RUNTIME);
        assert!(cost_of_objects(messages(5_000).as_bytes()) > ON_RUNTIME);
    }

    #[test]
    fn a_long_conversation_is_within_the_budget_by_what_is_new_in_it() {
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
            tokenise(&model, &view, budget, Clock::system())
                .map(|found| (found.tokens.len(), found.new_tokens as usize))
        };
        assert_eq!(tokens(&second, budget), None, "nothing of it is known");
        let (all, new) = tokens(&first, Duration::MAX).expect("time enough");
        assert_eq!(all, new);
        let (all, new) = tokens(&second, budget).expect("only the last turn is new");
        assert!(new < 40 && all > 1_000, "{new} of {all}");
    }
}
