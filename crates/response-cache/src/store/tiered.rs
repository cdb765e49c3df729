//! A quick first tier before a roomy second one.
//!
//! Everything is written to the second tier, and to the first one if it is short enough. What the second tier has is copied
//! to the first when somebody looked for it.

use std::sync::Arc;

use super::{Abilities, Ask, Fill, Pending, Store, StoreStats};
use crate::{
    CacheKey, Generation, StoreFault,
    engine::InForce,
    entry::Found,
    tally::{Tally, Tier},
};

/// Puts a copy into the first tier: in memory at once, elsewhere in its turn.
pub(crate) type Promote = Arc<dyn Fn(Fill) + Send + Sync>;

/// What is copied to the first tier, and how.
#[derive(Clone)]
pub(crate) struct Promotion {
    pub(crate) put: Promote,
    pub(crate) in_force: Arc<InForce>,
    pub(crate) tally: Arc<Tally>,
}

impl Promotion {
    /// Copies what the second tier had, if that is wanted and it fits. The copy is gone when the original is.
    pub(crate) fn consider(&self, key: CacheKey, found: &Found, begun: Generation) {
        let settings = self.in_force.load();
        let ttl = settings.tiered.l1_promotion_ttl.min(found.left);
        let fits = found.entry.body.len() <= settings.l1.max_value_size;
        if settings.tiered.promote_on_hit && fits && !ttl.is_zero() {
            self.tally.promotions.one();
            (self.put)(Fill {
                key,
                entry: found.entry.clone(),
                ttl,
                begun,
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
pub(crate) struct Tiered {
    pub(crate) l1: Arc<dyn Store>,
    pub(crate) l2: Arc<dyn Store>,
    pub(crate) promotion: Promotion,
}

impl Tiered {
    async fn look(&self, ask: Ask) -> Result<Option<Found>, StoreFault> {
        let tally = &self.promotion.tally;
        let near = self.l1.get(ask).await;
        if let Ok(answer) = &near {
            tally.tier(Tier::L1, answer.is_some());
            if answer.is_some() {
                return near;
            }
        }
        let far = self.l2.get(ask).await;
        if let Ok(answer) = &far {
            tally.tier(Tier::L2, answer.is_some());
        }
        match (far, near) {
            (Ok(Some(found)), _) => {
                self.promotion.consider(ask.key, &found, ask.begun);
                Ok(Some(found))
            }
            // One of them was asked.
            (Ok(None), _) | (Err(_), Ok(_)) => Ok(None),
            (Err(fault), Err(_)) => Err(fault),
        }
    }

    async fn keep(&self, fill: Fill) -> Result<(), StoreFault> {
        let settings = self.promotion.in_force.load_full();
        let far = Fill {
            ttl: settings.l2.ttl_override.unwrap_or(fill.ttl),
            ..fill.clone()
        };
        let near = if fill.entry.body.len() <= settings.l1.max_value_size {
            self.l1.set(fill).await
        } else {
            self.promotion.tally.demotions.one();
            Ok(())
        };
        self.l2.set(far).await.and(near)
    }
}

impl Store for Tiered {
    fn abilities(&self) -> Abilities {
        Abilities { counts: false }
    }

    fn near(&self, fill: &Fill) -> Option<Fill> {
        let fits = fill.entry.body.len() <= self.promotion.in_force.load().l1.max_value_size;
        match self.l1.abilities().counts {
            true => fits.then(|| fill.clone()),
            false => self.l1.near(fill).filter(|_| fits),
        }
    }

    fn absent(&self) -> Vec<&'static str> {
        [self.l1.absent(), self.l2.absent()].concat()
    }

    fn get(&self, ask: Ask) -> Pending<'_, Option<Found>> {
        Box::pin(self.look(ask))
    }

    fn set(&self, fill: Fill) -> Pending<'_, ()> {
        Box::pin(self.keep(fill))
    }

    fn delete(&self, key: CacheKey) -> Pending<'_, ()> {
        Box::pin(async move {
            let near = self.l1.delete(key).await;
            self.l2.delete(key).await.and(near)
        })
    }

    /// Both, whatever becomes of one of them.
    fn clear(&self) -> Pending<'_, u64> {
        Box::pin(async move {
            let near = self.l1.clear().await;
            let far = self.l2.clear().await?;
            // An entry of the first tier is one of the second, unless that has lost it.
            near.map(|near| near.max(far))
        })
    }

    fn stats(&self) -> StoreStats {
        self.l1.stats()
    }

    /// Of the first tier: an object store has no quick answer to that.
    fn count(&self) -> Pending<'_, u64> {
        self.l1.count()
    }
}
