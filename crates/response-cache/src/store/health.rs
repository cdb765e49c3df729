//! The breaker of a store: it decides whether requests wait for a lookup, leave it to the
//! background, or skip it. Pure: time and randomness are arguments.
//!
//! After a slow answer, requests do not wait for the store until a background lookup is quick;
//! after a failure, one background lookup at a time probes it, after growing pauses.

use std::time::Duration;

use kv_blocks::Moment;
use resilience::jittered;

/// Maximum random share added to a pause, so that routers that lost one store together do not
/// return together.
const JITTER: f64 = 0.25;

/// Breaker settings of a kind of store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BreakerConfig {
    /// Concurrent background lookups while the store is slow.
    pub(crate) background: usize,
    /// First and longest pause between two of them.
    pub(crate) slow: (Duration, Duration),
    /// The pauses after a failure; `None`: the store itself detects its outages and their end.
    pub(crate) outage: Option<(Duration, Duration)>,
}

/// The decision about a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupAdmission {
    /// The request waits for it.
    Wait,
    /// It runs in the background.
    Background,
    /// It does not run.
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    Prompt,
    Slow,
    Down,
}

#[derive(Debug)]
pub(crate) struct StoreHealth {
    config: BreakerConfig,
    state: BreakerState,
    /// Earliest time of the next lookup while the store is not prompt.
    next: Moment,
    pause: Duration,
    /// Start of the prompt state.
    since: Moment,
    background: usize,
}

impl StoreHealth {
    pub(crate) fn new(config: BreakerConfig) -> Self {
        Self {
            config,
            state: BreakerState::Prompt,
            next: Moment::START,
            pause: Duration::ZERO,
            since: Moment::START,
            background: 0,
        }
    }

    /// Decides about a lookup. [`Self::record_late_result`] must follow each
    /// [`LookupAdmission::Background`].
    pub(crate) fn admit(&mut self, now: Moment) -> LookupAdmission {
        let limit = match self.state {
            BreakerState::Prompt => return LookupAdmission::Wait,
            BreakerState::Slow => self.config.background,
            BreakerState::Down => 1,
        };
        if now < self.next || self.background >= limit {
            return LookupAdmission::Refuse;
        }
        self.background += 1;
        LookupAdmission::Background
    }

    /// Records the end of a background lookup, whatever its result.
    pub(crate) fn record_late_result(&mut self) {
        self.background = self.background.saturating_sub(1);
    }

    pub(crate) fn is_prompt(&self) -> bool {
        self.state == BreakerState::Prompt
    }

    pub(crate) fn is_down(&self) -> bool {
        self.state == BreakerState::Down
    }

    /// Records an answer in time; returns whether the state changed.
    pub(crate) fn quick(&mut self, now: Moment) -> bool {
        let news = !self.is_prompt();
        if news {
            self.state = BreakerState::Prompt;
            self.since = now;
        }
        news
    }

    /// Records an answer that was not in time; returns whether the state changed.
    pub(crate) fn slow(&mut self, now: Moment, chance: f64) -> bool {
        let news = self.state == BreakerState::Prompt;
        let outage = self.is_down();
        if !outage {
            self.state = BreakerState::Slow;
            self.wait(now, chance, self.config.slow);
        }
        news
    }

    /// Records a late answer: the store is available again.
    pub(crate) fn late(&mut self, now: Moment) {
        if self.is_down() {
            self.state = BreakerState::Slow;
            self.next = now;
            self.pause = Duration::ZERO;
        }
    }

    /// Records a failure; returns whether the state changed.
    pub(crate) fn failed(&mut self, now: Moment, chance: f64) -> bool {
        let Some(pauses) = self.config.outage else {
            return false;
        };
        let news = !self.is_down();
        self.state = BreakerState::Down;
        // Only the first of several concurrent failures counts.
        self.wait(now, chance, pauses);
        news
    }

    /// Schedules the next lookup after a pause. A store that was healthy for the longest pause
    /// starts again from the first one.
    fn wait(&mut self, now: Moment, chance: f64, (first, longest): (Duration, Duration)) {
        if now < self.next {
            return;
        }
        let was_well = now.since(self.since.max(self.next)) >= longest;
        self.pause = if was_well {
            first
        } else {
            (self.pause * 2).clamp(first, longest)
        };
        self.next = now + jittered(self.pause, JITTER, chance).min(longest);
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const BREAKER: BreakerConfig = BreakerConfig {
        background: 1,
        slow: (Duration::from_millis(100), Duration::from_secs(1)),
        outage: Some((Duration::from_millis(200), Duration::from_secs(30))),
    };

    fn at(ms: u64) -> Moment {
        Moment::at(Duration::from_millis(ms))
    }

    #[test]
    #[contract("F44")]
    fn lookups_skip_a_slow_store_until_a_background_lookup_is_quick() {
        let mut health = StoreHealth::new(BREAKER);
        assert_eq!(health.admit(at(1_000)), LookupAdmission::Wait);
        assert!(health.slow(at(1_050), 0.0), "news");
        assert!(!health.slow(at(1_050), 0.0), "reported once");
        assert_eq!(health.admit(at(1_051)), LookupAdmission::Refuse);
        assert_eq!(health.admit(at(1_150)), LookupAdmission::Background);
        assert_eq!(
            health.admit(at(1_150)),
            LookupAdmission::Refuse,
            "one at a time"
        );
        health.slow(at(1_200), 0.0);
        health.record_late_result();
        assert_eq!(
            health.admit(at(1_300)),
            LookupAdmission::Refuse,
            "the pause has doubled"
        );
        assert_eq!(health.admit(at(1_400)), LookupAdmission::Background);
        assert!(health.quick(at(1_401)));
        health.record_late_result();
        assert_eq!(health.admit(at(1_402)), LookupAdmission::Wait);
    }

    #[test]
    #[contract("F48", "F50")]
    fn pauses_after_failures_grow_to_their_bound_and_end_with_one_background_lookup() {
        let mut health = StoreHealth::new(BREAKER);
        assert!(health.failed(at(0), 0.0));
        assert!(
            !health.failed(at(1), 1.0),
            "others that were under way add nothing"
        );
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let start = now;
            while health.admit(now) == LookupAdmission::Refuse {
                now = now + Duration::from_millis(10);
            }
            pauses.push(now.since(start).as_millis());
            assert_eq!(health.admit(now), LookupAdmission::Refuse, "one at a time");
            health.failed(now, 0.0);
            health.record_late_result();
        }
        assert_eq!(
            pauses,
            [
                200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000
            ]
        );
        health.late(now);
        assert_eq!(
            health.admit(now),
            LookupAdmission::Background,
            "it is present, only slow"
        );
        health.quick(now);
        health.record_late_result();
        assert_eq!(health.admit(now), LookupAdmission::Wait);
    }

    #[test]
    fn jitter_lengthens_pauses_and_a_long_healthy_time_resets_them() {
        let mut health = StoreHealth::new(BREAKER);
        health.failed(at(0), 1.0);
        assert_eq!(health.admit(at(249)), LookupAdmission::Refuse);
        assert_eq!(health.admit(at(250)), LookupAdmission::Background);
        health.failed(at(250), 0.0);
        health.record_late_result();
        health.quick(at(700));
        health.failed(at(40_000), 0.0);
        assert_eq!(health.admit(at(40_199)), LookupAdmission::Refuse);
        assert_eq!(health.admit(at(40_200)), LookupAdmission::Background);
    }

    #[test]
    fn a_store_with_its_own_availability_check_gets_no_pause_after_failures() {
        let mut health = StoreHealth::new(BreakerConfig {
            outage: None,
            ..BREAKER
        });
        assert!(!health.failed(at(0), 0.0));
        assert_eq!(health.admit(at(0)), LookupAdmission::Wait);
    }
}
