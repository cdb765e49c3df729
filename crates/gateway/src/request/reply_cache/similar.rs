//! Similarity hits, where enabled (`response_cache.semantic`).
//!
//! The lookup runs only after an exact miss: it waits for the embedding of the last question no
//! longer than configured. Any error is a miss.

use response_cache::{CacheEntry, CacheKey, SimilarQuery};

use super::{cacheability::CacheRequest, parts::ReplyCache};
use crate::request::accept::AcceptedRequest;

/// The result of a similarity lookup.
pub(super) struct NearestReply {
    pub(super) entry: CacheEntry,
    /// Cosine, 0 to 1.
    pub(super) similarity: f64,
}

/// Returns the reply to the nearest question, and the entry for this request's own reply.
pub(super) async fn lookup(
    cache: &ReplyCache,
    call: &AcceptedRequest,
    asked: &CacheRequest,
) -> (Option<NearestReply>, Option<SimilarQuery>) {
    let settings = cache.store.settings();
    let (Some(embedder), true) = (&cache.embedder, settings.semantic.enabled) else {
        return (None, None);
    };
    let Some(question) = asked.last_question(call) else {
        return (None, None);
    };
    let direction = match embedder
        .embed(&question.text, settings.semantic.timeout)
        .await
    {
        Ok(direction) => direction,
        Err(why) => {
            tracing::debug!(
                ?why,
                "a request is answered without looking for one that means the same"
            );
            return (None, None);
        }
    };
    let rest = CacheKey(*question.rest.as_bytes());
    let nearest = cache.store.similar(&rest, &direction);
    (
        nearest.map(|(entry, similarity)| NearestReply { entry, similarity }),
        Some(SimilarQuery { rest, direction }),
    )
}
