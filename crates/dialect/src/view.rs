//! The fields of a request that routing reads, borrowed from its body.
//!
//! The body itself is forwarded as received; the view exists beside it and decides nothing. Fields
//! of an unknown form read as absent: the engine validates the request. The view rejects only
//! bodies that two parsers could read differently (bad JSON, a duplicate routing key) and requests
//! without a model.

mod body_fields;
mod error;
mod key;
mod media;
mod sampling;
mod spans;
mod transfer;

use std::borrow::Cow;

use self::body_fields::BodyFields;
pub use self::{error::ViewError, spans::MemberSpans, transfer::TransferFields};
use crate::{
    BodyCounts, ChatMessages,
    json::{self, PassedOn, RawJson},
};

/// The API in which a request is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/embeddings`, and other routes that compute texts in `input`, `messages` or `prompt`.
    Embeddings,
    /// `/v1/rerank`, `/v2/rerank`.
    Rerank,
    /// `/v1/score`.
    Score,
    /// `/v1/responses`.
    Responses,
    /// Anthropic's `/v1/messages`.
    Messages,
    /// vLLM's `/v1/chat/completions/batch`: several conversations in one request.
    ChatBatch,
    /// vLLM's `/inference/v1/generate`: token ids in, token ids out.
    TokenIds,
    /// SGLang's `/generate`.
    SglangGenerate,
}

impl Dialect {
    /// Returns whether a request may leave its model out: an engine of this API then uses its own.
    pub fn model_is_optional(self) -> bool {
        matches!(self, Self::TokenIds | Self::SglangGenerate)
    }

    /// Returns whether the reply is generated tokens.
    pub fn has_output(self) -> bool {
        !matches!(self, Self::Embeddings | Self::Rerank | Self::Score)
    }
}

/// The fields of a request that routing reads.
#[derive(Clone, Debug, Default)]
pub struct RequestView<'a> {
    /// The requested model, or the adapter of it; empty where the dialect allows none and the body
    /// has none.
    pub model: Cow<'a, str>,
    /// Whether the client wants an event stream.
    pub stream: bool,
    /// Whether the stream ends with the usage (`stream_options.include_usage`).
    pub include_usage: bool,
    /// The prompt that the engine has to prefill.
    pub prompt: PromptPart<'a>,
    /// Maximum number of output tokens: `max_completion_tokens`, else `max_tokens`; where these
    /// stand in `sampling_params`, the one of it.
    pub max_tokens: Option<u32>,
    /// Per-request counts, read so leniently that no notation hides any.
    pub counts: BodyCounts,
    /// Engine-side priority from the body.
    pub priority: Option<i64>,
    /// The salt that separates its blocks from those of other requests.
    pub cache_salt: Option<Cow<'a, str>>,
    /// Fields that may identify the session.
    pub session: SessionFields<'a>,
    /// Fields that change how a chat becomes text.
    pub rendering: Rendering<'a>,
    /// Fields that decide where the prompt's KV comes from.
    pub kv: KvFields,
    /// How well `prompt` represents what the engine computes.
    pub fidelity: Fidelity,
    /// The places of its members in the body.
    pub spans: MemberSpans,
}

/// How well the prompt in a view represents what the engine computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fidelity {
    /// The prompt is what the engine computes.
    #[default]
    Exact,
    /// The prompt only resembles it: its tokens cannot be computed here.
    Likeness,
}

/// Fields that change how the prompt becomes tokens; `None` if the body has none or `null`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rendering<'a> {
    /// Whether the chat ends with the lead-in of the reply (`add_generation_prompt`).
    pub add_generation_prompt: Option<bool>,
    /// Whether the last message stays open (`continue_final_message`).
    pub continue_final_message: Option<bool>,
    /// Whether the tokenizer adds its special tokens.
    pub add_special_tokens: Option<bool>,
    /// Number of last tokens to which the prompt is truncated.
    pub truncate_prompt_tokens: Option<i64>,
    /// Variables for the template.
    pub chat_template_kwargs: Option<RawJson<'a>>,
    /// The client's own template.
    pub chat_template: Option<RawJson<'a>>,
    /// Functions that the model may call.
    pub tools: Option<RawJson<'a>>,
    /// The function that the model must call.
    pub tool_choice: Option<RawJson<'a>>,
    /// Documents for templates that take them.
    pub documents: Option<RawJson<'a>>,
    /// The reasoning effort of the model.
    pub reasoning_effort: Option<RawJson<'a>>,
}

/// Fields that decide where the prompt's KV comes from.
#[derive(Clone, Copy, Debug, Default)]
pub struct KvFields {
    /// The fields of the client that control KV transfer between engines.
    pub transfer_fields: TransferFields,
    /// Whether the engine computes the prompt without a lookup in its own prefix cache: the client
    /// wants the logprobs of the prompt, or the engine gets its KV from elsewhere.
    pub skips_prefix_cache: bool,
}

/// Body fields that may identify a session.
#[derive(Clone, Debug, Default)]
pub struct SessionFields<'a> {
    /// `session_params.session_id`.
    pub params_session_id: Option<Cow<'a, str>>,
    /// `user`.
    pub user: Option<Cow<'a, str>>,
    /// `session_id`.
    pub session_id: Option<Cow<'a, str>>,
    /// `user_id`.
    pub user_id: Option<Cow<'a, str>>,
    /// `prompt_cache_key`: OpenAI's clients send it to reach the same cache.
    pub prompt_cache_key: Option<Cow<'a, str>>,
    /// `metadata.user_id`: in Claude Code's requests it contains the session.
    pub metadata_user_id: Option<Cow<'a, str>>,
}

impl SessionFields<'_> {
    /// Returns the first field that is present, in the order of contract V25; then the fields of
    /// agent clients.
    pub fn key(&self) -> Option<&str> {
        let in_contract = [
            &self.params_session_id,
            &self.user,
            &self.session_id,
            &self.user_id,
        ];
        let of_agents = [&self.prompt_cache_key, &self.metadata_user_id];
        in_contract
            .into_iter()
            .chain(of_agents)
            .find_map(Option::as_deref)
    }
}

/// The prompt in the form in which the client sent it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PromptPart<'a> {
    /// A chat: the value of `messages`, of any form.
    Messages(ChatMessages<'a>),
    /// One text.
    Text(Cow<'a, str>),
    /// One prompt of token ids.
    TokenIds(Vec<u32>),
    /// One prompt of token ids, some of which are placeholders.
    TokenIdsWithMedia {
        /// All token ids.
        ids: Vec<u32>,
        /// What the placeholders stand for.
        media: Vec<MediaPlaceholder<'a>>,
    },
    /// Several prompts in one request, with their total length.
    Batch {
        /// Bytes of JSON in the text prompts.
        text_bytes: usize,
        /// Token ids in the token prompts.
        ids: usize,
    },
    /// No prompt, or one of an unknown form.
    #[default]
    None,
}

/// An image, audio or video in a prompt of token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaPlaceholder<'a> {
    /// The hash of its content.
    pub identifier: Cow<'a, str>,
    /// The position of its first token.
    pub offset: u32,
    /// The number of its tokens.
    pub length: u32,
}

/// Reads `body`, which must be one JSON object in UTF-8 without a byte order mark.
///
/// ```
/// use dialect::{Dialect, PromptPart, view};
///
/// let body = br#"{"model": "qwen", "prompt": [1, 2, 3], "stream": true}"#;
/// let view = view(Dialect::Completions, body).unwrap();
/// assert_eq!(view.model, "qwen");
/// assert_eq!(view.prompt, PromptPart::TokenIds(vec![1, 2, 3]));
/// assert!(view.stream);
/// ```
pub fn view(dialect: Dialect, body: &[u8]) -> Result<RequestView<'_>, ViewError> {
    RequestBody::read(body, |_, _| {})?.view(dialect)
}

/// Reads `body`, which a translation wrote, as [`view()`] does, without a walk through the members
/// that it passed on.
pub fn view_of_translated<'a>(
    dialect: Dialect,
    body: &'a [u8],
    passed_on: &PassedOn,
) -> Result<RequestView<'a>, ViewError> {
    BodyFields::read_translated(object_text(body)?, passed_on)?.view(dialect)
}

/// A body whose members were read, and determine the dialect.
#[derive(Debug)]
pub struct RequestBody<'a>(BodyFields<'a>);

impl<'a> RequestBody<'a> {
    /// Reads `body` as [`view()`] does. Calls `each` for every member, with its name and value.
    pub fn read(body: &'a [u8], each: impl FnMut(&str, RawJson<'a>)) -> Result<Self, ViewError> {
        BodyFields::read(object_text(body)?, each).map(Self)
    }

    /// Returns the view in a dialect.
    pub fn view(&mut self, dialect: Dialect) -> Result<RequestView<'a>, ViewError> {
        self.0.view(dialect)
    }
}

/// Returns the text of a body that begins as an object.
fn object_text(body: &[u8]) -> Result<&str, ViewError> {
    let text = json::utf8(body).map_err(|at| ViewError::Utf8 { at })?;
    let opening = text.trim_start_matches([' ', '\n', '\r', '\t']);
    if !opening.starts_with('{') {
        json::whole(text)?;
        return Err(ViewError::NotAnObject);
    }
    Ok(text)
}
