//! A quick first tier before a large second one.
//!
//! Every entry is written to the second tier, and to the first one if it is short enough. A hit in
//! the second tier is copied to the first.

use std::sync::Arc;

use super::{Store, StoreCapabilities, StoreFill, StoreFuture, StoreLookup, StoreStats};
use crate::{
    CacheGeneration, CacheKey, CacheSelection, StoreFault,
    counters::{CacheCounters, CacheTier},
    engine::CurrentSettings,
    entry::FoundEntry,
};

/// Puts a copy into the first tier: in memory at once, elsewhere through the queue.
pub(crate) type PromoteFn = Arc<dyn Fn(StoreFill) + Send + Sync>;

/// The settings of copies to the first tier.
#[derive(Clone)]
pub(crate) struct Promotion {
    pub(crate) put: PromoteFn,
    pub(crate) current: Arc<CurrentSettings>,
    pub(crate) counters: Arc<CacheCounters>,
}

impl Promotion {
    /// Copies an entry of the second tier, if promotion is on and the entry fits. The copy is
    /// removed with its original.
    pub(crate) fn consider(&self, key: CacheKey, found: &FoundEntry, begun: CacheGeneration) {
        let settings = self.current.load();
        let ttl = settings.tiered.l1_promotion_ttl.min(found.left);
        let fits = found.entry.body.len() <= settings.l1.max_value_size;
        if settings.tiered.promote_on_hit && fits && !ttl.is_zero() {
            self.counters.promotions.one();
            (self.put)(StoreFill {
                key,
                entry: found.entry.clone(),
                ttl,
                generation: begun,
            });
        }
    }
}

impl std::fmt::Debug for Promotion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Promotion")
    }
}

/// The store of `backend: tiered`.
#[derive(Debug)]
pub(crate) struct TieredStore {
    pub(crate) l1: Arc<dyn Store>,
    pub(crate) l2: Arc<dyn Store>,
    pub(crate) promotion: Promotion,
}

impl TieredStore {
    async fn find(&self, lookup: StoreLookup) -> Result<Option<FoundEntry>, StoreFault> {
        let counters = &self.promotion.counters;
        let near = self.l1.get(lookup).await;
        if let Ok(answer) = &near {
            counters.tier(CacheTier::L1, answer.is_some());
            if answer.is_some() {
                return near;
            }
        }
        let far = self.l2.get(lookup).await;
        if let Ok(answer) = &far {
            counters.tier(CacheTier::L2, answer.is_some());
        }
        match (far, near) {
            (Ok(Some(found)), _) => {
                self.promotion
                    .consider(lookup.key, &found, lookup.generation);
                Ok(Some(found))
            }
            // At least one of them answered.
            (Ok(None), _) | (Err(_), Ok(_)) => Ok(None),
            (Err(fault), Err(_)) => Err(fault),
        }
    }

    async fn write(&self, fill: StoreFill) -> Result<(), StoreFault> {
        let settings = self.promotion.current.load_full();
        let far = StoreFill {
            ttl: settings.l2.ttl_override.unwrap_or(fill.ttl),
            ..fill.clone()
        };
        let near = if fill.entry.body.len() <= settings.l1.max_value_size {
            self.l1.set(fill).await
        } else {
            self.promotion.counters.demotions.one();
            Ok(())
        };
        self.l2.set(far).await.and(near)
    }
}

impl Store for TieredStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { counts: false }
    }

    fn near(&self, fill: &StoreFill) -> Option<StoreFill> {
        let fits = fill.entry.body.len() <= self.promotion.current.load().l1.max_value_size;
        match self.l1.capabilities().counts {
            true => fits.then(|| fill.clone()),
            false => self.l1.near(fill).filter(|_| fits),
        }
    }

    fn absent(&self) -> Vec<&'static str> {
        [self.l1.absent(), self.l2.absent()].concat()
    }

    fn get(&self, lookup: StoreLookup) -> StoreFuture<'_, Option<FoundEntry>> {
        Box::pin(self.find(lookup))
    }

    fn set(&self, fill: StoreFill) -> StoreFuture<'_, ()> {
        Box::pin(self.write(fill))
    }

    fn delete(&self, key: CacheKey) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let near = self.l1.delete(key).await;
            self.l2.delete(key).await.and(near)
        })
    }

    /// Clears both, even if one of them fails.
    fn clear(&self, selection: CacheSelection) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let near = self.l1.clear(selection).await;
            let far = self.l2.clear(selection).await?;
            // An entry of the first tier is also in the second, unless that has lost it.
            near.map(|near| near.max(far))
        })
    }

    fn stats(&self) -> StoreStats {
        self.l1.stats()
    }

    /// Counts the first tier: an object store cannot count quickly.
    fn count(&self) -> StoreFuture<'_, u64> {
        self.l1.count()
    }
}
