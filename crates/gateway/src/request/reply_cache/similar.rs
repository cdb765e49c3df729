//! Replies to requests that mean the same, where they are asked for (`response_cache.semantic`).
//!
//! Only after the exact reply was not there: the last question's vector is asked of the embedding model, no longer than
//! configured. Whatever goes wrong with that is a miss and nothing else.

use std::sync::Arc;

use response_cache::{CacheEntry, CacheKey, UnitVector};

use super::CacheRequest;
use crate::{Gateway, request::accept::AcceptedRequest};

/// A question whose reply may answer others like it.
#[derive(Debug)]
pub(crate) struct SimilarQuery {
    pub(crate) rest: CacheKey,
    pub(crate) direction: UnitVector,
}

/// What was found for a question.
pub(super) struct NearestReply {
    pub(super) entry: CacheEntry,
    /// A cosine, 0 to 1.
    pub(super) similarity: f64,
}

/// The reply to the nearest question, and what is needed to keep this one's.
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
