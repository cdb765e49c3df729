//! Engine kinds and their health checks.

pub use config::{EngineKind, MessagesMode};

use config::CheckMethod;

/// Returns the health paths in order: a later one is requested only after a 404 from the one before
/// (contract CH6, CH7). A worker without a configured kind is checked like a generic one, even
/// after its kind was detected.
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

/// Returns the method and body of the health check. An empty message is refused before anything is
/// computed: it costs no tokens.
pub(crate) fn health_method(engine: EngineKind) -> (CheckMethod, Option<&'static str>) {
    match engine {
        EngineKind::Anthropic => (CheckMethod::Post, Some("{}")),
        _ => (CheckMethod::Get, None),
    }
}

/// Returns the statuses that mean healthy: a server that refuses an empty message is up.
pub(crate) fn healthy_statuses(engine: EngineKind) -> &'static [u16] {
    match engine {
        EngineKind::Anthropic => &[200, 400, 401, 429],
        _ => &[200],
    }
}

/// Returns whether the model list may be missing for this kind: a key may not read it, or it has
/// another form. The configuration then names the models.
pub(crate) fn list_is_optional(engine: Option<EngineKind>) -> bool {
    matches!(
        engine,
        Some(EngineKind::Anthropic | EngineKind::Gemini | EngineKind::Azure)
    )
}
