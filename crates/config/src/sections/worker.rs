//! List `workers`: one worker, as configured.

use std::num::{NonZeroU16, NonZeroU32};

use kv_blocks::{BlockSize, Role, Tier};
use settings::{
    Range, Secret, ValueKind,
    kinds::{AUTO, int},
};

use super::{HealthCheck, WorkerKvEvents, WorkerTls};

settings::section! {
    /// One entry of list `workers`.
    #[derive(Clone, Debug, PartialEq)]
    pub optional struct WorkerEntry {
        /// Name of the worker in headers, logs and metrics. Unset: `host:port` of the URL. Unique.
        name: String = "~", live;
        /// Base URL of the worker. Required.
        url: String = "~" in ValueKind::WorkerUrl, live;
        /// Type of the engine. `auto`: found by probing.
        engine "type": Option<EngineKind> = "auto", live;
        /// Models that the worker serves. Empty: those that it lists.
        models: Vec<String> = "[]", live;
        /// Phases that the worker serves. `prefill`: it computes prompts for others and gets no
        /// whole request.
        role: Role = "unified", live;
        /// Relative share of the requests, under `least_loaded`, `random`, `weighted_round_robin`
        /// and `rendezvous_hash`.
        weight: f64 = "1.0" in ValueKind::Float(Range { min: 0.0, max: 1e6, open: true }), live;
        /// API for Anthropic messages at this worker. `native`: messages are sent unchanged.
        /// `translate`: they are sent as chat completions. `auto`: found by probing.
        messages: Option<MessagesMode> = "auto", live;
        /// Key that the engine gets as a bearer token (type `anthropic`: as `x-api-key`) in place
        /// of the client's.
        api_key: Option<Secret> = "~", live;
        /// Tokens per KV block. `auto`: `models.defaults.block_size`.
        block_size: Option<BlockSize> = "auto", live;
        /// Number of data-parallel ranks. `auto`: found by probing.
        dp_ranks: Option<NonZeroU32> = "auto" in ValueKind::WordOr(AUTO, &int(1, 4_096)), live;
        /// Port of a prefill worker's bootstrap server (`mooncake`, `sglang`). Unset: the engine's
        /// default.
        bootstrap_port: Option<NonZeroU16> = "~", live;
        /// Port of the P2P tier of a vLLM worker's first rank, from which other workers read blocks
        /// under `routing.fetch: vllm_p2p`; those of its other ranks follow. Unset: 5710, the
        /// engine's default.
        p2p_port: Option<NonZeroU16> = "~", live;
        /// Certificate checks of an `https://` worker.
        tls: WorkerTls, live;
        /// Health check, where it differs from that of the worker's type.
        health_check: HealthCheck, live;
        /// Source of the worker's KV events.
        kv_events: WorkerKvEvents, live;
        /// Tiers whose blocks count as warm.
        allow_tiers: Vec<Tier> = "[device, host, disk]", live;
    }
    with {
        /// Whether it was added at run time ([`crate::MoreWorker`]).
        pub found: bool;
    }
}

settings::words! {
    /// `workers[].type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum EngineKind {
        _ = "auto",
        /// vLLM.
        Vllm = "vllm",
        /// SGLang.
        Sglang = "sglang",
        /// TensorRT-LLM.
        Trtllm = "trtllm",
        /// Any server with the OpenAI API.
        Openai = "openai",
        /// llama.cpp's server.
        Llamacpp = "llamacpp",
        /// Ollama.
        Ollama = "ollama",
        /// mlxcel.
        Mlxcel = "mlxcel",
        /// LM Studio.
        Lmstudio = "lmstudio",
        /// A Continuum router.
        Continuum = "continuum" | "continuum-router",
        /// Anything else.
        Generic = "generic",
        /// Azure's OpenAI service.
        Azure = "azure",
        /// Anthropic's API, or a server with only that API.
        Anthropic = "anthropic",
        /// Google's API.
        Gemini = "gemini",
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
}

settings::words! {
    /// `workers[].messages`: handling of a client's `/v1/messages` request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum MessagesMode {
        _ = "auto",
        /// Forwarded: the worker has the route.
        Native = "native",
        /// Translated to an equivalent chat completion.
        #[default]
        Translate = "translate",
    }
}
