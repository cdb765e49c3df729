//! Counters of cache-based decisions: how often caches decided, the cached share of prompts, and
//! the duration of index queries.
//!
//! The caller that carries a decision out records it here, once. No decision depends on these
//! figures.

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
/// let counters = routing::KvDecisionCounters::default();
/// counters.record_query(Duration::from_micros(3));
/// assert_eq!((counters.counts().total(), counters.queries().count()), (0, 1));
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
            // Seconds, 1 us to 65 ms: from a lookup in memory to the longest wait for another
            // machine.
            queries: Distribution::new((0..17).map(|n| 1e-6 * f64::from(1 << n))),
        }
    }
}

/// Decisions of cache-based policies, by the rule that decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCounts {
    /// Cache knowledge decided.
    pub kv_aware: u64,
    /// Another rule decided, because too little was known.
    pub fallback: u64,
}

impl KvCounts {
    /// Returns the counts with their names in metrics.
    pub fn by_decision(&self) -> [(&'static str, u64); 2] {
        [("kv_aware", self.kv_aware), ("fallback", self.fallback)]
    }

    /// Returns the sum of both.
    pub fn total(&self) -> u64 {
        self.kv_aware + self.fallback
    }
}

impl KvDecisionCounters {
    /// Counts a decision that is carried out.
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

    /// Records the duration of an index query for the holders of a prompt.
    pub fn record_query(&self, took: Duration) {
        self.queries.observe(took.as_secs_f64());
    }

    /// Returns the decisions so far.
    pub fn counts(&self) -> KvCounts {
        KvCounts {
            kv_aware: self.kv_aware.load(Ordering::Relaxed),
            fallback: self.fallback.load(Ordering::Relaxed),
        }
    }

    /// Returns the cached shares of prompts on their targets, 0..1, of the requests that caches
    /// decided.
    pub fn overlaps(&self) -> DistributionSnapshot {
        self.overlaps.spread()
    }

    /// Returns the durations of index queries in seconds.
    pub fn queries(&self) -> DistributionSnapshot {
        self.queries.spread()
    }
}
