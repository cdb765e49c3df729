//! The counters of the cache. Stores are replaced with the settings; these numbers stay.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use kv_blocks::Moment;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{CacheResult, hit_rate::HitRate};

/// A monotonic counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A tier of `backend: tiered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheTier {
    L1,
    L2,
}

impl CacheTier {
    pub(crate) const ALL: [Self; 2] = [Self::L1, Self::L2];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::L1 => "l1",
            Self::L2 => "l2",
        }
    }
}

/// An operation of an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum S3Operation {
    Get,
    Put,
    Delete,
}

impl S3Operation {
    pub(crate) const ALL: [Self; 3] = [Self::Get, Self::Put, Self::Delete];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Delete => "delete",
        }
    }
}

/// The error of an object store; the complete set of label values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum S3Code {
    Forbidden,
    NotFound,
    Internal,
    SlowDown,
    Timeout,
    Connection,
    Corrupt,
    Other,
}

impl S3Code {
    pub(crate) const ALL: [Self; 8] = [
        Self::Forbidden,
        Self::NotFound,
        Self::Internal,
        Self::SlowDown,
        Self::Timeout,
        Self::Connection,
        Self::Corrupt,
        Self::Other,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Forbidden => "403",
            Self::NotFound => "404",
            Self::Internal => "500",
            Self::SlowDown => "503",
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Corrupt => "corrupt",
            Self::Other => "other",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

/// All counters.
#[derive(Debug)]
pub(crate) struct CacheCounters {
    results: [Counter; CacheResult::ALL.len()],
    rate: Mutex<HitRate>,
    /// Of replaced stores; the current ones count their own.
    pub(crate) evictions: Counter,
    /// Hits and misses.
    tiers: [[Counter; 2]; CacheTier::ALL.len()],
    pub(crate) promotions: Counter,
    /// Entries of a shared store at the last count.
    counted: AtomicU64,
    pub(crate) demotions: Counter,
    pub(crate) lookups_abandoned: Counter,
    pub(crate) writes_dropped: Counter,
    pub(crate) auth_failures: Counter,
    s3_errors: [Counter; S3Code::ALL.len()],
    /// Seconds, 1 ms to about 33 s.
    s3_latency: Family<OperationLabel, Histogram, fn() -> Histogram>,
}

impl Default for CacheCounters {
    fn default() -> Self {
        let s3_latency: Family<_, _, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(1e-3, 2.0, 16)));
        for operation in S3Operation::ALL {
            drop(s3_latency.get_or_create(&OperationLabel {
                operation: operation.as_str(),
            }));
        }
        Self {
            results: Default::default(),
            rate: Mutex::default(),
            evictions: Counter::default(),
            tiers: Default::default(),
            promotions: Counter::default(),
            counted: AtomicU64::new(0),
            demotions: Counter::default(),
            lookups_abandoned: Counter::default(),
            writes_dropped: Counter::default(),
            auth_failures: Counter::default(),
            s3_errors: Default::default(),
            s3_latency,
        }
    }
}

impl CacheCounters {
    /// Records the entries of a shared store.
    pub(crate) fn counted(&self, entries: u64) {
        self.counted.store(entries, Ordering::Relaxed);
    }

    pub(crate) fn last_count(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    pub(crate) fn record_result(&self, what: CacheResult, now: Moment) {
        self.results[what as usize].one();
        match what {
            CacheResult::Hit => self.rate.lock().hit(now),
            CacheResult::Miss => self.rate.lock().miss(now),
            CacheResult::Skip => {}
        }
    }

    pub(crate) fn requests(&self, what: CacheResult) -> u64 {
        self.results[what as usize].get()
    }

    pub(crate) fn hit_rate(&self, now: Moment) -> f64 {
        self.rate.lock().rate(now)
    }

    pub(crate) fn tier(&self, tier: CacheTier, hit: bool) {
        self.tiers[tier as usize][usize::from(!hit)].one();
    }

    pub(crate) fn tier_requests(&self, tier: CacheTier, hit: bool) -> u64 {
        self.tiers[tier as usize][usize::from(!hit)].get()
    }

    pub(crate) fn s3_error(&self, code: S3Code) {
        self.s3_errors[code as usize].one();
    }

    pub(crate) fn s3_errors(&self, code: S3Code) -> u64 {
        self.s3_errors[code as usize].get()
    }

    pub(crate) fn s3_took(&self, operation: S3Operation, time: Duration) {
        self.s3_latency
            .get_or_create(&OperationLabel {
                operation: operation.as_str(),
            })
            .observe(time.as_secs_f64());
    }

    /// Registers the families that are not computed at a scrape.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "continuum_cache_s3_latency_seconds",
            "Time that the object store took to answer",
            self.s3_latency.clone(),
        );
    }
}
