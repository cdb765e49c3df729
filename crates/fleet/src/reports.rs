//! What the fleet reports about streams and caches, for metrics and the admin API.

use std::collections::HashMap;

use event_sources::{StreamReport, reduce_error};
use kv_blocks::Target;

use crate::{
    BackendFeed, Fleet, PrefixCacheCounters, PrefixViewService, backend_feeds::BackendFeeds,
};

impl Fleet {
    /// Returns the last read counters of the engines' own prefix caches (at most some 10 s old), by
    /// target. Engines without such counters are left out.
    pub fn prefix_cache_counters(&self) -> HashMap<Target, PrefixCacheCounters> {
        let mut counters = HashMap::new();
        self.worker_table().each(|entry| {
            let worker = entry.view.id;
            counters.extend(entry.prefix_cache.iter().map(|(rank, known)| {
                (
                    Target {
                        worker,
                        rank: *rank,
                    },
                    *known,
                )
            }));
        });
        counters
    }

    /// Returns how often the publisher of each event stream was found to be a new process, by
    /// target.
    pub fn stream_restarts(&self) -> HashMap<Target, u64> {
        let mut restarts = HashMap::new();
        self.worker_table().each(|entry| {
            let resets = |target: Target| {
                Some((
                    target,
                    entry.stream_of(target.rank)?.source.counters().resets,
                ))
            };
            restarts.extend(entry.view.targets().filter_map(resets));
        });
        restarts
    }

    /// Returns every event stream, as `GET /admin/streams` shows it: block streams in the order of
    /// workers and ranks, then prefix streams.
    pub fn streams(&self) -> Vec<StreamReport> {
        let mut reports = Vec::new();
        self.worker_table().each(|entry| {
            for stream in &entry.streams {
                let before = reports.len();
                reports.extend(stream.source.reports());
                if reports.len() == before {
                    // A stream without any message is listed too.
                    reports.push(stream.source.report());
                }
                if !entry.view.is_configured() {
                    reports[before..].iter_mut().for_each(reduce_error);
                }
            }
        });
        reports.extend(
            self.prefixes()
                .into_iter()
                .flat_map(PrefixViewService::streams)
                .map(|stream| stream.report),
        );
        reports
    }

    /// Returns the event counters of each backend, of blocks and of prefixes together, in the order
    /// of names.
    pub fn feeds(&self) -> Vec<BackendFeed> {
        let mut feeds = BackendFeeds::default();
        self.worker_table().each(|entry| feeds.worker(entry));
        self.prefixes()
            .into_iter()
            .for_each(|prefixes| prefixes.feed(&mut feeds));
        feeds.all()
    }
}
