//! Counters of routing by the beginning of the prompt (`prefix_hash`, `continuum`): the placements
//! of requests, and the number of distinct beginnings.
//!
//! The caller that carries a decision out records it here, once. No decision depends on these
//! figures.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Affinity, Decision, Policy, sketch::Sketch};

/// Counts decisions; shared without a lock, in a fixed amount of memory.
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
    /// Counts a decision that is carried out, for a request with these keys.
    pub fn count(&self, decision: &Decision, keys: &Affinity) {
        // A pinned request was routed by no rule and has no label.
        let Some(label) = decision.label else { return };
        let counted = match label {
            "prefix_hash" => Some(&self.prefix_hash),
            "overflow" => Some(&self.overflow),
            "fallback" => Some(&self.fallback),
            _ => None,
        };
        if let Some(counter) = counted {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(prefix) = keys
            .prefix()
            .filter(|_| matches!(decision.policy, Policy::PrefixHash | Policy::Continuum))
        {
            self.prefixes.record(prefix);
        }
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
