//! The lookup in the response cache.

use response_cache::{
    CacheKey, CacheLookup, CacheReason, CacheRequest, CacheScope, Eligibility, EntryKind, HitReply,
    ReplyFill, RequestedForm,
};

use super::{parts::ReplyCache, similar};

/// The result of the lookup.
pub(super) enum CacheOutcome {
    /// A usable reply.
    Hit(HitReply),
    /// A worker is to answer; with the reason in its reply, and the fill.
    Miss(Option<CacheReason>, Option<ReplyFill>),
}

impl ReplyCache {
    /// Looks up a reply to a cacheable request, within the cache's own time budget.
    pub(super) async fn look_up(
        &self,
        eligibility: &Eligibility<'_>,
        tenant: &str,
    ) -> CacheOutcome {
        let (cache, dialect) = (&self.store, eligibility.request.dialect);
        let miss = |reason, fill| CacheOutcome::Miss(Some(reason), fill);
        let Some((body, same)) = eligibility
            .body
            .as_ref()
            .and_then(|body| Some((body, body.digests?)))
        else {
            return miss(CacheReason::Unreadable, None);
        };
        let (form, scope) = (body.form, CacheScope::of(tenant, &body.model));
        let fill = ReplyFill::new(&self.filler, cache, dialect, same.key, scope);
        if eligibility.fresh {
            return miss(CacheReason::NoCache, Some(fill));
        }
        let began = self.clock.now();
        self.filler
            .wait_for_fill(&same.key, cache.settings().lookup_budget)
            .await;
        let waited = self.clock.now().since(began);
        let key = CacheKey::new(scope, *same.key.as_bytes());
        let found = match cache.get_after(&key, waited).await {
            CacheLookup::Unavailable => return miss(CacheReason::StoreFailed, None),
            CacheLookup::NotFound => None,
            CacheLookup::Found(entry) if EntryKind::read(entry.label, dialect).is_none() => {
                // An entry of a program with another format.
                cache.remove(&key);
                None
            }
            // A stored reply that lacks a requested part is replaced by one that has it.
            CacheLookup::Found(entry) => HitReply::of(dialect, entry, form).await,
        };
        match found {
            Some(found) => CacheOutcome::Hit(found),
            None => {
                self.by_meaning(&eligibility.request, (form, scope), fill)
                    .await
            }
        }
    }

    async fn by_meaning(
        &self,
        request: &CacheRequest<'_>,
        (form, scope): (RequestedForm, CacheScope),
        fill: ReplyFill,
    ) -> CacheOutcome {
        let (nearest, sought) = similar::lookup(self, request, scope).await;
        if let Some((entry, similarity)) = nearest
            && let Some(found) = HitReply::of(request.dialect, entry, form).await
        {
            self.metrics.record_similar_hit(similarity);
            let similarity = Some(similarity);
            return CacheOutcome::Hit(HitReply {
                similarity,
                ..found
            });
        }
        let fill = fill.with_similarity(sought);
        CacheOutcome::Miss(Some(CacheReason::NotFound), Some(fill))
    }
}
