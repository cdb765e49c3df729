//! Kinds of engines, and what is asked to see whether one is well.

pub use config::{EngineKind, MessagesMode};

use config::CheckMethod;

/// Paths asked in turn: each later one only when the one before is answered 404 (contract CH6, CH7). A worker whose
/// kind is not configured is asked like a generic one, also after its kind was found out.
pub(crate) fn health_paths(engine: EngineKind) -> &'static [&'static str] {
    match engine {
        EngineKind::Openai => &["/v1/models"],
        EngineKind::Ollama => &["/api/tags", "/"],
        EngineKind::Lmstudio => &["/v1/models", "/api/v1/models"],
        EngineKind::Vllm
        | EngineKind::Sglang
        | EngineKind::Trtllm
        | EngineKind::Llamacpp
        | EngineKind::Mlxcel
        | EngineKind::Continuum
        | EngineKind::Azure
        | EngineKind::Generic => &["/health", "/v1/models"],
        EngineKind::Gemini => &["/models", "/v1beta/models"],
        EngineKind::Anthropic => &["/v1/messages"],
    }
}

/// How they are asked, and with what. A message of nothing is refused before anything is computed: it costs no tokens.
pub(crate) fn health_method(engine: EngineKind) -> (CheckMethod, Option<&'static str>) {
    match engine {
        EngineKind::Anthropic => (CheckMethod::Post, Some("{}")),
        _ => (CheckMethod::Get, None),
    }
}

/// The statuses that mean healthy: whoever refuses a message of nothing is up.
pub(crate) fn healthy_statuses(engine: EngineKind) -> &'static [u16] {
    match engine {
        EngineKind::Anthropic => &[200, 400, 401, 429],
        _ => &[200],
    }
}

/// Whether it is one of those whose list of models need not be there for us: a key may not read it, or it has another form.
/// The models are those that the configuration names, then.
pub(crate) fn list_is_optional(engine: Option<EngineKind>) -> bool {
    matches!(
        engine,
        Some(EngineKind::Anthropic | EngineKind::Gemini | EngineKind::Azure)
    )
}
