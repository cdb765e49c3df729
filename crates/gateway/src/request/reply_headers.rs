//! Which headers a reply gets beside the worker's.

/// Settings of the headers that describe the routing.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHeaders {
    /// Whether to send any, beside the request id and the rewrites.
    pub expose: bool,
    /// Whether to add `x-vllm-router-*`.
    pub vllm_router: bool,
}
