//! Counts the entries of stores that other processes write to.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use crate::{counters::CacheCounters, store::Store};

/// Interval of the periodic counts.
const EVERY: Duration = Duration::from_secs(15);
/// Timeout of a count.
const LIMIT: Duration = Duration::from_secs(2);

/// Counts periodically, for metrics. Never ends: its owner drops it.
pub(crate) async fn run_entry_count(store: Arc<dyn Store>, counters: Arc<CacheCounters>) {
    loop {
        now(&*store, &counters).await;
        sleep(EVERY).await;
    }
}

/// Counts the entries, or returns the last count.
pub(crate) async fn now(store: &dyn Store, counters: &CacheCounters) -> u64 {
    if let Ok(Ok(count)) = timeout(LIMIT, store.count()).await {
        counters.counted(count);
    }
    counters.last_count()
}
