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
        /// Its name in headers, logs and metrics; unset = `host:port` of the URL. Unique.
        name: String = "~", live;
        /// Its base URL. Required.
        url: String = "~" in ValueKind::WorkerUrl, live;
        /// What kind of engine it is; `auto` = found out by asking it.
        engine "type": Option<EngineKind> = "auto", live;
        /// It serves only these models; empty = those it lists.
        models: Vec<String> = "[]", live;
        /// Which phases it serves: `prefill` computes prompts for others and gets no whole request.
        role: Role = "unified", live;
        /// Its share compared with the others, under `least_loaded` and `random`.
        weight: f64 = "1.0" in ValueKind::Float(Range { min: 0.0, max: 1e6, open: true }), live;
        /// How it is asked for Anthropic's messages: `native` = as the client did, `translate` = by
        /// a chat completion; `auto` = found out by asking it.
        messages: Option<MessagesMode> = "auto", live;
        /// Sent to the engine as a bearer token (type `anthropic`: as `x-api-key`) in place of the
        /// client's.
        api_key: Option<Secret> = "~", live;
        /// Tokens per KV block; `auto` = `models.defaults.block_size`.
        block_size: Option<BlockSize> = "auto", live;
        /// Data-parallel ranks; `auto` = as found.
        dp_ranks: Option<NonZeroU32> = "auto" in ValueKind::WordOr(AUTO, &int(1, 4_096)), live;
        /// Port of a prefill worker's bootstrap server (`mooncake`, `sglang`); unset = the engine's
        /// own default.
        bootstrap_port: Option<NonZeroU16> = "~", live;
        /// Whom an `https://` worker must prove to be.
        tls: WorkerTls, live;
        /// How it is checked, where that differs from its type.
        health_check: HealthCheck, live;
        /// Where its KV events come from.
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
