//! Sections `cache` and `model_aggregation`.

use std::time::Duration;

use settings::{
    ValueKind,
    kinds::{PAUSE, SECONDS_OR_ZERO, int, seconds},
};

const TTL: ValueKind = seconds(1, 86_400);

settings::section! {
    /// Section `cache`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CacheSection {
        /// How long one worker's own list of models counts.
        model_ttl "model_cache_ttl": Duration = "300s", live;
        /// How long a finished reply answers requests like the one it was for; 0 = only requests
        /// while it runs.
        deduplication_ttl: Duration = "60s" in SECONDS_OR_ZERO, live;
        /// Requests that are alike, and that ask for a repeatable answer (`temperature: 0`, or a
        /// `seed`), are sent once.
        enable_deduplication: bool = "true", live;
    }
}

settings::section! {
    /// Section `model_aggregation`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct ModelAggregationSection {
        /// How long the merged list of models counts.
        ttl "cache_ttl": Duration = "60", live;
        /// Share of `cache_ttl` after which it is renewed while it still answers.
        soft_ttl_ratio: f64 = "0.8", live;
        /// How long an empty list counts, doubling each time it stays empty.
        empty_ttl "empty_response_base_ttl_seconds": Duration = "5" in TTL, live;
        /// Longest that an empty list counts.
        empty_max_ttl "empty_response_max_ttl_seconds": Duration = "60" in TTL, live;
        /// Most lists kept; this version has one.
        max_entries "max_cache_entries": usize = "100" in int(1, 1_000_000), idle;
        /// Renewal in the background.
        background "background_refresh": BackgroundRefresh, live;
    }
}

settings::section! {
    /// Section `model_aggregation.background_refresh`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BackgroundRefresh {
        /// Renew the list before it is too old, also while nobody asks.
        enabled: bool = "true", live;
        /// Time between looks at its age.
        check_interval: Duration = "10s" in PAUSE, live;
    }
}

impl CacheSection {
    /// Returns the time for which a finished reply also answers equal requests; `None` = every
    /// request is sent.
    pub fn deduplication(&self) -> Option<Duration> {
        self.enable_deduplication.then_some(self.deduplication_ttl)
    }
}

impl ModelAggregationSection {
    /// Returns the interval of background refreshes; `None` = none.
    pub fn background(&self) -> Option<Duration> {
        self.background
            .enabled
            .then_some(self.background.check_interval)
    }
}
