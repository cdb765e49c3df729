//! Builds a store in an object store: with a time budget, and with copies to the first tier for
//! late answers.

use std::{sync::Arc, time::Duration};

use super::sealing;
use crate::{
    CacheStartError,
    engine::CacheParts,
    store::{
        Store,
        budgeted::{BudgetedStore, BudgetedStoreParts, LateEntryFn},
        health::BreakerConfig,
        s3::{NAME, S3Store},
        tiered::Promotion,
    },
};

/// Concurrent lookups while the store answers in time.
const LOOKUPS: usize = 16;
/// An object store is seldom quick: while it is too slow to wait for, its answers are copied for
/// later requests.
const BREAKER: BreakerConfig = BreakerConfig {
    background: 8,
    slow: (Duration::ZERO, Duration::ZERO),
    outage: Some((Duration::from_millis(250), Duration::from_secs(30))),
};

pub(super) fn store(
    promotion: Promotion,
    parts: &CacheParts,
) -> Result<Arc<dyn Store>, CacheStartError> {
    let store = S3Store::new(sealing(parts), Arc::clone(&parts.current), parts.clock)?;
    let late: LateEntryFn =
        Arc::new(move |key, found, begun| promotion.consider(key, found, begun));
    let with = BudgetedStoreParts {
        name: NAME,
        lookups: LOOKUPS,
        breaker: BREAKER,
        late: Some(late),
        on_change: None,
        current: Arc::clone(&parts.current),
        counters: Arc::clone(&parts.counters),
        clock: parts.clock,
    };
    Ok(Arc::new(BudgetedStore::new(Arc::new(store), with)))
}
