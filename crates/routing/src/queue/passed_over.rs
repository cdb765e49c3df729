//! The requests of a queue that its pass has tried and left waiting.
//!
//! A pass tries the requests in their order, so these, and no others of the queue, are before the one
//! that it tries next. Where thousands wait, [`super::waiting_work`] could only say that all of them
//! may be: the first would wait for a busy target for which less is waiting, and leave an open one to
//! a request behind it.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::FixedState;
use kv_blocks::Target;

use super::ExpectedTarget;
use crate::Ticket;

/// The number of a pass of one queue. Between the pick of a request and its end without a target
/// another pass may have begun, which tries all of them again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassNumber(u64);

/// The requests that the pass has left, and where each would be computed now.
#[derive(Debug, Default)]
pub(super) struct PassedOver {
    pass: PassNumber,
    expected: HashMap<Ticket, ExpectedTarget, FixedState>,
    prefill: HashMap<Target, Duration, FixedState>,
}

impl PassedOver {
    /// Returns the number of the pass.
    pub(super) fn pass(&self) -> PassNumber {
        self.pass
    }

    /// Begins with a new pass.
    pub(super) fn clear(&mut self) {
        self.pass.0 += 1;
        self.expected.clear();
        self.prefill.clear();
    }

    /// Adds a request, or replaces where it would be computed.
    pub(super) fn insert(&mut self, ticket: Ticket, expected: ExpectedTarget) {
        self.remove(ticket);
        self.expected.insert(ticket, expected);
        let prefill = self.prefill.entry(expected.target).or_default();
        *prefill = prefill.saturating_add(expected.prefill);
    }

    /// Removes a request that no longer waits.
    pub(super) fn remove(&mut self, ticket: Ticket) {
        let Some(expected) = self.expected.remove(&ticket) else {
            return;
        };
        if let Some(prefill) = self.prefill.get_mut(&expected.target) {
            *prefill = prefill.saturating_sub(expected.prefill);
        }
    }

    /// Returns the time to compute the prompts of the others that would get `target`.
    pub(super) fn before_ms(&self, target: Target, ticket: Ticket) -> f64 {
        let Some(prefill) = self.prefill.get(&target) else {
            return 0.0;
        };
        let own = self.expected.get(&ticket);
        let own = own.filter(|expected| expected.target == target);
        let own = own.map_or(Duration::ZERO, |expected| expected.prefill);
        prefill.saturating_sub(own).as_secs_f64() * 1e3
    }
}

#[cfg(test)]
mod tests {
    use kv_blocks::{DpRank, WorkerId};

    use super::*;

    fn target(worker: u32) -> Target {
        Target {
            worker: WorkerId(worker),
            rank: DpRank(0),
        }
    }

    fn before_ms(passed: &PassedOver, ticket: u64) -> [f64; 2] {
        [1, 2].map(|worker| passed.before_ms(target(worker), Ticket(ticket)))
    }

    #[test]
    fn each_request_counts_once_at_its_latest_target_and_never_before_itself() {
        let mut passed = PassedOver::default();
        assert_eq!(before_ms(&passed, 1), [0.0, 0.0]);
        passed.insert(Ticket(1), ExpectedTarget::new(target(1), 100.0));
        passed.insert(Ticket(2), ExpectedTarget::new(target(1), 20.0));
        assert_eq!(before_ms(&passed, 1), [20.0, 0.0]);
        assert_eq!(before_ms(&passed, 3), [120.0, 0.0]);
        passed.insert(Ticket(1), ExpectedTarget::new(target(2), 300.0));
        assert_eq!(before_ms(&passed, 1), [20.0, 0.0]);
        assert_eq!(before_ms(&passed, 3), [20.0, 300.0]);
        passed.remove(Ticket(2));
        passed.remove(Ticket(4));
        assert_eq!(before_ms(&passed, 3), [0.0, 300.0]);
        passed.clear();
        assert_eq!(before_ms(&passed, 3), [0.0, 0.0]);
    }
}
