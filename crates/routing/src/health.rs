//! The success rate of workers over the last minute.

use std::{collections::HashMap, time::Duration};

use kv_blocks::{Moment, WorkerId};

/// The minute is divided into this many parts, which expire one at a time.
const PARTS: usize = 6;
const PART: Duration = Duration::from_secs(10);

/// The last minute of every worker. Bounded: one entry per worker that has not been forgotten.
#[derive(Debug, Default)]
pub(crate) struct HealthTable {
    workers: HashMap<WorkerId, FailureWindow>,
}

#[derive(Clone, Copy, Debug, Default)]
struct FailureWindow([FailureBucket; PARTS]);

#[derive(Clone, Copy, Debug, Default)]
struct FailureBucket {
    number: u64,
    succeeded: u32,
    all: u32,
}

fn number(now: Moment) -> u64 {
    now.since_start().as_secs() / PART.as_secs()
}

impl HealthTable {
    /// Records the result of an attempt at `worker`.
    pub(crate) fn observe(&mut self, now: Moment, worker: WorkerId, succeeded: bool) {
        let number = number(now);
        let minute = self.workers.entry(worker).or_default();
        #[allow(clippy::cast_possible_truncation, reason = "the remainder is small")]
        let part = &mut minute.0[(number % PARTS as u64) as usize];
        if part.number != number {
            *part = FailureBucket {
                number,
                ..FailureBucket::default()
            };
        }
        part.all = part.all.saturating_add(1);
        part.succeeded = part.succeeded.saturating_add(u32::from(succeeded));
    }

    /// Returns the share of attempts that succeeded; 1 for a worker without attempts.
    pub(crate) fn of(&self, now: Moment, worker: WorkerId) -> f64 {
        let number = number(now);
        let Some(minute) = self.workers.get(&worker) else {
            return 1.0;
        };
        let recent = minute
            .0
            .iter()
            .filter(|part| number - part.number.min(number) < PARTS as u64);
        let (good, all) = recent.fold((0u64, 0u64), |(good, all), part| {
            (good + u64::from(part.succeeded), all + u64::from(part.all))
        });
        if all == 0 {
            1.0
        } else {
            good as f64 / all as f64
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("CK58")]
    fn health_covers_the_last_minute_and_is_full_without_requests() {
        let at = |seconds| Moment::at(Duration::from_secs(seconds));
        let (one, other) = (WorkerId(1), WorkerId(2));
        let mut table = HealthTable::default();
        assert!((table.of(at(0), one) - 1.0).abs() < 1e-9);
        table.observe(at(5), one, false);
        table.observe(at(12), one, true);
        table.observe(at(13), one, true);
        table.observe(at(14), one, false);
        let is = |table: &HealthTable, now, expected: f64| {
            assert!((table.of(at(now), one) - expected).abs() < 1e-9, "{now}")
        };
        is(&table, 15, 0.5);
        is(&table, 59, 0.5);
        is(&table, 60, 2.0 / 3.0);
        is(&table, 70, 1.0);
        assert!((table.of(at(15), other) - 1.0).abs() < 1e-9);
        // The slot of an expired part is reused.
        table.observe(at(72), one, false);
        is(&table, 72, 0.0);
        table.forget(one);
        is(&table, 72, 1.0);
    }
}
