//! Sections `cache` and `model_aggregation`.

use std::time::Duration;

/// Section `cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSection {
    /// How long one worker's own list of models counts.
    pub model_ttl: Duration,
    /// How long a finished reply answers requests like its own; `None` = every request is sent.
    pub deduplication: Option<Duration>,
}

/// Section `model_aggregation`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelAggregationSection {
    /// How long the merged list counts.
    pub ttl: Duration,
    /// Share of `ttl` after which the list is renewed while it still answers.
    pub soft_ttl_ratio: f64,
    /// How long an empty list counts at first; it doubles each time.
    pub empty_ttl: Duration,
    /// Longest that an empty list counts.
    pub empty_max_ttl: Duration,
    /// Most lists kept.
    pub max_entries: usize,
    /// Time between looks at the list's age, where it is renewed in the background.
    pub background: Option<Duration>,
}
