//! The work that waits in the router, by the target that each request would get now and by tenant.
//!
//! What is before one more request is estimated without going through the queue: all of its own
//! tenant's work, and of the other tenants' no more than their turns. A tenant with many requests
//! therefore drives no other from the targets that hold its prompts. Only prompts that are not much
//! longer count: the shortest go first. Of a request that a pass tries it is known: see
//! [`super::passed_over`].
//!
//! **Invariant**: a target and a tenant have an entry while a request counts there, and no longer:
//! each request takes out exactly what it put in.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::FixedState;
use kv_blocks::Target;

use super::{shares::TenantSlot, work::MOST_MS};

/// Classes of prefill times: below 1 ms, and one for each doubling, up to the longest.
const LENGTH_CLASSES: usize = 20;

/// Classes above that of a request which are before it too: its class is not exact, and a longer one
/// that has waited goes first.
const LONGER_CLASSES: usize = 1;

/// The target that a queued request would get now, and the time to compute its prompt there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedTarget {
    pub(super) target: Target,
    /// Whole nanoseconds: what is added and taken away leaves no rest.
    pub(super) prefill: Duration,
}

impl ExpectedTarget {
    pub(crate) fn new(target: Target, prefill_ms: f64) -> Self {
        let prefill = counted(prefill_ms);
        Self { target, prefill }
    }
}

/// An estimate that is no number counts as nothing, and none counts as more than a day.
fn counted(prefill_ms: f64) -> Duration {
    let prefill_s = prefill_ms.clamp(0.0, MOST_MS) / 1e3;
    Duration::try_from_secs_f64(prefill_s).unwrap_or_default()
}

fn length_class(prefill: Duration) -> usize {
    let bits = u128::BITS - prefill.as_millis().leading_zeros();
    (bits as usize).min(LENGTH_CLASSES - 1)
}

/// A request, for the estimate of the work before it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitingRequest {
    /// The tenant of the request; `None`: it has no other request.
    pub(crate) tenant: Option<TenantSlot>,
    /// Where the request itself counts, which is not before itself; `None`: nowhere.
    pub(crate) expected: Option<ExpectedTarget>,
}

/// Some waiting requests.
#[derive(Clone, Copy, Debug, Default)]
struct WorkSum {
    requests: usize,
    /// Their prefill time, by class.
    prefill: [Duration; LENGTH_CLASSES],
}

impl WorkSum {
    fn add(&mut self, prefill: Duration) {
        self.requests += 1;
        let class = &mut self.prefill[length_class(prefill)];
        *class = class.saturating_add(prefill);
    }

    /// Returns whether requests are left.
    fn remove(&mut self, prefill: Duration) -> bool {
        self.requests = self.requests.saturating_sub(1);
        let class = &mut self.prefill[length_class(prefill)];
        *class = class.saturating_sub(prefill);
        self.requests > 0
    }

    /// Returns the prefill time of the classes up to `longest`.
    fn ms(&self, longest: usize) -> f64 {
        let prefill: Duration = self.prefill[..=longest].iter().sum();
        prefill.as_secs_f64() * 1e3
    }
}

/// The requests that would get one target.
#[derive(Debug, Default)]
struct TargetWork {
    all: WorkSum,
    by_tenant: HashMap<TenantSlot, WorkSum, FixedState>,
}

impl TargetWork {
    /// Returns the estimated time to compute the prompts before a request of a tenant, of the classes
    /// up to `longest`. `counted`: its own prompt, if that counts here.
    fn before_ms(
        &self,
        tenant: Option<TenantSlot>,
        counted: Option<Duration>,
        longest: usize,
    ) -> f64 {
        let known = tenant.and_then(|tenant| self.by_tenant.get(&tenant));
        let tenants = self.by_tenant.len() - usize::from(known.is_some());
        let (mut all, mut own) = (self.all, known.copied().unwrap_or_default());
        if let Some(counted) = counted {
            all.remove(counted);
            own.remove(counted);
        }
        let (all_ms, own_ms) = (all.ms(longest), own.ms(longest));
        // Tenants take turns: until this request's, each other one gets as much as its own.
        let request_ms = all_ms / all.requests.max(1) as f64;
        own_ms + (all_ms - own_ms).min(tenants as f64 * (own_ms + request_ms))
    }
}

/// The work that waits for each target.
#[derive(Debug, Default)]
pub(super) struct WaitingWork {
    by_target: HashMap<Target, TargetWork, FixedState>,
}

impl WaitingWork {
    /// Counts a request of a tenant at the target that it would get now, in place of the one before.
    pub(super) fn replace(
        &mut self,
        tenant: TenantSlot,
        before: Option<ExpectedTarget>,
        after: Option<ExpectedTarget>,
    ) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.remove(tenant, before);
        }
        if let Some(after) = after {
            let work = self.by_target.entry(after.target).or_default();
            work.all.add(after.prefill);
            let own = work.by_tenant.entry(tenant).or_default();
            own.add(after.prefill);
        }
    }

    fn remove(&mut self, tenant: TenantSlot, before: ExpectedTarget) {
        let Some(work) = self.by_target.get_mut(&before.target) else {
            return;
        };
        if let Some(own) = work.by_tenant.get_mut(&tenant)
            && !own.remove(before.prefill)
        {
            work.by_tenant.remove(&tenant);
        }
        if !work.all.remove(before.prefill) {
            self.by_target.remove(&before.target);
        }
    }

    /// Returns whether nothing waits for any target.
    pub(super) fn is_empty(&self) -> bool {
        self.by_target.is_empty()
    }

    /// Returns the estimated time to compute the prompts that wait for `target` before a request whose
    /// prompt takes `prefill_ms` there.
    pub(super) fn before_ms(
        &self,
        target: Target,
        request: WaitingRequest,
        prefill_ms: f64,
    ) -> f64 {
        let longest = length_class(counted(prefill_ms)) + LONGER_CLASSES;
        let longest = longest.min(LENGTH_CLASSES - 1);
        let own = request
            .expected
            .filter(|expected| expected.target == target);
        let own = own.map(|expected| expected.prefill);
        let work = self.by_target.get(&target);
        work.map_or(0.0, |work| work.before_ms(request.tenant, own, longest))
    }
}

#[cfg(test)]
mod tests {
    use kv_blocks::{DpRank, WorkerId};
    use proptest::prelude::*;

    use super::*;

    fn target(worker: u32) -> Target {
        Target {
            worker: WorkerId(worker),
            rank: DpRank(0),
        }
    }

    fn tenant(number: u32) -> TenantSlot {
        TenantSlot::numbered(number)
    }

    /// Requests of this many milliseconds, by tenant, that would get worker 1.
    fn waiting(requests: &[(u32, f64)]) -> WaitingWork {
        let mut work = WaitingWork::default();
        for (number, ms) in requests {
            let expected = ExpectedTarget::new(target(1), *ms);
            work.replace(tenant(*number), None, Some(expected));
        }
        work
    }

    /// One more request of a tenant.
    fn one_more(number: u32) -> WaitingRequest {
        WaitingRequest {
            tenant: Some(tenant(number)),
            expected: None,
        }
    }

    /// Longer than every request in the tests.
    const LONG_MS: f64 = MOST_MS;

    /// What is before a long request of a tenant.
    fn before_ms(work: &WaitingWork, number: u32) -> f64 {
        work.before_ms(target(1), one_more(number), LONG_MS)
    }

    #[test]
    fn only_prompts_that_are_not_much_longer_are_before_a_request() {
        let work = waiting(&[
            (0, 10.0),
            (0, 100.0),
            (0, 200.0),
            (0, 1_000.0),
            (0, 9_000.0),
        ]);
        for (ms, before) in [
            (0.0, 0.0),
            (1.0, 0.0),
            (10.0, 10.0),
            (40.0, 110.0),
            (100.0, 310.0),
            (300.0, 1_310.0),
            (5_000.0, 10_310.0),
            (LONG_MS, 10_310.0),
        ] {
            let found = work.before_ms(target(1), one_more(0), ms);
            assert_eq!(found, before, "{ms} ms");
        }
    }

    #[test]
    fn a_request_counts_at_its_latest_target_only() {
        let (first, second) = (
            ExpectedTarget::new(target(1), 100.0),
            ExpectedTarget::new(target(2), 300.0),
        );
        let mut work = waiting(&[(0, 100.0), (0, 100.0)]);
        let there =
            |work: &WaitingWork, worker| work.before_ms(target(worker), one_more(0), LONG_MS);
        assert_eq!((there(&work, 1), there(&work, 2)), (200.0, 0.0));
        work.replace(tenant(0), Some(first), Some(second));
        assert_eq!((there(&work, 1), there(&work, 2)), (100.0, 300.0));
        work.replace(tenant(0), Some(first), None);
        work.replace(tenant(0), Some(second), None);
        assert!(work.by_target.is_empty(), "{work:?}");
    }

    #[test]
    fn of_another_tenant_only_its_turns_are_before_a_request() {
        let many = [(0, 100.0); 50];
        assert_eq!(before_ms(&waiting(&many), 0), 5_000.0);
        // One that has nothing there waits for one request, also if it has none anywhere.
        assert_eq!(before_ms(&waiting(&many), 1), 100.0);
        let nowhere = WaitingRequest::default();
        assert_eq!(waiting(&many).before_ms(target(1), nowhere, LONG_MS), 100.0);
        let mut with_own = many.to_vec();
        with_own.extend([(1, 100.0); 2]);
        assert_eq!(before_ms(&waiting(&with_own), 1), 500.0);
        assert_eq!(before_ms(&waiting(&with_own), 0), 5_200.0);
    }

    #[test]
    fn one_request_of_each_of_many_tenants_counts_whole() {
        let of_each: Vec<(u32, f64)> = (0..30).map(|number| (number, 100.0)).collect();
        assert_eq!(before_ms(&waiting(&of_each), 99), 3_000.0);
    }

    #[test]
    fn an_estimate_that_is_no_time_counts_as_nothing_and_an_endless_one_as_a_day() {
        for (ms, counted) in [
            (f64::NAN, 0.0),
            (-5.0, 0.0),
            (f64::NEG_INFINITY, 0.0),
            (f64::INFINITY, MOST_MS),
            (1e300, MOST_MS),
        ] {
            assert_eq!(before_ms(&waiting(&[(0, ms)]), 0), counted, "{ms}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_order_of_estimates_nothing_is_left_when_all_requests_are_gone(
            estimates in prop::collection::vec((0u32..20, 0u32..4, prop::num::f64::ANY), 0..200),
        ) {
            // A request's tenant is the same for all of its time in the queue.
            let tenant_of = |request: u32| tenant(request % 3);
            let mut work = WaitingWork::default();
            let mut requests = [None; 20];
            for (request, worker, ms) in estimates {
                // The fourth worker stands for none.
                let after = (worker < 3).then(|| ExpectedTarget::new(target(worker), ms));
                let known = &mut requests[request as usize];
                work.replace(tenant_of(request), *known, after);
                *known = after;
                for worker in 0..3 {
                    let there = |known: &&ExpectedTarget| known.target == target(worker);
                    let sum: Duration = requests.iter().flatten().filter(there).map(|known| known.prefill).sum();
                    let counted = work.by_target.get(&target(worker));
                    prop_assert_eq!(counted.map_or(Duration::ZERO, |work| work.all.prefill.iter().sum()), sum);
                    for number in 0..3 {
                        let before = work.before_ms(target(worker), one_more(number), LONG_MS);
                        prop_assert!((0.0..=sum.as_secs_f64() * 1e3 + 1.0).contains(&before));
                    }
                }
            }
            for (number, request) in (0u32..).zip(requests) {
                work.replace(tenant_of(number), request, None);
            }
            prop_assert!(work.by_target.is_empty());
        }

        #[test]
        fn before_a_request_that_waits_is_what_would_be_before_it_if_it_counted_nowhere(
            requests in prop::collection::vec((0u32..4, 1u32..4, 0.0f64..1e4), 1..40),
        ) {
            let expected = |(_, worker, ms): (u32, u32, f64)| Some(ExpectedTarget::new(target(worker), ms));
            let mut work = WaitingWork::default();
            for request in &requests {
                work.replace(tenant(request.0), None, expected(*request));
            }
            for request in requests {
                let waiting = WaitingRequest { expected: expected(request), ..one_more(request.0) };
                let with = [1, 2, 3].map(|worker| work.before_ms(target(worker), waiting, request.2));
                work.replace(tenant(request.0), waiting.expected, None);
                let without = [1, 2, 3].map(|worker| work.before_ms(target(worker), one_more(request.0), request.2));
                work.replace(tenant(request.0), None, waiting.expected);
                prop_assert_eq!(with, without, "{:?}", request);
            }
        }
    }
}
