//! Similarity hits, where enabled (`response_cache.semantic`).
//!
//! The lookup runs only after an exact miss: it waits for the embedding of the last question no
//! longer than configured. Any error is a miss.

use std::sync::Arc;

use response_cache::{CacheEntry, CacheKey, UnitVector};

use super::CacheRequest;
use crate::{Gateway, request::accept::AcceptedRequest};

/// A question under which the reply is stored for similarity lookups.
#[derive(Debug)]
pub(crate) struct SimilarQuery {
    pub(crate) rest: CacheKey,
    pub(crate) direction: UnitVector,
}

/// The result of a similarity lookup.
pub(super) struct NearestReply {
    pub(super) entry: CacheEntry,
    /// Cosine, 0 to 1.
    pub(super) similarity: f64,
}

/// Returns the reply to the nearest question, and the entry for this request's own reply.
pub(super) async fn lookup(
    gateway: &Arc<Gateway>,
    call: &AcceptedRequest,
    asked: &CacheRequest,
) -> (Option<NearestReply>, Option<SimilarQuery>) {
    let settings = gateway.cache.settings();
    let (Some(embedder), true) = (&gateway.meaning, settings.semantic.enabled) else {
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
    let nearest = gateway.cache.similar(&rest, &direction);
    (
        nearest.map(|(entry, similarity)| NearestReply { entry, similarity }),
        Some(SimilarQuery { rest, direction }),
    )
}
