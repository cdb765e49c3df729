//! One model's way from a request to token ids.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{
    Artefacts, ChatRequest, LoadError, TemplateSource,
    artefacts::{TokenizerConfig, digest},
    chat,
    template::ChatTemplates,
    tokenizer::{EncodedText, Tokenizer},
};

/// A tokenizer with its chat template. Made once per model and shared: every method takes `&self`.
#[derive(Debug)]
pub struct PromptModel {
    tokenizer: Tokenizer,
    /// Why there is none, if so.
    templates: Result<ChatTemplates, String>,
    template_source: TemplateSource,
    tokenizer_digest: String,
    template_digest: Option<String>,
    max_len: Option<u32>,
    /// Picoseconds a byte.
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

/// Why the engine's token ids cannot be told. None of it is a reason to refuse a generation: the engine has the last word.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The model has no template that works here.
    #[error("the model has no usable chat template: {0}")]
    NoTemplate(String),
    /// A field is not the JSON that it should be. What it is instead is not said: it may be the prompt.
    #[error("{field} is not readable: {found} at line {line} column {column}")]
    Json {
        /// The request's field.
        field: &'static str,
        /// What is wrong with it, in general.
        found: &'static str,
        /// Line in the field's text, from 1 on.
        line: usize,
        /// Column in that line, in bytes.
        column: usize,
    },
    /// The request asks for something whose tokens only the engine knows.
    #[error("{what} is not rendered here, only in the engine")]
    Unsupported {
        /// What it asks for.
        what: String,
    },
    /// The engine refuses the request too.
    #[error("{0}")]
    Refused(String),
    /// Nobody waits for the result any more; see [`CancelFlag`](crate::CancelFlag).
    #[error("the computation was cancelled")]
    Cancelled,
    /// The tokenizer library gave up.
    #[error("the text cannot be tokenised: {0}")]
    Tokenizer(String),
}

impl PromptError {
    /// Whether the engine would refuse the request as well. Otherwise only it can say.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Json { .. } | Self::Refused(_))
    }

    /// A word for it, for logs: the message may quote the request.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NoTemplate(_) => "no_template",
            Self::Json { .. } => "json",
            Self::Unsupported { .. } => "unsupported",
            Self::Refused(_) => "refused",
            Self::Cancelled => "cancelled",
            Self::Tokenizer(_) => "tokenizer",
        }
    }
}

/// A guess until [`PromptModel::set_cost`]: a desktop core with a plain build.
const UNMEASURED_COST_PS: u64 = 250_000;

impl PromptModel {
    /// Loads a model's files: up to seconds of computing for a large vocabulary. A template that does not compile does
    /// not fail the load, since plain prompts work without one; see [`Self::template_problem`].
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
            tokenizer,
            templates: ChatTemplates::compile(sources, config.special_tokens),
            template_source,
            tokenizer_digest: digest([artefacts.tokenizer_json]),
            template_digest,
            max_len: config.max_len,
            cost: AtomicU64::new(UNMEASURED_COST_PS),
        })
    }

    /// Renders a chat and tokenises it. `now_unix_s` is for templates that write today's date.
    pub fn chat_tokens(
        &self,
        chat: &ChatRequest<'_>,
        now_unix_s: i64,
    ) -> Result<RenderedChat, PromptError> {
        let text = self.chat_text(chat, now_unix_s)?;
        let tokens = self.text_tokens(&text, chat.add_special_tokens)?;
        Ok(RenderedChat { text, tokens })
    }

    /// Renders a chat: the cheap half of [`Self::chat_tokens`], after which the cost of the other half can be told.
    pub fn chat_text(
        &self,
        chat: &ChatRequest<'_>,
        now_unix_s: i64,
    ) -> Result<String, PromptError> {
        let templates = self
            .templates
            .as_ref()
            .map_err(|reason| PromptError::NoTemplate(reason.clone()))?;
        chat::render(templates, chat, now_unix_s)
    }

    /// Token ids of a text. Engines add special tokens to plain prompts and not to chats, unless told otherwise.
    pub fn text_tokens(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, PromptError> {
        self.tokenizer
            .encode(text, add_special_tokens)
            .map(|encoded| encoded.tokens)
    }

    /// As [`Self::text_tokens`], and how many of the tokens were not known from earlier texts: a turn of a conversation
    /// continues the turn before.
    pub fn text_tokens_counted(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<(Vec<u32>, u32), PromptError> {
        let EncodedText { tokens, new_tokens } = self.tokenizer.encode(text, add_special_tokens)?;
        Ok((tokens, u32::try_from(new_tokens).unwrap_or(u32::MAX)))
    }

    /// Whether the ids of text that is new are remembered for the next turn, as they are at first.
    pub fn take_new(&self, takes: bool) {
        self.tokenizer.take_new(takes);
    }

    /// Forgets the ids of text that was not met lately: at least half of what may be remembered.
    pub fn shrink(&self) {
        self.tokenizer.shrink();
    }

    /// Bytes of a text whose tokens are not known from earlier texts: what [`Self::predicted_cost`] is about. Looking that
    /// up costs little beside computing them.
    pub fn new_bytes(&self, text: &str, add_special_tokens: bool) -> usize {
        self.tokenizer.new_bytes(text, add_special_tokens)
    }

    /// The library that computes token ids: `fastokens`, or `tokenizers` where the other one cannot stand in for it.
    pub fn tokenizer_engine(&self) -> &'static str {
        self.tokenizer.engine()
    }

    /// How the comparison of the two libraries went at load: `ok`, `failed` (the ids differed, or it broke down since),
    /// or `skipped` (the fast one does not read this model's tokenizer).
    pub fn self_test(&self) -> &'static str {
        self.tokenizer.self_test()
    }

    /// Each token as the vocabulary spells it, which is not its text. An id that is not in the vocabulary has none.
    pub fn token_strings(&self, ids: &[u32]) -> Vec<Option<String>> {
        self.tokenizer.spellings(ids)
    }

    /// The text of token ids, special tokens included. Ids that are not in the vocabulary have no text.
    pub fn decode(&self, ids: &[u32]) -> Result<String, PromptError> {
        self.tokenizer.decode(ids)
    }

    /// Tells equal tokenizer files apart from others: 16 hex digits.
    pub fn tokenizer_digest(&self) -> &str {
        &self.tokenizer_digest
    }

    /// Tells equal templates apart from others: 16 hex digits. `None` without a template.
    pub fn template_digest(&self) -> Option<&str> {
        self.template_digest.as_deref()
    }

    /// Where the template came from.
    pub fn template_source(&self) -> TemplateSource {
        self.template_source
    }

    /// Why chats cannot be rendered, if they cannot.
    pub fn template_problem(&self) -> Option<&str> {
        self.templates.as_ref().err().map(String::as_str)
    }

    /// The longest prompt in tokens, where the files say.
    pub fn max_len(&self) -> Option<u32> {
        self.max_len
    }

    /// Sets what tokenising one byte costs on this machine, as the caller measured it. What is no positive number is
    /// not taken.
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

    /// What tokenising this many bytes will cost, about, if none of them is known. Rendering costs little beside it.
    pub fn predicted_cost(&self, bytes: usize) -> Duration {
        let picoseconds = self.cost.load(Relaxed).saturating_mul(bytes as u64);
        Duration::from_nanos(picoseconds / 1_000)
    }
}
