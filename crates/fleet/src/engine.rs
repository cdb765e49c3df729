//! Kinds of engines, and what is asked to see whether one is well.

pub use config::{Engine, Messages};

use config::CheckMethod;

/// Paths asked in turn: each later one only when the one before is answered 404 (contract CH6, CH7). A worker whose
/// kind is not configured is asked like a generic one, also after its kind was found out.
pub(crate) fn health_paths(engine: Engine) -> &'static [&'static str] {
    match engine {
        Engine::Openai => &["/v1/models"],
        Engine::Ollama => &["/api/tags", "/"],
        Engine::Lmstudio => &["/v1/models", "/api/v1/models"],
        Engine::Vllm
        | Engine::Sglang
        | Engine::Trtllm
        | Engine::Llamacpp
        | Engine::Mlxcel
        | Engine::Continuum
        | Engine::Azure
        | Engine::Generic => &["/health", "/v1/models"],
        Engine::Gemini => &["/models", "/v1beta/models"],
        Engine::Anthropic => &["/v1/messages"],
    }
}

/// How they are asked, and with what. A message of nothing is refused before anything is computed: it costs no tokens.
pub(crate) fn health_method(engine: Engine) -> (CheckMethod, Option<&'static str>) {
    match engine {
        Engine::Anthropic => (CheckMethod::Post, Some("{}")),
        _ => (CheckMethod::Get, None),
    }
}

/// The statuses that mean healthy: whoever refuses a message of nothing is up.
pub(crate) fn healthy_statuses(engine: Engine) -> &'static [u16] {
    match engine {
        Engine::Anthropic => &[200, 400, 401, 429],
        _ => &[200],
    }
}

/// Whether it is one of those whose list of models need not be there for us: a key may not read it, or it has another form.
/// The models are those that the configuration names, then.
pub(crate) fn list_is_optional(engine: Option<Engine>) -> bool {
    matches!(
        engine,
        Some(Engine::Anthropic | Engine::Gemini | Engine::Azure)
    )
}
