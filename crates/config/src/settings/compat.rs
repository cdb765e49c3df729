//! Section `compat`.

/// What this router answers with beside its own names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompatSection {
    /// Replies carry `x-vllm-router-*` too.
    pub vllm_router_headers: bool,
    /// Replies say where and how they were routed.
    pub expose_routing_headers: bool,
}
