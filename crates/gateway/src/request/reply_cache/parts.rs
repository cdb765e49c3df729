//! The parts of the reply cache.

use std::sync::Arc;

use config::{CacheSection, CompatSection};
use net::Clock;
use response_cache::{CacheFiller, Coalescer, ResponseCache};
use routing::Router;

use crate::{
    embedder::Embedder, memory::MemoryPressure, metrics::Metrics, request::reply_body::ReplyBody,
};

/// The caches of replies, and what a lookup needs.
#[derive(Clone, Debug)]
pub(crate) struct ReplyCache {
    pub(crate) store: Arc<ResponseCache>,
    pub(crate) filler: Arc<CacheFiller>,
    pub(crate) coalescer: Arc<Coalescer<ReplyBody>>,
    /// Computes embeddings of prompts for the similarity lookup, if configured.
    pub(crate) embedder: Option<Arc<Embedder>>,
    pub(crate) memory: Arc<MemoryPressure>,
    pub(crate) metrics: Arc<Metrics>,
    /// Names the policy in receipts.
    pub(crate) router: Arc<Router>,
    /// Has the coalescing of equal requests, whether or not their replies are cached.
    pub(crate) settings: CacheSection,
    /// Headers that describe the routing in replies.
    pub(crate) compat: Arc<CompatSection>,
    pub(crate) clock: Clock,
}
