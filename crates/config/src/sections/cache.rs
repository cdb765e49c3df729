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
        /// Lifetime of one worker's model list.
        model_ttl "model_cache_ttl": Duration = "300s", live;
        /// Time for which a finished reply answers equal requests. 0: only while its request runs.
        deduplication_ttl: Duration = "60s" in SECONDS_OR_ZERO, live;
        /// Send equal requests once if they ask for a repeatable answer (`temperature: 0`, or a
        /// `seed`).
        enable_deduplication: bool = "true", live;
    }
}

settings::section! {
    /// Section `model_aggregation`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct ModelAggregationSection {
        /// Lifetime of the merged model list.
        ttl "cache_ttl": Duration = "60", live;
        /// Share of `cache_ttl` after which the list is refreshed while it still answers requests.
        soft_ttl_ratio: f64 = "0.8", live;
        /// Lifetime of an empty list; it doubles each time the list stays empty.
        empty_ttl "empty_response_base_ttl_seconds": Duration = "5" in TTL, live;
        /// Longest lifetime of an empty list.
        empty_max_ttl "empty_response_max_ttl_seconds": Duration = "60" in TTL, live;
        /// Most workers' lists that a refresh reuses within their lifetime
        /// (`cache.model_cache_ttl`). Of more workers, those checked longest ago are asked again.
        max_entries "max_cache_entries": usize = "100" in int(1, 1_000_000), live;
        /// Refresh of the list in the background.
        background "background_refresh": BackgroundRefresh, live;
    }
}

settings::section! {
    /// Section `model_aggregation.background_refresh`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BackgroundRefresh {
        /// Refresh the list before it expires, also without requests for it.
        enabled: bool = "true", live;
        /// Interval at which the list's age is checked.
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
