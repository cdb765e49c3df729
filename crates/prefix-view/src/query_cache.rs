//! Short-lived cache of the holders of a request's prefix: the first of the two phases of scoring.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kv_blocks::Moment;
use parking_lot::Mutex;

use crate::{Holder, PrefixHash, PrefixIndex};

/// Lifetime of an answer.
const STANDS: Duration = Duration::from_millis(100);
const SHARDS: usize = 64;
/// Maximum answers in one part, so 8,192 in all: enough for 80,000 different prefixes a second.
/// With more prefixes, the answers of a full part are dropped and queried again; with fewer, the
/// index gets one query per prefix in 100 ms.
const MOST_ANSWERS: usize = 128;

/// Answers of an index, each valid for 100 ms.
///
/// [`Self::prepare`] is the phase that may take time; the score (`routing`) is then computed from
/// the answer alone. The request owns the answer, so it cannot expire between the two phases.
#[derive(Debug)]
pub struct QueryCache {
    shards: [Mutex<HashMap<PrefixHash, CachedAnswer>>; SHARDS],
    failures: AtomicU64,
}

#[derive(Debug)]
struct CachedAnswer {
    given: Moment,
    holders: Arc<[Holder]>,
}

impl Default for QueryCache {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            failures: AtomicU64::new(0),
        }
    }
}

impl QueryCache {
    /// Returns the holders of `prefix`, best first, as of at most 100 ms ago. Concurrent requests
    /// share one query.
    ///
    /// An unavailable index counts as one without holders, for 100 ms as well: no request fails for
    /// it, and an outage does not cause a query per request.
    pub fn prepare(
        &self,
        index: &dyn PrefixIndex,
        prefix: &PrefixHash,
        now: Moment,
    ) -> Arc<[Holder]> {
        let mut answers = self.shards[prefix.spread(SHARDS)].lock();
        if let Some(answer) = answers.get(prefix).filter(|answer| answer.is_fresh(now)) {
            return Arc::clone(&answer.holders);
        }
        evict_excess(&mut answers, now);
        // The lock is held during the query to prevent a second one for this prefix; no index
        // blocks.
        let holders: Arc<[Holder]> = match index.query(prefix, now) {
            Ok(holders) => holders.into(),
            Err(_) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                Arc::default()
            }
        };
        answers.insert(
            *prefix,
            CachedAnswer {
                given: now,
                holders: Arc::clone(&holders),
            },
        );
        holders
    }

    /// Returns the valid answer for `prefix`, if there is one. For an index that answers
    /// asynchronously: after a miss the caller queries it and stores the answer with
    /// [`Self::keep`].
    pub fn cached(&self, prefix: &PrefixHash, now: Moment) -> Option<Arc<[Holder]>> {
        let answers = self.shards[prefix.spread(SHARDS)].lock();
        answers
            .get(prefix)
            .filter(|answer| answer.is_fresh(now))
            .map(|answer| Arc::clone(&answer.holders))
    }

    /// Stores an answer that was given at `now`.
    pub fn keep(&self, prefix: &PrefixHash, holders: Arc<[Holder]>, now: Moment) {
        let mut answers = self.shards[prefix.spread(SHARDS)].lock();
        evict_excess(&mut answers, now);
        answers.insert(
            *prefix,
            CachedAnswer {
                given: now,
                holders,
            },
        );
    }

    /// Returns the number of queries that the index could not answer, since the start.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

fn evict_excess(answers: &mut HashMap<PrefixHash, CachedAnswer>, now: Moment) {
    if answers.len() >= MOST_ANSWERS {
        answers.retain(|_, answer| answer.is_fresh(now));
    }
    if answers.len() >= MOST_ANSWERS {
        answers.clear();
    }
}

impl CachedAnswer {
    fn is_fresh(&self, now: Moment) -> bool {
        now.since(self.given) < STANDS
    }
}
