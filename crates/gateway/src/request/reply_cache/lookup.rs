//! The lookup in the response cache.

use response_cache::{CacheKey, CacheLookup, EntryKind};

use super::{
    cacheability::{BodyCacheability, CacheRequest},
    fill::ReplyFill,
    hit::HitReply,
    parts::ReplyCache,
    similar,
    status::{CacheReason, CacheStatus},
};
use crate::request::accept::AcceptedRequest;

/// The result of the lookup.
pub(super) enum CacheOutcome {
    /// A usable reply.
    Hit(HitReply),
    /// A worker is to answer; with the cache status of its reply, and the fill.
    Miss(Option<CacheStatus>, Option<ReplyFill>),
}

impl ReplyCache {
    /// Looks up a reply to a cacheable request, within the cache's own time budget.
    pub(super) async fn look_up(
        &self,
        call: &AcceptedRequest,
        asked: &CacheRequest,
    ) -> CacheOutcome {
        let cache = &self.store;
        let bypass = |reason, fill| CacheOutcome::Miss(Some(CacheStatus::bypass(reason)), fill);
        let Some((said, same)) = asked
            .body
            .as_ref()
            .and_then(|said| Some((said, said.same?)))
        else {
            return bypass(CacheReason::Unreadable, None);
        };
        // Before the lookup: a clear of the cache after it must not be undone by this fill.
        let fill = ReplyFill::new(self, asked.dialect, same.key);
        if asked.fresh {
            return bypass(CacheReason::NoCache, Some(fill));
        }
        let began = self.clock.now();
        self.filler
            .wait_for_fill(&same.key, cache.settings().lookup_budget)
            .await;
        let waited = self.clock.now().since(began);
        let key = CacheKey(*same.key.as_bytes());
        let found = match cache.get_after(&key, waited).await {
            CacheLookup::Unavailable => return bypass(CacheReason::StoreFailed, None),
            CacheLookup::NotFound => None,
            CacheLookup::Found(entry) if EntryKind::read(entry.label, asked.dialect).is_none() => {
                // An entry of a program with another format.
                cache.remove(&key);
                None
            }
            // A stored reply that lacks a requested part is replaced by one that has it.
            CacheLookup::Found(entry) => HitReply::of(asked.dialect, entry, said).await,
        };
        match found {
            Some(found) => self.hit(found),
            None => self.by_meaning(call, asked, said, fill).await,
        }
    }

    async fn by_meaning(
        &self,
        call: &AcceptedRequest,
        asked: &CacheRequest,
        said: &BodyCacheability,
        fill: ReplyFill,
    ) -> CacheOutcome {
        let (nearest, sought) = similar::lookup(self, call, asked).await;
        let found = match nearest {
            Some(it) => HitReply::of(asked.dialect, it.entry, said)
                .await
                .map(|found| found.mark_similar(it.similarity)),
            None => None,
        };
        match found {
            Some(found) => self.hit(found),
            None => CacheOutcome::Miss(
                Some(CacheStatus::miss()),
                Some(fill.with_similarity(sought)),
            ),
        }
    }

    fn hit(&self, found: HitReply) -> CacheOutcome {
        if let Some(similarity) = found.similarity {
            self.metrics.record_similar_hit(similarity);
        }
        CacheOutcome::Hit(found)
    }
}
