//! Replies to requests that mean the same, where they are asked for (`response_cache.semantic`).
//!
//! Only after the exact reply was not there: the last question's vector is asked of the embedding model, no longer than
//! configured. Whatever goes wrong with that is a miss and nothing else.

use std::sync::Arc;

use response_cache::{CacheKey, Direction, Entry};

use super::Asked;
use crate::{Gateway, request::accept::Call};

/// A question whose reply may answer others like it.
#[derive(Debug)]
pub(crate) struct Sought {
    pub(crate) rest: CacheKey,
    pub(crate) direction: Direction,
}

/// What was found for a question.
pub(super) struct Nearest {
    pub(super) entry: Entry,
    /// A cosine, 0 to 1.
    pub(super) similarity: f64,
}

/// The reply to the nearest question, and what is needed to keep this one's.
pub(super) async fn look(
    gateway: &Arc<Gateway>,
    call: &Call,
    asked: &Asked,
) -> (Option<Nearest>, Option<Sought>) {
    let settings = gateway.cache.settings();
    let (Some(embedder), true) = (&gateway.meaning, settings.semantic.enabled) else {
        return (None, None);
    };
    let Some(question) = asked.last_question(call) else {
        return (None, None);
    };
    let direction = match embedder
        .direction(&question.text, settings.semantic.timeout)
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
        nearest.map(|(entry, similarity)| Nearest { entry, similarity }),
        Some(Sought { rest, direction }),
    )
}
