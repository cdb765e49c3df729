//! Kinds of engines, and what is asked to see whether one is well.

pub use config::Engine;

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
        | Engine::Generic => &["/health", "/v1/models"],
    }
}
