//! When a failed attempt is tried again, and where.
//!
//! One table decides every retry. The classes say how far the attempt got:
//!
//! | class | the attempt ended | tried again |
//! |---|---|---|
//! | C0 | before anything was sent | on another worker, as long as one is left |
//! | C0, local | because this process could not open a connection | after a pause, three times, on whichever worker |
//! | C1 | after the request went out, before anything came back | on another worker, within the attempts; within the budget too where every other one failed its last request ([`fleet::Fleet::failed_lately`]) |
//! | C2 | with 429, 502, 503 or 504 and nothing forwarded | on another worker, within the attempts and the budget |
//! | C3 | after bytes were forwarded | never |
//!
//! With one worker only, C1 and 503 are tried again there after a delay (contract CH10), within the budget. Where requests wait
//! for a worker (`queue.engine_wait_timeout_secs`), C1 is tried again so with several that all failed it, too; beyond the
//! budget it waits until one answers again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// The rules of the configuration's `retry` and `request` sections.
#[derive(Clone, Debug)]
pub struct RetryRules {
    /// Sends per request, the first one included (decision B2). Attempts of class C0 sent nothing and do not count.
    pub sends: u32,
    /// First delay before the same worker is tried again.
    pub base_delay: Duration,
    /// Longest such delay.
    pub max_delay: Duration,
    /// Whether delays double; if not, each is `base_delay`.
    pub exponential: bool,
    /// Whether a delay is drawn from its upper half.
    pub jitter: bool,
    /// Share of the requests in flight that may be retries at one time.
    pub budget_ratio: f64,
}

impl RetryRules {
    /// The delay before retry number `n` (from 0) on the same worker (contract CH10).
    pub(crate) fn delay(&self, n: u32, random: u64) -> Duration {
        let full = if self.exponential {
            self.base_delay
                .saturating_mul(1u32.checked_shl(n).unwrap_or(u32::MAX))
                .min(self.max_delay)
        } else {
            self.base_delay.min(self.max_delay)
        };
        if !self.jitter {
            return full;
        }
        let share = (random >> 40) as f64 / (1u64 << 24) as f64;
        full.mul_f64(0.5 + share / 2.0)
    }
}

/// Retries that run at the same time may be at most a share of the requests in flight, and three always may: a fleet
/// that refuses everything is not asked three times as often.
#[derive(Clone, Debug)]
pub(crate) struct RetryBudget {
    ratio: f64,
    running: Arc<AtomicUsize>,
}

/// Always allowed, whatever the load.
const FLOOR: f64 = 3.0;

impl RetryBudget {
    pub(crate) fn new(ratio: f64) -> Self {
        Self {
            ratio,
            running: Arc::default(),
        }
    }

    /// The same with another ratio; retries that run count here too.
    pub(crate) fn with_ratio(&self, ratio: f64) -> Self {
        Self {
            ratio,
            running: Arc::clone(&self.running),
        }
    }

    /// Room for one more retry while `in_flight` requests are open; dropping the permit gives the room back.
    pub(crate) fn take(&self, in_flight: usize) -> Option<RetryPermit> {
        let limit = (in_flight as f64 * self.ratio).max(FLOOR);
        let before = self.running.fetch_add(1, Ordering::AcqRel);
        let permit = RetryPermit {
            running: Arc::clone(&self.running),
        };
        ((before as f64) < limit).then_some(permit)
    }
}

/// One retry's place in the budget.
#[derive(Debug)]
pub(crate) struct RetryPermit {
    running: Arc<AtomicUsize>,
}

impl Drop for RetryPermit {
    fn drop(&mut self) {
        self.running.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn rules() -> RetryRules {
        RetryRules {
            sends: 3,
            base_delay: Duration::from_millis(100),
            max_delay: Duration::from_millis(350),
            exponential: true,
            jitter: false,
            budget_ratio: 0.2,
        }
    }

    #[test]
    #[contract("CH10")]
    fn delays_double_to_the_cap() {
        let delays: Vec<u128> = (0..4).map(|n| rules().delay(n, 0).as_millis()).collect();
        assert_eq!(delays, [100, 200, 350, 350]);
        let flat = RetryRules {
            exponential: false,
            ..rules()
        };
        assert_eq!(flat.delay(5, 0), Duration::from_millis(100));
        assert_eq!(rules().delay(u32::MAX, 0), Duration::from_millis(350));
    }

    #[test]
    #[contract("CH10")]
    fn jitter_stays_in_the_upper_half() {
        let rules = RetryRules {
            jitter: true,
            ..rules()
        };
        assert_eq!(rules.delay(0, 0), Duration::from_millis(50));
        assert!(rules.delay(0, u64::MAX) > Duration::from_millis(99));
        assert!(rules.delay(0, u64::MAX) <= Duration::from_millis(100));
    }

    #[test]
    fn the_budget_gives_three_or_a_fifth_and_takes_them_back() {
        let budget = RetryBudget::new(0.2);
        let few: Vec<_> = (0..4).map(|_| budget.take(1)).collect();
        assert_eq!(few.iter().flatten().count(), 3);
        drop(few);
        let many: Vec<_> = (0..40).map(|_| budget.take(100)).collect();
        assert_eq!(many.iter().flatten().count(), 20);
        drop(many);
        assert!(budget.take(1).is_some());
    }
}
