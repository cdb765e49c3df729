//! What is known of a request's prefix, asked for once: the first of the two phases of scoring.

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

/// How long an answer stands.
const STANDS: Duration = Duration::from_millis(100);
const SHARDS: usize = 64;
/// Answers kept in one part, so 8,192 in all: 80,000 different prefixes a second. With more, the answers of a full part
/// are dropped and asked for again; with fewer, the index is asked once per prefix in 100 ms.
const MOST_ANSWERS: usize = 128;

/// Answers of an index, each of which stands for 100 ms.
///
/// Preparing is the phase that may take time; the score (`routing`) is then made of the answer alone,
/// which the request keeps, so that it cannot run out between the two.
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
    /// Who holds `prefix`, best first, as of at most 100 ms ago. Requests that come at the same time share one query.
    ///
    /// An index that is not available holds nothing, for 100 ms as well: a request never fails for it, and an outage is
    /// not met with a query per request.
    pub fn prepare(
        &self,
        index: &dyn PrefixIndex,
        prefix: &PrefixHash,
        now: Moment,
    ) -> Arc<[Holder]> {
        let mut answers = self.shards[prefix.spread(SHARDS)].lock();
        if let Some(answer) = answers.get(prefix).filter(|answer| answer.stands(now)) {
            return Arc::clone(&answer.holders);
        }
        make_room(&mut answers, now);
        // Asked with the lock held, so that nobody asks the same beside it: no form of the index waits for anything.
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

    /// The answer that stands for `prefix`, if there is one. For a form of the index that has to be waited for: whoever
    /// finds none asks it, and says with [`Self::keep`] what it answered.
    pub fn standing(&self, prefix: &PrefixHash, now: Moment) -> Option<Arc<[Holder]>> {
        let answers = self.shards[prefix.spread(SHARDS)].lock();
        answers
            .get(prefix)
            .filter(|answer| answer.stands(now))
            .map(|answer| Arc::clone(&answer.holders))
    }

    /// Keeps an answer that was given at `now`.
    pub fn keep(&self, prefix: &PrefixHash, holders: Arc<[Holder]>, now: Moment) {
        let mut answers = self.shards[prefix.spread(SHARDS)].lock();
        make_room(&mut answers, now);
        answers.insert(
            *prefix,
            CachedAnswer {
                given: now,
                holders,
            },
        );
    }

    /// Queries that the index could not answer, ever.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

fn make_room(answers: &mut HashMap<PrefixHash, CachedAnswer>, now: Moment) {
    if answers.len() >= MOST_ANSWERS {
        answers.retain(|_, answer| answer.stands(now));
    }
    if answers.len() >= MOST_ANSWERS {
        answers.clear();
    }
}

impl CachedAnswer {
    fn stands(&self, now: Moment) -> bool {
        now.since(self.given) < STANDS
    }
}
