//! Tokens from the model's own tokenizer.

use std::{borrow::Cow, sync::Arc, time::Duration};

use dialect::{PromptPart, RawJson, Rendering, RequestView};
use kv_blocks::{HashScheme, PromptBlocks};
use net::Clock;
use prompt::{
    ChatRequest, ConversationMemory, ConversationTurn, PromptError, PromptModel, SaltGroup,
};

/// Factor by which a conversation may exceed the budget if its new part is within the budget.
const MOSTLY_KNOWN: u32 = 32;
/// Longest part of a conversation, in bytes, that is rendered to find out how much of its text is
/// new, at some 5 ns a byte.
const LONGEST_RENDERED: usize = 1 << 20;

/// Returns the cost of `bytes` bytes.
pub fn cost_of(bytes: usize, per_byte: Duration) -> Duration {
    per_byte.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// A prompt's tokens, and the time that they took.
#[derive(Debug)]
pub(crate) struct LocalTokens {
    pub(crate) blocks: Arc<PromptBlocks>,
    pub(crate) new_tokens: u32,
    pub(crate) render_us: f64,
    pub(crate) tokenize_us: f64,
}

/// The reason why there are no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTokens {
    /// More of the prompt is new than the budget covers.
    OverBudget,
    /// They cannot be computed here.
    Unknown,
}

/// A model's tokenizer with the time that a prompt may take.
#[derive(Clone, Debug)]
pub(crate) struct LocalTokenizer {
    pub(crate) model: Arc<PromptModel>,
    pub(crate) conversations: Arc<ConversationMemory>,
    pub(crate) scheme: HashScheme,
    pub(crate) budget: Duration,
    pub(crate) clock: Clock,
}

impl LocalTokenizer {
    /// Returns whether the prompt may be within the budget: it is short, or its beginning is known.
    pub(crate) fn may_fit(&self, view: &RequestView<'_>, bytes: usize) -> bool {
        let is_known = || match &view.prompt {
            PromptPart::Messages(messages) => {
                let group = group_of(view);
                self.conversations
                    .may_know(&self.model, group, messages.as_str())
            }
            _ => false,
        };
        self.may_render(bytes) || !self.budget.is_zero() && is_known()
    }

    /// Returns the engine's token ids.
    pub(crate) fn tokenize(&self, view: &RequestView<'_>) -> Result<LocalTokens, NoTokens> {
        // An engine truncates prompts after tokenizing, by rules of its own.
        if view.rendering.truncate_prompt_tokens.is_some() {
            return Err(NoTokens::Unknown);
        }
        match &view.prompt {
            PromptPart::Messages(messages) => {
                let chat = chat_request(messages.raw(), &view.rendering);
                self.tokenize_chat(group_of(view), chat)
            }
            PromptPart::Text(text) => {
                let special = view.rendering.add_special_tokens.unwrap_or(true);
                self.tokenize_text(group_of(view), text, special)
            }
            PromptPart::TokenIds(_)
            | PromptPart::TokenIdsWithMedia { .. }
            | PromptPart::Batch { .. }
            | PromptPart::None => Err(NoTokens::Unknown),
        }
    }

    fn tokenize_chat(
        &self,
        group: SaltGroup,
        chat: ChatRequest<'_>,
    ) -> Result<LocalTokens, NoTokens> {
        let started = self.clock.now();
        let turn = ConversationTurn::find(&self.model, &self.conversations, group, chat);
        if !self.may_render(turn.new_bytes()) {
            return Err(NoTokens::OverBudget);
        }
        let turn = turn.render(self.clock.unix_s()).map_err(|error| {
            tracing::debug!(
                why = error.word(),
                "the chat could not be rendered, going by its text"
            );
            NoTokens::Unknown
        })?;
        if !self.is_within_budget(turn.rest_bytes()) && !self.is_within_budget(turn.new_bytes()) {
            return Err(NoTokens::OverBudget);
        }
        let rendered = self.clock.now();
        let turn = turn.tokenize(self.scheme).map_err(|_| NoTokens::Unknown)?;
        Ok(LocalTokens {
            blocks: turn.blocks,
            new_tokens: turn.new_tokens,
            render_us: rendered.ms_since(started) * 1e3,
            tokenize_us: self.clock.now().ms_since(rendered) * 1e3,
        })
    }

    fn tokenize_text(
        &self,
        group: SaltGroup,
        text: &str,
        special: bool,
    ) -> Result<LocalTokens, NoTokens> {
        if !self.is_within_budget(text.len())
            && !self.is_within_budget(self.model.new_bytes(group, text, special))
        {
            return Err(NoTokens::OverBudget);
        }
        let started = self.clock.now();
        let (tokens, new_tokens) = self
            .model
            .text_tokens_counted(group, text, special)
            .map_err(|_| NoTokens::Unknown)?;
        Ok(LocalTokens {
            blocks: Arc::new(PromptBlocks::of_tokens(self.scheme, tokens.into())),
            new_tokens,
            render_us: 0.0,
            tokenize_us: self.clock.now().ms_since(started) * 1e3,
        })
    }

    fn is_within_budget(&self, bytes: usize) -> bool {
        self.model.predicted_cost(bytes) <= self.budget
    }

    /// Returns whether this many bytes are rendered, although only a part of their text may be new.
    fn may_render(&self, bytes: usize) -> bool {
        let cost = self.model.predicted_cost(bytes);
        cost <= self.budget
            || cost <= self.budget.saturating_mul(MOSTLY_KNOWN) && bytes <= LONGEST_RENDERED
    }
}

/// Returns the group of requests with which a request shares remembered work.
fn group_of(view: &RequestView<'_>) -> SaltGroup {
    SaltGroup::of(view.cache_salt.as_deref())
}

fn chat_request<'v>(messages: RawJson<'v>, rendering: &Rendering<'v>) -> ChatRequest<'v> {
    ChatRequest {
        messages: messages.as_str(),
        tools: rendering.tools.map(RawJson::as_str),
        documents: rendering.documents.map(RawJson::as_str),
        chat_template: rendering.chat_template.map(RawJson::as_str),
        chat_template_kwargs: rendering.chat_template_kwargs.map(RawJson::as_str),
        reasoning_effort: rendering.reasoning_effort.map(RawJson::as_str),
        add_generation_prompt: rendering.add_generation_prompt.unwrap_or(true),
        continue_final_message: rendering.continue_final_message.unwrap_or(false),
        // A template writes the special tokens itself; a plain prompt gets those of the tokenizer.
        add_special_tokens: rendering.add_special_tokens.unwrap_or(false),
    }
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
            let chat = chat_request(messages.raw(), rendering);
            let add_special_tokens = chat.add_special_tokens;
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
        PromptPart::TokenIds(_)
        | PromptPart::TokenIdsWithMedia { .. }
        | PromptPart::Batch { .. }
        | PromptPart::None => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use dialect::{Dialect, view};
    use prompt::Artefacts;
    use serde_json::json;

    use super::*;

    fn model() -> Arc<PromptModel> {
        let files = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures/vllm-real/tiny-qwen");
        let read = |name: &str| std::fs::read(files.join(name)).expect("the fixture is there");
        let (tokenizer_json, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
        let artefacts = Artefacts {
            tokenizer_json: &tokenizer_json,
            tokenizer_config: Some(&config),
            chat_template: None,
        };
        Arc::new(PromptModel::load(artefacts).expect("the fixture is a model's own files"))
    }

    fn tokenizer(model: &Arc<PromptModel>, budget: Duration) -> LocalTokenizer {
        LocalTokenizer {
            model: Arc::clone(model),
            conversations: Arc::default(),
            scheme: HashScheme::default(),
            budget,
            clock: Clock::system(),
        }
    }

    /// Returns all tokens of a chat and the new ones.
    fn tokens(tokenizer: &LocalTokenizer, body: &str) -> Result<(usize, usize), NoTokens> {
        let view = view(Dialect::Chat, body.as_bytes()).expect("the body is a chat");
        tokenizer.tokenize(&view).map(|found| {
            (
                found.blocks.token_count() as usize,
                found.new_tokens as usize,
            )
        })
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
        let short = tokenizer(&model, budget);
        let patient = LocalTokenizer {
            budget: Duration::MAX,
            ..short.clone()
        };
        let unknown = tokens(&short, &second);
        assert_eq!(unknown, Err(NoTokens::OverBudget), "nothing of it is known");
        let (all, new) = tokens(&patient, &first).expect("time enough");
        assert_eq!(all, new);
        let (all, new) = tokens(&short, &second).expect("only the last turn is new");
        assert!(new < 40 && all > 1_000, "{new} of {all}");
    }

    #[test]
    fn the_next_turn_of_a_known_conversation_of_a_megabyte_is_exact_within_the_budget() {
        let model = model();
        model.set_cost(1_000.0);
        let short = tokenizer(&model, Duration::from_millis(2));
        let patient = LocalTokenizer {
            budget: Duration::MAX,
            ..short.clone()
        };
        let mut messages: Vec<_> = (0..420)
            .map(|turn| {
                let role = ["user", "assistant"][turn % 2];
                json!({"role": role, "content": format!("{turn} {}", "word ".repeat(500))})
            })
            .collect();
        let body = |messages: &[serde_json::Value]| {
            json!({"model": "m", "messages": messages}).to_string()
        };
        let first = body(&messages);
        assert!(first.len() > 1 << 20);
        assert_eq!(tokens(&short, &first), Err(NoTokens::OverBudget));
        let (all, new) = tokens(&patient, &first).expect("time enough");
        assert_eq!(all, new);
        messages.push(json!({"role": "user", "content": "and now?"}));
        let (longer, new) = tokens(&short, &body(&messages)).expect("it is known");
        assert!(new < 40 && longer > all, "{new} of {longer}");
    }
}
