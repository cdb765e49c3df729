//! What routing by the beginning of the prompt (`prefix_hash`, `continuum`) has done: how requests were placed, and how
//! many beginnings there were.
//!
//! Whoever carries a decision out tells it here, once; whoever asks reads. Nothing is decided by these figures.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Affinity, Decision, Policy, sketch::Sketch};

/// Counts decisions; shared without a lock, in a fixed amount of memory.
///
/// ```
/// let tally = routing::PrefixTally::default();
/// assert_eq!((tally.counts().total(), tally.unique_prefixes()), (0, 0));
/// ```
#[derive(Debug, Default)]
pub struct PrefixDecisionCounters {
    prefix_hash: AtomicU64,
    overflow: AtomicU64,
    fallback: AtomicU64,
    prefixes: Sketch,
}

/// Decisions by how they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// On the target that owns the beginning.
    pub prefix_hash: u64,
    /// On another, because the owner was full.
    pub overflow: u64,
    /// By another policy, because there was nothing to go by.
    pub fallback: u64,
}

impl PrefixCounts {
    /// With the names that metrics have for them.
    pub fn by_strategy(&self) -> [(&'static str, u64); 3] {
        [
            ("prefix_hash", self.prefix_hash),
            ("overflow", self.overflow),
            ("fallback", self.fallback),
        ]
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.prefix_hash + self.overflow + self.fallback
    }

    /// Share of them that the owner was too full for; 0 of none.
    pub fn overflow_rate(&self) -> f64 {
        if self.total() == 0 {
            0.0
        } else {
            self.overflow as f64 / self.total() as f64
        }
    }
}

impl PrefixDecisionCounters {
    /// A decision is carried out, for a request with these keys.
    pub fn count(&self, decision: &Decision, keys: &Affinity) {
        // A request that was asked for by name was placed by nobody's rule and has no label.
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

    /// The decisions so far.
    pub fn counts(&self) -> PrefixCounts {
        PrefixCounts {
            prefix_hash: self.prefix_hash.load(Ordering::Relaxed),
            overflow: self.overflow.load(Ordering::Relaxed),
            fallback: self.fallback.load(Ordering::Relaxed),
        }
    }

    /// How many different beginnings those policies were asked about, estimated within 2 %.
    pub fn unique_prefixes(&self) -> u64 {
        self.prefixes.estimate()
    }
}
