//! When and where a failed attempt is retried.
//!
//! One table decides every retry. The class says how far the attempt came:
//!
//! | class | the attempt ended | retried |
//! |---|---|---|
//! | C0 | before anything was sent | on another worker, as long as one is left |
//! | C0, local | because this process could not connect | after a pause, on any worker (a) |
//! | C1 | after the request was sent, before a reply | on another worker, within the attempts (b) |
//! | C2 | with 429, 502, 503 or 504, nothing forwarded | elsewhere, within attempts and budget |
//! | C3 | after bytes were forwarded | never |
//!
//! (a) At most three attempts of one request end so. (b) Within the budget too where every other
//! worker failed its last request ([`fleet::Fleet::failed_lately`]).
//!
//! With one worker only, C1 and 503 are retried there after a delay (contract CH10), within the
//! budget. Where requests wait for a worker (`queue.engine_wait_timeout_secs`), C1 is also retried
//! so when several workers have all failed the request; beyond the budget it waits until one
//! recovers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use config::RetrySection;
use routing::Router;

use crate::{ids::IdGenerator, reservations::Reservations};

/// Returns the delay before retry number `n` (from 0) on the same worker (contract CH10).
fn delay(rules: &RetrySection, n: u32, random: u64) -> Duration {
    let full = if rules.exponential_backoff {
        rules
            .base_delay
            .saturating_mul(1u32.checked_shl(n).unwrap_or(u32::MAX))
            .min(rules.max_delay)
    } else {
        rules.base_delay.min(rules.max_delay)
    };
    if !rules.jitter {
        return full;
    }
    let share = (random >> 40) as f64 / (1u64 << 24) as f64;
    full.mul_f64(0.5 + share / 2.0)
}

/// The retry budget: concurrent retries are limited to a share of the requests in flight, but three
/// are always allowed. So a fleet that refuses everything does not get three times the requests.
#[derive(Clone, Debug)]
pub(crate) struct RetryBudget {
    ratio: f64,
    running: Arc<AtomicUsize>,
}

/// Retries that are allowed at any load.
const FLOOR: f64 = 3.0;

impl RetryBudget {
    pub(crate) fn new(ratio: f64) -> Self {
        Self {
            ratio,
            running: Arc::default(),
        }
    }

    /// Returns the same budget with another ratio; running retries still count.
    pub(crate) fn with_ratio(&self, ratio: f64) -> Self {
        Self {
            ratio,
            running: Arc::clone(&self.running),
        }
    }

    /// Takes a permit for one more retry while `in_flight` requests are open; dropping it returns
    /// it.
    pub(crate) fn take(&self, in_flight: usize) -> Option<RetryPermit> {
        let limit = (in_flight as f64 * self.ratio).max(FLOOR);
        let before = self.running.fetch_add(1, Ordering::AcqRel);
        let permit = RetryPermit {
            running: Arc::clone(&self.running),
        };
        ((before as f64) < limit).then_some(permit)
    }
}

/// The rules of retries, and their budget: a share of the requests in flight here.
#[derive(Clone, Debug)]
pub(crate) struct Retries {
    pub(crate) rules: RetrySection,
    pub(crate) budget: RetryBudget,
    pub(crate) router: Arc<Router>,
    pub(crate) reservations: Arc<Reservations>,
    pub(crate) ids: Arc<IdGenerator>,
}

impl Retries {
    /// Returns retries by other rules; running ones still count.
    pub(crate) fn with_rules(&self, rules: RetrySection) -> Self {
        Self {
            budget: self.budget.with_ratio(rules.budget_ratio),
            rules,
            ..self.clone()
        }
    }

    /// Takes a permit for one retry; `None`: the budget is used up. Reservations do not count as
    /// requests in flight, since their holders retry on their own.
    pub(crate) fn permit(&self) -> Option<RetryPermit> {
        let in_flight = self.router.open_reservations();
        self.budget
            .take(in_flight.saturating_sub(self.reservations.count()))
    }

    /// Returns the delay before retry number `n` (from 0) at the same worker.
    pub(crate) fn delay(&self, n: u32) -> Duration {
        delay(&self.rules, n, self.ids.next_number())
    }
}

/// A permit for one retry.
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

    fn rules() -> RetrySection {
        RetrySection {
            base_delay: Duration::from_millis(100),
            max_delay: Duration::from_millis(350),
            jitter: false,
            ..RetrySection::default()
        }
    }

    #[test]
    #[contract("CH10")]
    fn delays_double_to_the_cap() {
        let delays: Vec<u128> = (0..4).map(|n| delay(&rules(), n, 0).as_millis()).collect();
        assert_eq!(delays, [100, 200, 350, 350]);
        let flat = RetrySection {
            exponential_backoff: false,
            ..rules()
        };
        assert_eq!(delay(&flat, 5, 0), Duration::from_millis(100));
        assert_eq!(delay(&rules(), u32::MAX, 0), Duration::from_millis(350));
    }

    #[test]
    #[contract("CH10")]
    fn jitter_stays_in_the_upper_half() {
        let rules = RetrySection {
            jitter: true,
            ..rules()
        };
        assert_eq!(delay(&rules, 0, 0), Duration::from_millis(50));
        assert!(delay(&rules, 0, u64::MAX) > Duration::from_millis(99));
        assert!(delay(&rules, 0, u64::MAX) <= Duration::from_millis(100));
    }

    #[test]
    fn the_budget_allows_three_or_a_fifth_and_recovers() {
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
