//! Similarity hits, where enabled (`response_cache.semantic`).
//!
//! The lookup runs only after an exact miss: it waits for the embedding of the last question no
//! longer than configured. Any error is a miss.

use response_cache::{CacheEntry, CacheKey, CacheRequest, CacheScope, SimilarQuery};

use super::parts::ReplyCache;

/// Returns the reply to the nearest question with its similarity (cosine, 0 to 1), and the entry
/// for this request's own reply.
pub(super) async fn lookup(
    cache: &ReplyCache,
    request: &CacheRequest<'_>,
    scope: CacheScope,
) -> (Option<(CacheEntry, f64)>, Option<SimilarQuery>) {
    let settings = cache.store.settings();
    let (Some(embedder), true) = (&cache.embedder, settings.semantic.enabled) else {
        return (None, None);
    };
    let Some(question) = request.last_question() else {
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
    let rest = CacheKey::new(scope, *question.rest.as_bytes());
    let nearest = cache.store.similar(&rest, &direction);
    (nearest, Some(SimilarQuery { rest, direction }))
}
