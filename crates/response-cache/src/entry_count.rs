//! How many entries lie where others write too.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use crate::{counters::CacheCounters, store::Store};

/// Between two counts that nobody asked for.
const EVERY: Duration = Duration::from_secs(15);
/// Time for one.
const LIMIT: Duration = Duration::from_secs(2);

/// Counts now and then, for metrics. Never ends: its owner drops it.
pub(crate) async fn run_entry_count(store: Arc<dyn Store>, tally: Arc<CacheCounters>) {
    loop {
        now(&*store, &tally).await;
        sleep(EVERY).await;
    }
}

/// Counts, or says what was counted last.
pub(crate) async fn now(store: &dyn Store, tally: &CacheCounters) -> u64 {
    if let Ok(Ok(count)) = timeout(LIMIT, store.count()).await {
        tally.counted(count);
    }
    tally.last_count()
}
