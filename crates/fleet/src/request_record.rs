//! Recent request outcomes of each worker, readable without the lock of the worker table.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use kv_blocks::{Moment, WorkerId};
use parking_lot::RwLock;

/// Age beyond which a failure is no evidence about the next request.
const RECENT: Duration = Duration::from_secs(10);
/// Value for no failure since the last answer.
const NONE: u64 = 0;

/// The records of all workers.
#[derive(Debug, Default)]
pub(crate) struct RequestRecords(RwLock<HashMap<WorkerId, RequestRecord>>);

#[derive(Debug, Default)]
struct RequestRecord {
    /// Whether failures were reported since the last success.
    failing: AtomicBool,
    /// Time of the last failure without a later answer, in milliseconds since the start plus one.
    failed_at: AtomicU64,
}

impl RequestRecords {
    pub(crate) fn add(&self, id: WorkerId) {
        self.0.write().insert(id, RequestRecord::default());
    }

    pub(crate) fn remove(&self, id: WorkerId) {
        self.0.write().remove(&id);
    }

    /// Records a failed request; returns whether the worker is known.
    pub(crate) fn failed(&self, id: WorkerId, now: Moment) -> bool {
        let records = self.0.read();
        let record = records.get(&id);
        if let Some(record) = record {
            record.failing.store(true, Ordering::Relaxed);
            record
                .failed_at
                .store(milliseconds(now) + 1, Ordering::Relaxed);
        }
        record.is_some()
    }

    /// Records a successful request; returns whether failures were reported since the one before.
    pub(crate) fn succeeded(&self, id: WorkerId) -> bool {
        self.answered(id);
        self.0
            .read()
            .get(&id)
            .is_some_and(|record| record.failing.swap(false, Ordering::Relaxed))
    }

    /// Records an answer: a reply that has begun, or a check that brings the worker back.
    pub(crate) fn answered(&self, id: WorkerId) {
        if let Some(record) = self.0.read().get(&id)
            && record.failed_at.load(Ordering::Relaxed) != NONE
        {
            record.failed_at.store(NONE, Ordering::Relaxed);
        }
    }

    /// Returns whether a request failed lately with no answer since.
    pub(crate) fn failed_lately(&self, id: WorkerId, now: Moment) -> bool {
        let failed_at = self
            .0
            .read()
            .get(&id)
            .map_or(NONE, |record| record.failed_at.load(Ordering::Relaxed));
        failed_at != NONE
            && u128::from(milliseconds(now).saturating_sub(failed_at - 1)) < RECENT.as_millis()
    }
}

fn milliseconds(moment: Moment) -> u64 {
    u64::try_from(moment.since_start().as_millis()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: WorkerId = WorkerId(1);

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    fn a_recent_failure_lasts_until_an_answer_or_for_ten_seconds() {
        let records = RequestRecords::default();
        assert!(
            !records.failed(A, at(0)) && !records.failed_lately(A, at(0)),
            "the worker is unknown"
        );
        records.add(A);
        assert!(!records.failed_lately(A, at(0)), "it got no request");
        assert!(records.failed(A, at(0)));
        assert!(records.failed_lately(A, at(9)) && !records.failed_lately(A, at(10)));
        records.failed(A, at(20));
        records.answered(A);
        assert!(!records.failed_lately(A, at(20)));
        assert!(
            records.succeeded(A),
            "an answer that has begun is no success yet"
        );
        assert!(!records.succeeded(A));
    }
}
