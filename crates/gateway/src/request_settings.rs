//! Settings of the request path.

use std::time::Duration;

use http::HeaderName;
use kv_blocks::HashScheme;
use tokenization::TokenCacheSettings;

use crate::{
    model_lists::ModelListSettings,
    model_names::ModelNames,
    model_routing::ModelRouting,
    request::{
        clusters::ClusterSettings, hooks::HookSettings, prefill::Disaggregation,
        queue_wait::WaitLimits, reply_headers::ReplyHeaders, translate::RewriteSettings,
    },
    retry::RetryRules,
    shared_prefixes::SharedPrefixSettings,
};

/// Times and retries of one request.
#[derive(Clone, Debug)]
pub struct RequestSettings {
    /// Time limit to a stream's first byte, or to the end of any other reply, over all attempts.
    pub timeout: Duration,
    /// Time limit to open a connection.
    pub connect_timeout: Duration,
    /// Longest pause between two bytes of a running stream.
    pub stream_idle: Duration,
    /// Time limit of a running stream as a whole.
    pub stream_total: Duration,
    /// Whether a stream that ends without its end marker is reported to the client as cut.
    pub strict_streams: bool,
    /// Retry rules.
    pub retry: RetryRules,
    /// How prompts are hashed.
    pub scheme: HashScheme,
    /// Longest predicted time to tokenize a prompt; beyond it the text prefix stands for the
    /// prompt.
    pub tokenize_budget: Duration,
    /// Cache of token ids from engines.
    pub token_cache: TokenCacheSettings,
    /// A worker whose KV cache usage is above this share gets no new request; `None`: off.
    pub busy_threshold: Option<f64>,
    /// Whether vLLM workers get the queue's order as their engine priority.
    pub engine_priority: bool,
    /// Settings of single models that differ from these.
    pub by_model: ModelRouting,
    /// A reservation ends this long after the last call about it.
    pub reservation_ttl: Duration,
    /// Longest prompt beginning, in bytes, for policies that route equal beginnings together.
    pub max_prefix_bytes: usize,
    /// Headers that name a session; the first one present wins.
    pub session_headers: Vec<HeaderName>,
    /// Prefill/decode disaggregation.
    pub disaggregation: Disaggregation,
    /// Queue wait limits.
    pub waiting: WaitLimits,
    /// Semantic clusters, if configured.
    pub clusters: Option<ClusterSettings>,
    /// The memory of shared prompt beginnings, if configured.
    pub shared_prefixes: Option<SharedPrefixSettings>,
    /// Rules that map a requested model name to the models that may serve it.
    pub names: ModelNames,
    /// Hooks that run before a generation is routed.
    pub hooks: Vec<HookSettings>,
    /// Headers that describe the routing in replies.
    pub headers: ReplyHeaders,
    /// Changes that are made to request bodies.
    pub rewriting: RewriteSettings,
    /// How long a finished reply answers equal requests; `None`: no coalescing.
    pub deduplication: Option<Duration>,
    /// Refresh settings of the model list.
    pub model_lists: ModelListSettings,
    /// Time without a first byte after which a hedge starts.
    pub hedge_after: Option<Duration>,
}
