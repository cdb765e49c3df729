//! Section `compat`.

/// Compatibility headers of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompatSection {
    /// Whether replies carry `x-vllm-router-*` headers too.
    pub vllm_router_headers: bool,
    /// Whether replies carry headers about their routing.
    pub expose_routing_headers: bool,
}
