//! Section `disaggregation`: one worker computes the prompt, another generates the reply.

/// Section `disaggregation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisaggregationSection {
    /// Whether requests are split for models that have prefill workers.
    pub enabled: bool,
    /// Transfer of a prompt's KV between engines.
    pub connector: Connector,
    /// Tokens: a decode worker that lacks at most this many of a prompt computes it itself; 0 =
    /// off.
    pub uncached_token_threshold: u32,
}

/// Transfer of a prompt's KV between engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connector {
    /// vLLM's NIXL connector: the prefill's reply names the source for the decode worker.
    Nixl,
    /// vLLM's Mooncake connector: a transfer id joins both workers, through the prefill worker's
    /// bootstrap server.
    Mooncake,
    /// SGLang: a room of the prefill worker's bootstrap server joins both workers.
    Sglang,
}
