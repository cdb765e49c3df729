//! The share of each target's time that lets in requests without room.
//!
//! Each target earns credit while requests wait and spends it on the prompts of such requests. It
//! earns what lets in every waiting request within the target wait, at least an eighth of its time and
//! at most a quarter: a larger share would be spent on blocks that it displaces itself.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::FixedState;
use kv_blocks::{Moment, Target, WorkerId};

/// Least and most share of a target's time.
const LEAST_SHARE: f64 = 0.125;
const MOST_SHARE: f64 = 0.25;
/// Most credit, in milliseconds.
const MOST_MS: f64 = 1000.0;
/// Time with waiting requests by which the observed rate fades to a third, and the least time that it is
/// taken to be of, in milliseconds.
const MEMORY_MS: f64 = 60_000.0;
const LEAST_OBSERVED_MS: f64 = 10_000.0;
/// Most targets with credit. More are forgotten, and start without credit.
const MOST_TARGETS: usize = 65_536;

/// What the share depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct LendingTerms {
    /// Time to compute the prompts of the requests that wait in this router.
    pub(super) need_ms: f64,
    /// The targets that they wait for.
    pub(super) targets: usize,
    /// Time within which each should be let in.
    pub(super) target_wait: Duration,
    /// Routers that send requests to the targets, each with a queue of its own.
    pub(super) routers: u32,
}

/// A target at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct LendingTarget {
    pub(super) now: Moment,
    pub(super) target: Target,
    /// Since when the first of the requests has waited that wait for room there; `None`: none does.
    pub(super) waiting_since: Option<Moment>,
    /// The share of its time that the target lends.
    pub(super) share: f64,
}

/// The credits of all targets.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    credits: HashMap<Target, Credit, FixedState>,
}

#[derive(Clone, Copy, Debug)]
struct Credit {
    ms: f64,
    at: Moment,
    /// Time to compute the prompts of the requests that were let in because there was room or credit,
    /// and the time in which requests waited, both in milliseconds; they fade.
    let_in_ms: f64,
    observed_ms: f64,
}

impl LendingTerms {
    /// Returns the share of each target's time that this router may lend. As many requests are taken
    /// to wait in each of the others, which lend as much.
    pub(super) fn share(&self) -> f64 {
        let routers = f64::from(self.routers.max(1));
        let wait_ms = self.target_wait.as_secs_f64().max(1.0) * 1e3;
        let wanted = self.need_ms * routers / (self.targets.max(1) as f64 * wait_ms);
        let share = if wanted.is_finite() {
            wanted.clamp(LEAST_SHARE, MOST_SHARE)
        } else {
            MOST_SHARE
        };
        share / routers
    }

    /// Returns the most that this may be, however many requests wait.
    pub(super) fn most_share(&self) -> f64 {
        MOST_SHARE / f64::from(self.routers.max(1))
    }
}

impl Lending {
    /// Returns the credit of a target, in milliseconds; below zero after it was spent.
    pub(super) fn credit_ms(&self, of: LendingTarget) -> f64 {
        let credit = self.credits.get(&of.target);
        credit.map_or(0.0, |credit| credit.at(of).ms)
    }

    /// Returns the milliseconds of prompts that a target lets in in each millisecond in which requests
    /// wait, as observed of late.
    pub(super) fn let_in_rate(&self, of: LendingTarget) -> f64 {
        self.credits.get(&of.target).map_or(0.0, |credit| {
            let credit = credit.at(of);
            credit.let_in_ms / credit.observed_ms.max(LEAST_OBSERVED_MS)
        })
    }

    /// Adds what a target has earned since the last call. The first call begins to count.
    pub(super) fn earn(&mut self, of: LendingTarget) {
        if self.credits.len() >= MOST_TARGETS && !self.credits.contains_key(&of.target) {
            self.credits.clear();
        }
        let credit = self.credits.entry(of.target).or_insert(Credit {
            ms: 0.0,
            at: of.now,
            let_in_ms: 0.0,
            observed_ms: 0.0,
        });
        *credit = credit.at(of);
    }

    /// Records that a request that waited for room is let in because there is some.
    pub(super) fn record_room(&mut self, target: Target, prefill_ms: f64) {
        if let Some(credit) = self.credits.get_mut(&target)
            && prefill_ms.is_finite()
        {
            credit.let_in_ms += prefill_ms.max(0.0);
        }
    }

    /// Spends the time to compute the prompt of a request that is let in without room.
    pub(super) fn spend(&mut self, target: Target, prefill_ms: f64) {
        self.record_room(target, prefill_ms);
        if let Some(credit) = self.credits.get_mut(&target)
            && prefill_ms.is_finite()
        {
            credit.ms -= prefill_ms.max(0.0);
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.credits.retain(|target, _| target.worker != worker);
    }
}

impl Credit {
    /// Returns the credit at a later moment. A debt is paid with time; credit is earned only while a
    /// request waits, or the first one would always find some.
    fn at(&self, of: LendingTarget) -> Self {
        let now = of.now.max(self.at);
        let since = of
            .waiting_since
            .map_or(now, |since| since.clamp(self.at, now));
        let (idle_ms, waiting_ms) = (since.ms_since(self.at), now.ms_since(since));
        let before_ms = if self.ms < 0.0 {
            (self.ms + of.share * idle_ms).min(0.0)
        } else {
            self.ms
        };
        let retained = (-waiting_ms / MEMORY_MS).exp();
        Self {
            ms: (before_ms + of.share * waiting_ms).min(MOST_MS),
            at: now,
            let_in_ms: self.let_in_ms * retained,
            observed_ms: self.observed_ms * retained + MEMORY_MS * (1.0 - retained),
        }
    }
}

/// Returns whether the credit is all that a target may have: a request without room then goes before
/// those that have some, so that they cannot hold it up for ever.
pub(super) fn is_full(credit_ms: f64) -> bool {
    credit_ms >= MOST_MS
}

#[cfg(test)]
mod tests {
    use kv_blocks::DpRank;
    use proptest::prelude::*;

    use super::*;

    const TARGET: Target = Target {
        worker: WorkerId(1),
        rank: DpRank(0),
    };

    fn at(ms: u64) -> Moment {
        Moment::at(Duration::from_millis(ms))
    }

    fn terms(need_ms: f64, routers: u32) -> LendingTerms {
        LendingTerms {
            need_ms,
            targets: 2,
            target_wait: Duration::from_secs(300),
            routers,
        }
    }

    #[test]
    fn the_share_lets_in_every_request_within_the_target_wait_between_its_limits() {
        for (need_ms, share) in [
            (0.0, 0.125),
            (60_000.0, 0.125),
            (120_000.0, 0.2),
            (150_000.0, 0.25),
            (1e9, 0.25),
            (f64::NAN, 0.25),
        ] {
            assert!(
                (terms(need_ms, 1).share() - share).abs() < 1e-9,
                "{need_ms}"
            );
            // Of four routers each has a quarter of the requests, and lends a quarter of the share.
            let of_four = terms(need_ms / 4.0, 4).share();
            assert!((of_four - share / 4.0).abs() < 1e-9, "{need_ms}");
        }
    }

    /// The target at this time, with a request that waits since then.
    fn since(waiting_since: Option<Moment>, now: Moment, share: f64) -> LendingTarget {
        LendingTarget {
            now,
            target: TARGET,
            waiting_since,
            share,
        }
    }

    /// The target at this time, with requests that always wait.
    fn waiting(now: Moment, share: f64) -> LendingTarget {
        since(Some(Moment::START), now, share)
    }

    #[test]
    fn credit_begins_at_zero_and_is_full_at_a_second() {
        let mut lending = Lending::default();
        lending.earn(waiting(at(5000), 0.25));
        let credit_ms = |lending: &Lending, ms| lending.credit_ms(waiting(at(ms), 0.25));
        assert_eq!(credit_ms(&lending, 5000), 0.0);
        assert_eq!(credit_ms(&lending, 6000), 250.0);
        assert!(is_full(credit_ms(&lending, 60_000)));
        lending.earn(waiting(at(60_000), 0.25));
        lending.spend(TARGET, 5000.0);
        assert_eq!(credit_ms(&lending, 60_000), -4000.0);
        assert_eq!(credit_ms(&lending, 76_000), 0.0);
        lending.forget(TARGET.worker);
        assert_eq!(credit_ms(&lending, 90_000), 0.0);
    }

    #[test]
    fn time_in_which_nobody_waits_pays_a_debt_and_earns_no_credit() {
        for (spent_ms, waiting_since, credit_ms) in [
            (0.0, None, 0.0),
            (0.0, Some(at(39_000)), 250.0),
            (0.0, Some(at(0)), 1000.0),
            (4000.0, None, 0.0),
            (20_000.0, None, -10_000.0),
            (4000.0, Some(at(38_000)), 500.0),
            (20_000.0, Some(at(38_000)), -10_000.0),
        ] {
            let mut lending = Lending::default();
            lending.earn(since(None, at(0), 0.25));
            lending.spend(TARGET, spent_ms);
            let found = lending.credit_ms(since(waiting_since, at(40_000), 0.25));
            assert_eq!(found, credit_ms, "{spent_ms} {waiting_since:?}");
        }
    }

    #[test]
    fn the_rate_is_that_of_the_last_minute_in_which_requests_waited() {
        let mut lending = Lending::default();
        let rate = |lending: &Lending, ms| lending.let_in_rate(waiting(at(ms), 0.25));
        assert_eq!(rate(&lending, 0), 0.0);
        for second in 0..600 {
            lending.earn(waiting(at(1000 * second), 0.25));
            lending.record_room(TARGET, 500.0);
        }
        assert!((rate(&lending, 600_000) - 0.5).abs() < 0.01);
        // While nobody waits, nobody can be let in.
        let idle = lending.let_in_rate(since(None, at(900_000), 0.25));
        assert!((idle - 0.5).abs() < 0.01, "{idle}");
        assert!(rate(&lending, 900_000) < 0.01);
    }

    #[test]
    fn one_request_that_is_let_in_at_once_is_no_rate() {
        let mut lending = Lending::default();
        lending.earn(waiting(at(1000), 0.25));
        lending.record_room(TARGET, 5000.0);
        lending.record_room(TARGET, f64::NAN);
        assert_eq!(lending.let_in_rate(waiting(at(1000), 0.25)), 0.5);
    }

    proptest! {
        /// A request may be let in while there is any credit, however long it takes.
        #[test]
        fn the_time_lent_never_exceeds_the_share_by_more_than_one_request_and_the_most_credit(
            share in 0.1f64..0.25,
            steps in prop::collection::vec((1u64..20_000, 1.0f64..20_000.0, any::<bool>()), 1..200),
        ) {
            let mut lending = Lending::default();
            lending.earn(waiting(at(0), share));
            let (mut now, mut lent, mut longest) = (0, 0.0, 0.0f64);
            for (ms, prefill_ms, waits) in steps {
                now += ms;
                let target = since(waits.then_some(Moment::START), at(now), share);
                lending.earn(target);
                if lending.credit_ms(target) > 0.0 {
                    lending.spend(TARGET, prefill_ms);
                    lent += prefill_ms;
                    longest = longest.max(prefill_ms);
                }
                prop_assert!(lent <= share * now as f64 + longest + MOST_MS);
            }
        }

        /// No target is locked for ever: the debt of one request is earned back at the share.
        #[test]
        fn credit_returns_within_the_time_that_the_last_request_took_over_the_share(
            share in 0.1f64..0.25,
            prefill_ms in 1.0f64..60_000.0,
        ) {
            let mut lending = Lending::default();
            lending.earn(waiting(at(0), share));
            lending.earn(waiting(at(100_000), share));
            lending.spend(TARGET, prefill_ms);
            let wait = Duration::from_secs_f64((prefill_ms / share + 1.0) / 1e3);
            prop_assert!(lending.credit_ms(waiting(at(100_000) + wait, share)) > 0.0);
        }
    }
}
