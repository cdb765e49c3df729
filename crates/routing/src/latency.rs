//! Recent times to first token of workers, waiting included.
//!
//! Unlike the rates these times include all delays, as clients see them. Only streamed replies
//! count; the first token of other replies is not visible.

use std::{collections::HashMap, time::Duration};

use kv_blocks::{Moment, WorkerId};

use crate::decaying_sum::DecayingSum;

/// The weight of a first token falls to a third after this long.
const MEMORY: Duration = Duration::from_secs(30);

/// A worker without a first token for this long has no mean: a bad mean would keep requests away
/// for ever, and no sample would show that the worker has improved.
const STALE: Duration = Duration::from_secs(60);

/// The mean of every worker. Bounded: one entry per worker that has not been forgotten.
#[derive(Debug, Default)]
pub(crate) struct LatencyTable {
    workers: HashMap<WorkerId, RecentLatency>,
}

#[derive(Debug)]
struct RecentLatency {
    ms: DecayingSum,
    count: DecayingSum,
    latest: Moment,
}

impl Default for RecentLatency {
    fn default() -> Self {
        Self {
            ms: DecayingSum::over(MEMORY),
            count: DecayingSum::over(MEMORY),
            latest: Moment::START,
        }
    }
}

impl LatencyTable {
    /// Records that a first token of `worker` came `ms` after the request was assigned to it.
    pub(crate) fn observe(&mut self, now: Moment, worker: WorkerId, ms: f64) {
        let recent = self.workers.entry(worker).or_default();
        recent.ms.add(now, ms);
        recent.count.add(now, 1.0);
        recent.latest = recent.latest.max(now);
    }

    /// Returns the mean of `worker`; `None` without a recent first token.
    pub(crate) fn mean_ms(&self, now: Moment, worker: WorkerId) -> Option<f64> {
        let recent = self
            .workers
            .get(&worker)
            .filter(|recent| now.since(recent.latest) < STALE)?;
        Some(recent.ms.at(now) / recent.count.at(now))
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: WorkerId = WorkerId(1);

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    fn the_mean_follows_recent_samples_and_expires_without_them() {
        let mut table = LatencyTable::default();
        assert_eq!(table.mean_ms(at(0), W), None);
        table.observe(at(10), W, 100.0);
        table.observe(at(10), W, 300.0);
        let mean = |table: &LatencyTable, now| table.mean_ms(at(now), W).expect("seen lately");
        assert!((mean(&table, 10) - 200.0).abs() < 1e-9);
        assert!(
            (mean(&table, 69) - 200.0).abs() < 1e-9,
            "time alone changes no mean"
        );
        // Half a minute later the two count for two thirds of one.
        table.observe(at(40), W, 20.0);
        let faded = 2.0 / std::f64::consts::E;
        assert!((mean(&table, 40) - (faded * 200.0 + 20.0) / (faded + 1.0)).abs() < 1e-9);
        assert_eq!(table.mean_ms(at(100), W), None);
        table.observe(at(200), W, 7.0);
        assert!((mean(&table, 200) - 7.0).abs() < 1.0);
        table.forget(W);
        assert_eq!(table.mean_ms(at(200), W), None);
    }
}
