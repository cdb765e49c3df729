//! Counters of routing by the beginning of the prompt (`prefix_hash`, and `continuum` with its
//! ring): the placements of requests, those in flight, and the number of distinct beginnings.
//!
//! The caller that carries a decision out records it here, once, if the policy routes by prefix
//! ([`Router::routes_by_prefix`](crate::Router::routes_by_prefix)). No decision depends on these
//! figures.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kv_blocks::WorkerId;
use parking_lot::Mutex;

use crate::{Affinity, Decision, sketch::Sketch};

/// Counts decisions; shared without a lock, in a fixed amount of memory, but for the requests in
/// flight: at most one small entry each.
///
/// ```
/// let counters = routing::PrefixDecisionCounters::default();
/// assert_eq!((counters.counts().total(), counters.unique_prefixes()), (0, 0));
/// ```
#[derive(Debug, Default)]
pub struct PrefixDecisionCounters {
    prefix_hash: AtomicU64,
    overflow: AtomicU64,
    fallback: AtomicU64,
    prefixes: Sketch,
    /// Counted requests that have not ended, by worker; workers without any are left out.
    in_flight: Mutex<BTreeMap<WorkerId, u32>>,
}

/// A counted request in flight. Dropping it ends the request.
#[derive(Debug)]
#[must_use = "dropping it ends the request"]
pub struct PrefixRoutedRequest {
    counters: Arc<PrefixDecisionCounters>,
    worker: WorkerId,
}

impl Drop for PrefixRoutedRequest {
    fn drop(&mut self) {
        let mut in_flight = self.counters.in_flight.lock();
        if let Some(count) = in_flight.get_mut(&self.worker) {
            *count -= 1;
            if *count == 0 {
                in_flight.remove(&self.worker);
            }
        }
    }
}

/// Decisions by the kind of placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// On the target that owns the beginning.
    pub prefix_hash: u64,
    /// On another target, because the owner was full.
    pub overflow: u64,
    /// By another policy, because there was no prefix key.
    pub fallback: u64,
}

impl PrefixCounts {
    /// Returns the counts with their names in metrics.
    pub fn by_strategy(&self) -> [(&'static str, u64); 3] {
        [
            ("prefix_hash", self.prefix_hash),
            ("overflow", self.overflow),
            ("fallback", self.fallback),
        ]
    }

    /// Returns the sum of all.
    pub fn total(&self) -> u64 {
        self.prefix_hash + self.overflow + self.fallback
    }

    /// Returns the share of decisions for which the owner was too full; 0 without any.
    pub fn overflow_rate(&self) -> f64 {
        if self.total() == 0 {
            0.0
        } else {
            self.overflow as f64 / self.total() as f64
        }
    }
}

impl PrefixDecisionCounters {
    /// Counts a decision that is carried out under a policy that routes by prefix, for a request
    /// with these keys. `None`: the request was placed by its pin, its session or the contents of
    /// caches.
    pub fn count(
        self: &Arc<Self>,
        decision: &Decision,
        keys: &Affinity,
    ) -> Option<PrefixRoutedRequest> {
        // A pinned request was placed by no rule and has no label.
        let label = decision.label?;
        if let Some(prefix) = keys.prefix() {
            self.prefixes.record(prefix);
        }
        let counter = match label {
            "prefix_hash" => &self.prefix_hash,
            "overflow" => &self.overflow,
            "fallback" => &self.fallback,
            _ => return None,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let worker = decision.winner.target.worker;
        *self.in_flight.lock().entry(worker).or_default() += 1;
        Some(PrefixRoutedRequest {
            counters: Arc::clone(self),
            worker,
        })
    }

    /// Returns the counted requests that are in flight on a worker.
    pub fn in_flight(&self, worker: WorkerId) -> u32 {
        self.in_flight
            .lock()
            .get(&worker)
            .copied()
            .unwrap_or_default()
    }

    /// Returns the decisions so far.
    pub fn counts(&self) -> PrefixCounts {
        PrefixCounts {
            prefix_hash: self.prefix_hash.load(Ordering::Relaxed),
            overflow: self.overflow.load(Ordering::Relaxed),
            fallback: self.fallback.load(Ordering::Relaxed),
        }
    }

    /// Returns the number of distinct beginnings in requests under these policies, estimated within
    /// 2 %.
    pub fn unique_prefixes(&self) -> u64 {
        self.prefixes.estimate()
    }
}
