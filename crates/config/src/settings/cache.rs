//! Sections `cache` and `model_aggregation`.

use std::time::Duration;

/// Section `cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSection {
    /// Lifetime of one worker's own model list.
    pub model_ttl: Duration,
    /// Time for which a finished reply also answers equal requests; `None` = every request is sent.
    pub deduplication: Option<Duration>,
}

/// Section `model_aggregation`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelAggregationSection {
    /// Lifetime of the merged list.
    pub ttl: Duration,
    /// Share of `ttl` after which the list is refreshed while it is still served.
    pub soft_ttl_ratio: f64,
    /// Lifetime of the first empty list; it doubles each time.
    pub empty_ttl: Duration,
    /// Longest lifetime of an empty list.
    pub empty_max_ttl: Duration,
    /// Most lists cached.
    pub max_entries: usize,
    /// Interval of background refreshes; `None` = none.
    pub background: Option<Duration>,
}
