//! The parts of the reply cache.

use std::sync::Arc;

use net::Clock;
use response_cache::ResponseCache;
use routing::Router;

use crate::{
    cache_filler::CacheFiller, coalesce::Coalescer, embedder::Embedder, memory::MemoryPressure,
    metrics::Metrics, request::reply_headers::ReplyHeaders,
};

/// The caches of replies, and what a lookup needs.
#[derive(Clone, Debug)]
pub(crate) struct ReplyCache {
    pub(crate) store: Arc<ResponseCache>,
    pub(crate) filler: Arc<CacheFiller>,
    pub(crate) coalescer: Arc<Coalescer>,
    /// Computes embeddings of prompts for the similarity lookup, if configured.
    pub(crate) embedder: Option<Arc<Embedder>>,
    pub(crate) memory: Arc<MemoryPressure>,
    pub(crate) metrics: Arc<Metrics>,
    /// Names the policy in receipts.
    pub(crate) router: Arc<Router>,
    pub(crate) settings: ReplyCacheSettings,
    pub(crate) clock: Clock,
}

/// Settings that a reload replaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyCacheSettings {
    /// Whether equal requests at the same time are sent once, whether or not they are cached.
    pub(crate) coalesces: bool,
    /// Headers that describe the routing in replies.
    pub(crate) headers: ReplyHeaders,
}
