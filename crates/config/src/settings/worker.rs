//! One worker, as configured.

use std::{
    num::{NonZeroU16, NonZeroU32},
    path::PathBuf,
    time::Duration,
};

use kv_blocks::{BlockSize, Role, Tier};

use crate::{Secret, WorkerTls};

/// One entry of section `workers`.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerEntry {
    /// Name: as configured, else `host:port` of the URL. Unique.
    pub name: String,
    /// Base URL, as [`crate::ConfigSource::check_url`] accepted it.
    pub url: String,
    /// Whether it was added at run time ([`crate::MoreWorker`]).
    pub found: bool,
    /// Kind of engine; `None` = probed.
    pub engine: Option<EngineKind>,
    /// The only models it serves; empty = those it lists.
    pub models: Vec<String>,
    /// Phases that it serves.
    pub role: Role,
    /// Relative share of load, above 0.
    pub weight: f64,
    /// Handling of Anthropic messages; `None` = probed.
    pub messages: Option<MessagesMode>,
    /// Key sent to the engine as a bearer token (`x-api-key` for type `anthropic`) in place of the
    /// client's.
    pub api_key: Option<Secret>,
    /// Tokens per KV block (its own, else `models.defaults.block_size`); `None` = probed.
    pub block_size: Option<BlockSize>,
    /// Data-parallel ranks; `None` = probed.
    pub dp_ranks: Option<NonZeroU32>,
    /// Port of its bootstrap server for decode workers; `None` = as its engine announces it.
    pub bootstrap_port: Option<NonZeroU16>,
    /// Certificate check, if its URL is `https`.
    pub tls: WorkerTls,
    /// Health check, where it differs from its type's.
    pub health_check: HealthCheck,
    /// Source of its KV events.
    pub kv_events: WorkerKvEvents,
    /// Tiers whose blocks count as cached.
    pub allow_tiers: Vec<Tier>,
}

/// `workers[].type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
    /// Any server with the OpenAI API.
    Openai,
    /// llama.cpp's server.
    Llamacpp,
    /// Ollama.
    Ollama,
    /// mlxcel.
    Mlxcel,
    /// LM Studio.
    Lmstudio,
    /// A Continuum router.
    Continuum,
    /// Anything else.
    Generic,
    /// Azure's OpenAI service.
    Azure,
    /// Anthropic's API, or a server with only that API.
    Anthropic,
    /// Google's API.
    Gemini,
}

/// `workers[].messages`: handling of a client's `/v1/messages` request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MessagesMode {
    /// Forwarded: the worker has the route.
    Native,
    /// Translated to an equivalent chat completion.
    #[default]
    Translate,
}

impl MessagesMode {
    /// Returns the word of the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Translate => "translate",
        }
    }
}

impl EngineKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Vllm,
        Self::Sglang,
        Self::Trtllm,
        Self::Openai,
        Self::Llamacpp,
        Self::Ollama,
        Self::Mlxcel,
        Self::Lmstudio,
        Self::Continuum,
        Self::Generic,
        Self::Azure,
        Self::Anthropic,
        Self::Gemini,
    ];

    /// Returns the word of the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Trtllm => "trtllm",
            Self::Openai => "openai",
            Self::Llamacpp => "llamacpp",
            Self::Ollama => "ollama",
            Self::Mlxcel => "mlxcel",
            Self::Lmstudio => "lmstudio",
            Self::Continuum => "continuum",
            Self::Generic => "generic",
            Self::Azure => "azure",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|engine| engine.as_str() == word)
    }
}

/// `workers[].health_check`: unset fields follow the worker's type.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthCheck {
    /// Path probed first.
    pub endpoint: Option<String>,
    /// Paths probed in order if the first one answers 404.
    pub fallback_endpoints: Option<Vec<String>>,
    /// Method of the probe; `None` = that of the type.
    pub method: Option<CheckMethod>,
    /// JSON body of a POST.
    pub body: Option<serde_json::Value>,
    /// Statuses that mean healthy; `None` = those of the type.
    pub accept_status: Option<Vec<u16>>,
    /// Statuses that mean "still loading".
    pub warmup_status: Vec<u16>,
    /// Time limit for one answer; `None` = `health_checks.timeout`.
    pub timeout: Option<Duration>,
}

/// `workers[].health_check.method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckMethod {
    /// GET
    Get,
    /// POST
    Post,
    /// HEAD
    Head,
}

/// `workers[].kv_events`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerKvEvents {
    /// Kind of stream.
    pub source: EventSource,
    /// Endpoint of the stream; `None` = announced by the engine, else the default port.
    pub endpoint: Option<String>,
    /// Endpoint for replays of missed events.
    pub replay_endpoint: ReplayEndpoint,
    /// Topic prefix (its own, else `kv_events.topic_filter`); other messages are ignored.
    pub topic: String,
    /// Whether the router listens at `endpoint` and the engine connects.
    pub bind: bool,
    /// File with the token for the stream's sender.
    pub token_file: Option<PathBuf>,
}

/// `workers[].kv_events.source`; `auto` is resolved if the endpoint determines the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// A ZMQ publisher, if the engine announces one or one is found.
    Auto,
    /// A ZMQ publisher.
    Zmq,
    /// Standard events, server-sent. Has an endpoint.
    Sse,
    /// Standard events in a WebSocket. Has an endpoint.
    Ws,
    /// TensorRT-LLM's list.
    Poll,
    /// A NATS subject. Has an endpoint.
    Nats,
    /// No stream: its cache is predicted from our own decisions.
    None,
}

/// `workers[].kv_events.replay_endpoint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayEndpoint {
    /// The endpoint that the engine announces.
    Auto,
    /// None: a gap is accepted.
    None,
    /// This one.
    At(String),
}
