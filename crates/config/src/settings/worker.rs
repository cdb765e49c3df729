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
    /// Its name: as given, else `host:port` of the URL. Unique.
    pub name: String,
    /// Its base URL, as [`crate::Source::check_url`] accepted it.
    pub url: String,
    /// It came while the program ran ([`crate::MoreWorker`]).
    pub found: bool,
    /// What kind of engine it is; `None` = probed.
    pub engine: Option<EngineKind>,
    /// It serves only these models; empty = those it lists.
    pub models: Vec<String>,
    /// Which phase it serves.
    pub role: Role,
    /// Its share compared with the others, above 0.
    pub weight: f64,
    /// Whether it takes Anthropic's messages itself; `None` = asked.
    pub messages: Option<MessagesMode>,
    /// Sent to the engine as a bearer token (`x-api-key` for type `anthropic`) in place of the client's.
    pub api_key: Option<Secret>,
    /// Tokens per KV block (its own, else `models.defaults.block_size`); `None` = probed.
    pub block_size: Option<BlockSize>,
    /// Data-parallel ranks; `None` = probed.
    pub dp_ranks: Option<NonZeroU32>,
    /// Port of the server at which decode workers meet it; `None` = as its engine has it.
    pub bootstrap_port: Option<NonZeroU16>,
    /// Whom it must prove to be, where its URL is `https`.
    pub tls: WorkerTls,
    /// How this worker is checked, where it differs from its type.
    pub health_check: HealthCheck,
    /// Where its KV events come from.
    pub kv_events: WorkerKvEvents,
    /// Tiers whose blocks count as warm.
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
    /// Any server that speaks the OpenAI API.
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
    /// Anthropic's API, or a server that has only that.
    Anthropic,
    /// Google's API.
    Gemini,
}

/// `workers[].messages`: how a worker is asked for what a client asks of `/v1/messages`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MessagesMode {
    /// As the client did: it has the route.
    Native,
    /// By a chat completion that says the same.
    #[default]
    Translate,
}

impl MessagesMode {
    /// The configuration's word for it.
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

    /// The configuration's word for it.
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
    /// Path asked first.
    pub endpoint: Option<String>,
    /// Paths asked in order when the first one is answered 404.
    pub fallback_endpoints: Option<Vec<String>>,
    /// How the path is asked; `None` = as the type has it.
    pub method: Option<CheckMethod>,
    /// JSON body of a POST.
    pub body: Option<serde_json::Value>,
    /// Statuses that mean healthy; `None` = as the type has them.
    pub accept_status: Option<Vec<u16>>,
    /// Statuses that mean "still loading".
    pub warmup_status: Vec<u16>,
    /// Time for one answer; `None` = `health_checks.timeout`.
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
    /// Which kind of stream.
    pub source: EventSource,
    /// Where the stream is; `None` = asked of the engine, else the default port.
    pub endpoint: Option<String>,
    /// Where missed events can be asked for.
    pub replay_endpoint: ReplayEndpoint,
    /// Only messages whose topic starts with this (its own, else `kv_events.topic_filter`).
    pub topic: String,
    /// Listen at `endpoint` and let the engine connect.
    pub bind: bool,
    /// File with what the stream's sender wants to see.
    pub token_file: Option<PathBuf>,
}

/// `workers[].kv_events.source`, `auto` resolved where the endpoint says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// A ZMQ publisher, if the engine announces one or one is found.
    Auto,
    /// A ZMQ publisher.
    Zmq,
    /// Standard events, server-sent. There is an endpoint.
    Sse,
    /// Standard events in a WebSocket. There is an endpoint.
    Ws,
    /// TensorRT-LLM's list.
    Poll,
    /// A NATS subject. There is an endpoint.
    Nats,
    /// No stream: its cache is predicted from our own decisions.
    None,
}

/// `workers[].kv_events.replay_endpoint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayEndpoint {
    /// Whatever the engine announces.
    Auto,
    /// None: a gap is accepted.
    None,
    /// This one.
    At(String),
}
