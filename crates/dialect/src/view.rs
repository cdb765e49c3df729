//! The fields of a request that routing reads, borrowed from its body.
//!
//! The body itself is forwarded as received; the view exists beside it and decides nothing. Fields
//! of an unknown form read as absent: the engine validates the request. The view rejects only
//! bodies that two parsers could read differently (bad JSON, a duplicate routing key) and requests
//! without a model.

use std::borrow::Cow;

use crate::{
    ApiError, BodyCounts, ErrorCode,
    json::{self, JsonError, RawJson},
    prompts,
};

/// The API in which a request is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/embeddings`.
    Embeddings,
    /// `/v1/rerank`.
    Rerank,
    /// `/v1/score`.
    Score,
    /// `/v1/responses`.
    Responses,
    /// Anthropic's `/v1/messages`.
    Messages,
}

/// The fields of a request that routing reads.
#[derive(Clone, Debug, Default)]
pub struct RequestView<'a> {
    /// The requested model.
    pub model: Cow<'a, str>,
    /// Whether the client wants an event stream.
    pub stream: bool,
    /// Whether the stream ends with the usage (`stream_options.include_usage`).
    pub include_usage: bool,
    /// The prompt that the engine has to prefill.
    pub prompt: PromptPart<'a>,
    /// Maximum number of output tokens: `max_completion_tokens`, else `max_tokens`.
    pub max_tokens: Option<u32>,
    /// Number of completions.
    pub n: Option<u32>,
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
    /// A field that controls KV transfer between engines, if the client sent one (S43).
    pub transfer_field: Option<&'static str>,
    /// Whether the engine computes the prompt without a lookup in its own prefix cache: the client
    /// wants the logprobs of the prompt, or the engine gets its KV from elsewhere.
    pub skips_prefix_cache: bool,
    /// How well `prompt` represents what the engine computes.
    pub fidelity: Fidelity,
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
    Messages(RawJson<'a>),
    /// One text.
    Text(Cow<'a, str>),
    /// One prompt of token ids.
    TokenIds(Vec<u32>),
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

/// The reason why a body cannot be routed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// Not JSON, or JSON beyond the limits.
    #[error("the body is not valid json: {0}; send one json object in utf-8")]
    Json(#[from] JsonError),
    /// Not UTF-8.
    #[error("the body is not utf-8 from byte {at} on; send one json object in utf-8")]
    Utf8 {
        /// Offset of the first bad byte.
        at: usize,
    },
    /// JSON, but not an object.
    #[error(
        "the body is json but not an object; send an object with at least model and the prompt"
    )]
    NotAnObject,
    /// A key that routing reads occurs twice: engines differ in which one counts.
    #[error("the key {key:?} stands in the body twice; send it once")]
    DuplicateKey {
        /// The key.
        key: &'static str,
    },
    /// A required field is missing, or a field has a form that its engine does not read.
    #[error("{field} is missing or of the wrong form: expected {expected}")]
    Field {
        /// The field.
        field: &'static str,
        /// The expected form.
        expected: &'static str,
    },
    /// No model, or not a text.
    #[error("model is {found}, expected a non-empty string; name a model that /v1/models lists")]
    Model {
        /// The value in its place.
        found: &'static str,
    },
}

impl ViewError {
    /// Returns the code of the error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Json(_) | Self::Utf8 { .. } => ErrorCode::InvalidJson,
            Self::NotAnObject | Self::Field { .. } | Self::Model { .. } => {
                ErrorCode::InvalidRequest
            }
            Self::DuplicateKey { .. } => ErrorCode::DuplicateKey,
        }
    }

    /// Returns the field at fault, if there is one.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::DuplicateKey { key } => Some(key),
            Self::Field { field, .. } => Some(field),
            Self::Model { .. } => Some("model"),
            _ => None,
        }
    }
}

impl From<ViewError> for ApiError {
    fn from(error: ViewError) -> Self {
        let answer = Self::new(error.code(), error.to_string());
        match error.param() {
            Some(param) => answer.param(param),
            None => answer,
        }
    }
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
    let text = std::str::from_utf8(body).map_err(|error| ViewError::Utf8 {
        at: error.valid_up_to(),
    })?;
    let opening = text.trim_start_matches([' ', '\n', '\r', '\t']);
    if !opening.starts_with('{') {
        json::whole(text)?;
        return Err(ViewError::NotAnObject);
    }
    let fields = BodyFields::read(text)?;
    fields.into_view(dialect)
}

/// Declares the keys that routing reads: one list for their names and their places in
/// [`BodyFields`].
macro_rules! keys {
    ($($key:ident $name:literal)*) => {
        #[derive(Clone, Copy)]
        enum Key { $($key),* }

        impl Key {
            const COUNT: usize = [$(Self::$key),*].len();

            fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$key),)*
                    _ => None,
                }
            }

            const fn name(self) -> &'static str {
                match self {
                    $(Self::$key => $name,)*
                }
            }
        }
    };
}

// The last one is not read here yet: it controls where and how a request runs, so two of them are
// two readings.
keys! {
    Model "model"
    Messages "messages"
    Prompt "prompt"
    Stream "stream"
    StreamOptions "stream_options"
    MaxTokens "max_tokens"
    MaxCompletionTokens "max_completion_tokens"
    N "n"
    Stop "stop"
    Priority "priority"
    CacheSalt "cache_salt"
    SessionParams "session_params"
    User "user"
    SessionId "session_id"
    UserId "user_id"
    PromptCache "prompt_cache_key"
    Metadata "metadata"
    AddGenerationPrompt "add_generation_prompt"
    ContinueFinalMessage "continue_final_message"
    AddSpecialTokens "add_special_tokens"
    TruncatePromptTokens "truncate_prompt_tokens"
    ChatTemplateKwargs "chat_template_kwargs"
    ChatTemplate "chat_template"
    Tools "tools"
    ToolChoice "tool_choice"
    Documents "documents"
    ReasoningEffort "reasoning_effort"
    PromptLogprobs "prompt_logprobs"
    Logprobs "logprobs"
    Echo "echo"
    KvTransferParams "kv_transfer_params"
    EcTransferParams "ec_transfer_params"
    BootstrapHost "bootstrap_host"
    BootstrapPort "bootstrap_port"
    BootstrapRoom "bootstrap_room"
    Input "input"
    Query "query"
    Queries "queries"
    Items "items"
    Text1 "text_1"
    Text2 "text_2"
    LoraRequest "lora_request"
}

/// These fields name hosts and blocks of other engines: a client's values could reach the caches of
/// others.
const TRANSFER_FIELDS: [Key; 5] = [
    Key::KvTransferParams,
    Key::EcTransferParams,
    Key::BootstrapHost,
    Key::BootstrapPort,
    Key::BootstrapRoom,
];

/// The values of the routing keys in the body.
struct BodyFields<'a>([Option<RawJson<'a>>; Key::COUNT]);

impl<'a> BodyFields<'a> {
    fn read(text: &'a str) -> Result<Self, ViewError> {
        let mut found = [None; Key::COUNT];
        let mut twice = None;
        for member in json::members(text) {
            let (key, value) = member?;
            let Some(key) = Key::named(&json::decode(key)) else {
                continue;
            };
            if found[key as usize].replace(value).is_some() {
                twice = twice.or(Some(key));
            }
        }
        // Reported after the walk: a body that is not JSON at all reports that error first.
        match twice {
            Some(key) => Err(ViewError::DuplicateKey { key: key.name() }),
            None => Ok(Self(found)),
        }
    }

    /// Returns the value of a key; `null` counts as absent.
    fn get(&self, key: Key) -> Option<RawJson<'a>> {
        self.0[key as usize].filter(|value| !value.is_null())
    }

    fn into_view(self, dialect: Dialect) -> Result<RequestView<'a>, ViewError> {
        let count = |key| {
            self.integer(key)
                .and_then(|number| u32::try_from(number).ok())
        };
        let include_usage = self
            .get(Key::StreamOptions)
            .and_then(|it| it.member("include_usage"))
            .and_then(RawJson::flag);
        // An echoed prompt comes with the logprobs of its own tokens.
        let echoes = dialect == Dialect::Completions && self.flag(Key::Echo) == Some(true);
        let wants_prompt_logprobs = self.get(Key::PromptLogprobs).is_some()
            || (echoes && self.get(Key::Logprobs).is_some());
        Ok(RequestView {
            model: model(self.get(Key::Model))?,
            stream: self.flag(Key::Stream).unwrap_or(false),
            include_usage: include_usage.unwrap_or(false),
            prompt: self.prompt(dialect),
            max_tokens: count(Key::MaxCompletionTokens).or_else(|| count(Key::MaxTokens)),
            n: count(Key::N),
            counts: BodyCounts::of(self.get(Key::N), self.get(Key::Stop), self.lists(dialect)),
            priority: self.integer(Key::Priority),
            cache_salt: self.get(Key::CacheSalt).and_then(RawJson::string),
            session: self.session(),
            rendering: self.rendering(),
            transfer_field: TRANSFER_FIELDS
                .into_iter()
                .find(|key| self.get(*key).is_some())
                .map(Key::name),
            skips_prefix_cache: wants_prompt_logprobs || self.get(Key::KvTransferParams).is_some(),
            fidelity: Fidelity::Exact,
        })
    }

    fn flag(&self, key: Key) -> Option<bool> {
        self.get(key).and_then(RawJson::flag)
    }

    fn integer(&self, key: Key) -> Option<i64> {
        self.get(key).and_then(RawJson::integer)
    }

    fn prompt(&self, dialect: Dialect) -> PromptPart<'a> {
        match dialect {
            Dialect::Chat => self
                .get(Key::Messages)
                .map_or(PromptPart::None, PromptPart::Messages),
            Dialect::Completions => self
                .get(Key::Prompt)
                .map_or(PromptPart::None, prompts::of_completion),
            Dialect::Embeddings => self.computed([Key::Input, Key::Messages]),
            Dialect::Rerank => self.computed([Key::Query, Key::Documents]),
            Dialect::Score => self.computed([
                Key::Text1,
                Key::Text2,
                Key::Queries,
                Key::Documents,
                Key::Query,
                Key::Items,
            ]),
            // These fields come from the chat that represents the request.
            Dialect::Responses | Dialect::Messages => PromptPart::None,
        }
    }

    fn session(&self) -> SessionFields<'a> {
        SessionFields {
            params_session_id: self
                .get(Key::SessionParams)
                .and_then(|it| it.member("session_id"))
                .and_then(name),
            user: self.get(Key::User).and_then(name),
            session_id: self.get(Key::SessionId).and_then(name),
            user_id: self.get(Key::UserId).and_then(name),
            prompt_cache_key: self.get(Key::PromptCache).and_then(name),
            metadata_user_id: self
                .get(Key::Metadata)
                .and_then(|it| it.member("user_id"))
                .and_then(name),
        }
    }

    fn rendering(&self) -> Rendering<'a> {
        Rendering {
            add_generation_prompt: self.flag(Key::AddGenerationPrompt),
            continue_final_message: self.flag(Key::ContinueFinalMessage),
            add_special_tokens: self.flag(Key::AddSpecialTokens),
            truncate_prompt_tokens: self.integer(Key::TruncatePromptTokens),
            chat_template_kwargs: self.get(Key::ChatTemplateKwargs),
            chat_template: self.get(Key::ChatTemplate),
            tools: self.get(Key::Tools),
            tool_choice: self.get(Key::ToolChoice),
            documents: self.get(Key::Documents),
            reasoning_effort: self.get(Key::ReasoningEffort),
        }
    }

    /// Returns the fields that may contain several prompts.
    fn lists(&self, dialect: Dialect) -> impl Iterator<Item = (&'static str, RawJson<'a>)> {
        let keys: &[Key] = match dialect {
            Dialect::Chat | Dialect::Responses | Dialect::Messages => &[],
            Dialect::Completions => &[Key::Prompt],
            Dialect::Embeddings => &[Key::Input],
            Dialect::Rerank => &[Key::Documents],
            Dialect::Score => &[
                Key::Text1,
                Key::Text2,
                Key::Queries,
                Key::Documents,
                Key::Items,
            ],
        };
        keys.iter()
            .filter_map(|key| self.get(*key).map(|value| (key.name(), value)))
    }

    /// Returns the texts of a request without generation: they are load, and no prefix of anything.
    fn computed<const N: usize>(&self, keys: [Key; N]) -> PromptPart<'a> {
        prompts::computed(keys.into_iter().filter_map(|key| self.get(key)))
    }
}

fn model(value: Option<RawJson<'_>>) -> Result<Cow<'_, str>, ViewError> {
    let found = match value {
        None => "missing or null",
        Some(value) => match value.string() {
            Some(name) if !name.is_empty() => return Ok(name),
            Some(_) => "an empty string",
            None => "not a string",
        },
    };
    Err(ViewError::Model { found })
}

/// A string, or a number as written.
fn name(value: RawJson<'_>) -> Option<Cow<'_, str>> {
    let text = value.as_str();
    let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    if is_number {
        Some(Cow::Borrowed(text))
    } else {
        value.string().filter(|text| !text.is_empty())
    }
}
