//! Converts requests into token ids for one model.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{
    Artefacts, ChatRequest, LoadError, PromptError, SaltGroup, TemplateSource,
    artefacts::{TokenizerConfig, digest},
    chat,
    template::ChatTemplates,
    tokenizer::{EncodedText, Tokenizer},
};

/// A tokenizer with its chat template. Built once per model and shared: every method takes `&self`.
#[derive(Debug)]
pub struct PromptModel {
    number: u64,
    tokenizer: Tokenizer,
    /// The templates, or the reason why there are none.
    templates: Result<ChatTemplates, String>,
    template_source: TemplateSource,
    tokenizer_digest: String,
    template_digest: Option<String>,
    max_len: Option<u32>,
    /// Picoseconds per byte.
    cost: AtomicU64,
}

/// A chat as the engine will see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedChat {
    /// The rendered text.
    pub text: String,
    /// Its token ids.
    pub tokens: Vec<u32>,
}

/// The number of the next model that is loaded.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// An estimate until [`PromptModel::set_cost`]: a desktop core with a plain build.
const UNMEASURED_COST_PS: u64 = 250_000;

impl PromptModel {
    /// Loads a model's files: this takes up to seconds of CPU time for a large vocabulary. A
    /// template that does not compile does not fail the load, since plain prompts work without one;
    /// see [`Self::template_problem`].
    pub fn load(artefacts: Artefacts<'_>) -> Result<Self, LoadError> {
        artefacts.check_sizes()?;
        let config = artefacts
            .tokenizer_config
            .map(TokenizerConfig::read)
            .transpose()?
            .unwrap_or_default();
        let tokenizer = Tokenizer::load(artefacts.tokenizer_json)?;
        let (sources, template_source) = match artefacts.chat_template {
            Some(template) => (
                vec![("default".to_owned(), template.to_owned())],
                TemplateSource::File,
            ),
            None if config.templates.is_empty() => (Vec::new(), TemplateSource::None),
            None => (config.templates, TemplateSource::TokenizerConfig),
        };
        let template_digest = (!sources.is_empty()).then(|| {
            digest(
                sources
                    .iter()
                    .flat_map(|(name, text)| [name.as_bytes(), b"\0", text.as_bytes(), b"\0"]),
            )
        });
        Ok(Self {
            number: NEXT_NUMBER.fetch_add(1, Relaxed),
            tokenizer,
            templates: ChatTemplates::compile(sources, config.special_tokens),
            template_source,
            tokenizer_digest: digest([artefacts.tokenizer_json]),
            template_digest,
            max_len: config.max_len,
            cost: AtomicU64::new(UNMEASURED_COST_PS),
        })
    }

    /// Renders a chat and tokenises it. `now_unix_s` is for templates that write the current date.
    pub fn chat_tokens(
        &self,
        chat: &ChatRequest<'_>,
        now_unix_s: i64,
    ) -> Result<RenderedChat, PromptError> {
        let text = self.chat_text(chat, now_unix_s)?;
        let tokens = self.text_tokens(&text, chat.add_special_tokens)?;
        Ok(RenderedChat { text, tokens })
    }

    /// Renders a chat: the cheap half of [`Self::chat_tokens`], after which the cost of the other
    /// half is known.
    pub fn chat_text(
        &self,
        chat: &ChatRequest<'_>,
        now_unix_s: i64,
    ) -> Result<String, PromptError> {
        chat::render(self.templates()?, chat, now_unix_s)
    }

    /// Returns a number that no other loaded model of this process has, whatever its files.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn templates(&self) -> Result<&ChatTemplates, PromptError> {
        self.templates
            .as_ref()
            .map_err(|reason| PromptError::NoTemplate(reason.clone()))
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns the token ids of a text. By default, engines add special tokens to plain prompts and
    /// not to chats.
    pub fn text_tokens(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, PromptError> {
        self.tokenizer
            .encode(SaltGroup::UNSALTED, text, add_special_tokens)
            .map(|encoded| encoded.tokens)
    }

    /// Returns the ids of [`Self::text_tokens`], and how many of them were not cached from earlier
    /// texts of the group: a turn of a conversation continues the turn before.
    pub fn text_tokens_counted(
        &self,
        group: SaltGroup,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<(Vec<u32>, u32), PromptError> {
        let EncodedText {
            tokens, new_tokens, ..
        } = self.tokenizer.encode(group, text, add_special_tokens)?;
        Ok((tokens, u32::try_from(new_tokens).unwrap_or(u32::MAX)))
    }

    /// Returns whether the next turn of a conversation can be tokenized from where it is new: the
    /// tokenizer's ids do not depend on what is before.
    pub fn continues_conversations(&self) -> bool {
        self.tokenizer.has_cuts()
    }

    /// Sets whether the ids of new text are cached for the next turn; initially they are.
    pub fn take_new(&self, takes: bool) {
        self.tokenizer.take_new(takes);
    }

    /// Evicts the ids of text without recent use: at least half of the cache's capacity.
    pub fn shrink(&self) {
        self.tokenizer.shrink();
    }

    /// Returns the bytes of a text without tokens cached for the group: the input of [`Self::predicted_cost`].
    /// The lookup costs little compared with the tokenization.
    pub fn new_bytes(&self, group: SaltGroup, text: &str, add_special_tokens: bool) -> usize {
        self.tokenizer.new_bytes(group, text, add_special_tokens)
    }

    /// Returns the library that computes token ids: `fastokens`, or `tokenizers` if the other one
    /// cannot replace it.
    pub fn tokenizer_engine(&self) -> &'static str {
        self.tokenizer.engine()
    }

    /// Returns the result of the comparison of the two libraries at load: `ok`, `failed` (the ids
    /// differed, or it failed since), or `skipped` (the fast one does not support this model's
    /// tokenizer).
    pub fn self_test(&self) -> &'static str {
        self.tokenizer.self_test()
    }

    /// Returns each token as the vocabulary spells it, which is not its text. `None` for an id
    /// outside the vocabulary.
    pub fn token_strings(&self, ids: &[u32]) -> Vec<Option<String>> {
        self.tokenizer.spellings(ids)
    }

    /// Returns the text of token ids, special tokens included. Ids outside the vocabulary have no
    /// text.
    pub fn decode(&self, ids: &[u32]) -> Result<String, PromptError> {
        self.tokenizer.decode(ids)
    }

    /// Returns a digest of the tokenizer file: 16 hex digits.
    pub fn tokenizer_digest(&self) -> &str {
        &self.tokenizer_digest
    }

    /// Returns a digest of the templates: 16 hex digits. `None` without a template.
    pub fn template_digest(&self) -> Option<&str> {
        self.template_digest.as_deref()
    }

    /// Returns the source of the template.
    pub fn template_source(&self) -> TemplateSource {
        self.template_source
    }

    /// Returns the reason why chats cannot be rendered, if there is one.
    pub fn template_problem(&self) -> Option<&str> {
        self.templates.as_ref().err().map(String::as_str)
    }

    /// Returns the maximum prompt length in tokens, if the files have it.
    pub fn max_len(&self) -> Option<u32> {
        self.max_len
    }

    /// Sets the cost of tokenising one byte on this machine, as the caller measured it. A value
    /// that is not a positive number is ignored.
    pub fn set_cost(&self, ns_per_byte: f64) {
        if !(ns_per_byte.is_finite() && ns_per_byte > 0.0) {
            return;
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the cast saturates, as it should"
        )]
        self.cost.store((ns_per_byte * 1e3) as u64, Relaxed);
    }

    /// Returns the approximate cost of tokenising this many bytes without cached tokens. Rendering
    /// costs little beside it.
    pub fn predicted_cost(&self, bytes: usize) -> Duration {
        let picoseconds = self.cost.load(Relaxed).saturating_mul(bytes as u64);
        Duration::from_nanos(picoseconds / 1_000)
    }
}
