//! Whether a reply is there.

use std::sync::Arc;

use response_cache::{CacheKey, Lookup};

use super::{Asked, Fill, Reason, Status, asked::Said, hit::Found, similar};
use crate::{Gateway, keeper::Label, request::accept::Call};

/// What came of looking.
pub(super) enum Looked {
    /// There is one.
    Hit(Found),
    /// A worker is to answer; what its reply says of the cache, and how it is kept.
    Sent(Option<Status>, Option<Fill>),
}

/// Looks for a reply, never longer than the cache's own budget.
pub(super) async fn up(gateway: &Arc<Gateway>, call: &Call, asked: &Asked) -> Looked {
    let Some(standing) = asked.standing else {
        return Looked::Sent(None, None);
    };
    let cache = &gateway.cache;
    let bypass = |reason, fill| Looked::Sent(Some(Status::bypass(reason)), fill);
    if let Err(reason) = standing {
        return bypass(reason, None);
    }
    let Some((said, same)) = asked
        .said
        .as_ref()
        .and_then(|said| Some((said, said.same?)))
    else {
        return bypass(Reason::Unreadable, None);
    };
    // Before the lookup: what is cleared after it is not to come back.
    let fill = Fill::new(gateway, asked.dialect, same.key);
    if asked.fresh {
        return bypass(Reason::NoCache, Some(fill));
    }
    let began = gateway.clock.now();
    gateway
        .keeper
        .kept(&same.key, cache.settings().lookup_budget)
        .await;
    let waited = gateway.clock.now().since(began);
    let key = CacheKey(*same.key.as_bytes());
    let found = match cache.get_after(&key, waited).await {
        Lookup::Unavailable => return bypass(Reason::StoreFailed, None),
        Lookup::NotFound => None,
        Lookup::Found(entry) if Label::read(entry.label, asked.dialect).is_none() => {
            // Of a program that keeps them otherwise.
            cache.remove(&key);
            None
        }
        // One that lacks what this request asks for is replaced by a reply that has it.
        Lookup::Found(entry) => Found::of(asked.dialect, entry, said).await,
    };
    match found {
        Some(found) => hit(gateway, found),
        None => by_meaning(gateway, call, asked, said, fill).await,
    }
}

async fn by_meaning(
    gateway: &Arc<Gateway>,
    call: &Call,
    asked: &Asked,
    said: &Said,
    fill: Fill,
) -> Looked {
    let (nearest, sought) = similar::look(gateway, call, asked).await;
    let found = match nearest {
        Some(it) => Found::of(asked.dialect, it.entry, said)
            .await
            .map(|found| found.alike(it.similarity)),
        None => None,
    };
    match found {
        Some(found) => hit(gateway, found),
        None => Looked::Sent(Some(Status::miss()), Some(fill.seeking(sought))),
    }
}

fn hit(gateway: &Gateway, found: Found) -> Looked {
    if let Some(similarity) = found.similarity {
        gateway.metrics.answered_by_meaning(similarity);
    }
    Looked::Hit(found)
}
