//! What knowledge of caches has done for requests: how often it decided, how much of their prompts was cached where they
//! went, and how long asking took.
//!
//! Whoever carries a decision out tells it here, once; whoever asks reads. Nothing is decided by these figures.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    CacheUse, Decision,
    distribution::{Distribution, DistributionSnapshot},
};

/// Counts decisions and queries; shared, in a fixed amount of memory.
///
/// ```
/// use std::time::Duration;
///
/// let tally = routing::KvTally::default();
/// tally.queried(Duration::from_micros(3));
/// assert_eq!((tally.counts().total(), tally.queries().count()), (0, 1));
/// ```
#[derive(Debug)]
pub struct KvDecisionCounters {
    kv_aware: AtomicU64,
    fallback: AtomicU64,
    overlaps: Distribution,
    queries: Distribution,
}

impl Default for KvDecisionCounters {
    fn default() -> Self {
        Self {
            kv_aware: AtomicU64::new(0),
            fallback: AtomicU64::new(0),
            overlaps: Distribution::new((1..=10).map(|tenth| f64::from(tenth) / 10.0)),
            // Seconds, 1 us to 65 ms: a look into memory, and the longest that anybody waits for another machine.
            queries: Distribution::new((0..17).map(|n| 1e-6 * f64::from(1 << n))),
        }
    }
}

/// Decisions of policies that go by caches, by who decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCounts {
    /// What is known of caches.
    pub kv_aware: u64,
    /// Another rule, because too little was known.
    pub fallback: u64,
}

impl KvCounts {
    /// With the names that metrics have for them.
    pub fn by_decision(&self) -> [(&'static str, u64); 2] {
        [("kv_aware", self.kv_aware), ("fallback", self.fallback)]
    }

    /// Both.
    pub fn total(&self) -> u64 {
        self.kv_aware + self.fallback
    }
}

impl KvDecisionCounters {
    /// A decision is carried out.
    pub fn count(&self, decision: &Decision) {
        match decision.cache_use {
            Some(CacheUse::Decided { overlap }) => {
                self.kv_aware.fetch_add(1, Ordering::Relaxed);
                self.overlaps.observe(overlap);
            }
            Some(CacheUse::Fallback) => {
                self.fallback.fetch_add(1, Ordering::Relaxed);
            }
            None => {}
        }
    }

    /// An index was asked who holds a prompt, and took so long.
    pub fn record_query(&self, took: Duration) {
        self.queries.observe(took.as_secs_f64());
    }

    /// The decisions so far.
    pub fn counts(&self) -> KvCounts {
        KvCounts {
            kv_aware: self.kv_aware.load(Ordering::Relaxed),
            fallback: self.fallback.load(Ordering::Relaxed),
        }
    }

    /// Shares of prompts that were cached where they went, 0..1, of the requests that caches decided about.
    pub fn overlaps(&self) -> DistributionSnapshot {
        self.overlaps.spread()
    }

    /// Times that an index took to answer, seconds.
    pub fn queries(&self) -> DistributionSnapshot {
        self.queries.spread()
    }
}
