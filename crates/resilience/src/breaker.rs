//! The circuit breaker.

use std::time::Duration;

use kv_blocks::Moment;

use crate::Backoff;

/// Decides whether a service may be called.
///
/// It is closed until calls fail. It opens for a pause when enough calls failed in a row, and is
/// half-open after the pause: the service may be called again, one more failure opens the breaker
/// for a longer pause, and a success closes it.
///
/// Calls that began before it opened may still end. A failure of one starts a new pause; a caller
/// that ignores such failures checks [`Self::is_open`] first.
///
/// ```
/// use std::time::Duration;
/// use kv_blocks::Moment;
/// use resilience::{Backoff, CircuitBreaker};
///
/// let second = Duration::from_secs(1);
/// let mut breaker = CircuitBreaker::new(2, Backoff::new(second, 10 * second));
/// let now = Moment::START;
/// assert_eq!(breaker.record_failure(now), None);
/// assert_eq!(breaker.record_failure(now), Some(second));
/// assert!(breaker.is_open(now) && !breaker.is_open(now + second));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CircuitBreaker {
    threshold: u32,
    pauses: Backoff,
    /// Failures since the last success.
    failures: u32,
    open_until: Option<Moment>,
}

impl CircuitBreaker {
    /// Creates a closed breaker that `threshold` failures in a row open. A success resets `pauses`.
    pub const fn new(threshold: u32, pauses: Backoff) -> Self {
        Self {
            threshold,
            pauses,
            failures: 0,
            open_until: None,
        }
    }

    /// Returns whether the service must not be called.
    pub fn is_open(&self, now: Moment) -> bool {
        self.open_until.is_some_and(|until| now < until)
    }

    /// Records a success, which closes the breaker.
    pub fn record_success(&mut self) {
        self.failures = 0;
        self.open_until = None;
        self.pauses.reset();
    }

    /// Records a failure; returns the length of the pause if one begins now.
    pub fn record_failure(&mut self, now: Moment) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        (self.failures >= self.threshold).then(|| self.open(now))
    }

    /// Records a failure that will last: opens the breaker at once, for the longest pause.
    pub fn record_outage(&mut self, now: Moment) -> Duration {
        self.failures = self.threshold;
        self.pauses.skip_to_longest();
        self.open(now)
    }

    fn open(&mut self, now: Moment) -> Duration {
        let pause = self.pauses.pause();
        self.open_until = Some(now + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(4);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum State {
        Closed,
        Open,
        HalfOpen,
    }

    /// Returns a breaker that two failures open, in this state at this moment.
    fn breaker(state: State) -> (CircuitBreaker, Moment) {
        let mut breaker = CircuitBreaker::new(2, Backoff::new(FIRST, LONGEST));
        let mut now = Moment::START;
        if state != State::Closed {
            breaker.record_failure(now);
            breaker.record_failure(now);
        }
        if state == State::HalfOpen {
            now = now + FIRST;
        }
        (breaker, now)
    }

    fn state(breaker: &CircuitBreaker, now: Moment) -> State {
        match breaker.open_until {
            None => State::Closed,
            Some(_) if breaker.is_open(now) => State::Open,
            Some(_) => State::HalfOpen,
        }
    }

    #[test]
    fn each_event_leads_from_each_state_to_one_other() {
        use State::{Closed, HalfOpen, Open};
        type Event = fn(&mut CircuitBreaker, Moment) -> Option<Duration>;
        let success: Event = |breaker, _| {
            breaker.record_success();
            None
        };
        let failure: Event = CircuitBreaker::record_failure;
        let outage: Event = |breaker, now| Some(breaker.record_outage(now));
        for (from, event, pause, to) in [
            (Closed, success, None, Closed),
            (Closed, failure, None, Closed),
            (Closed, outage, Some(LONGEST), Open),
            (Open, success, None, Closed),
            (Open, failure, Some(2 * FIRST), Open),
            (Open, outage, Some(LONGEST), Open),
            (HalfOpen, success, None, Closed),
            (HalfOpen, failure, Some(2 * FIRST), Open),
            (HalfOpen, outage, Some(LONGEST), Open),
        ] {
            let (mut breaker, now) = breaker(from);
            assert_eq!(state(&breaker, now), from);
            assert_eq!(event(&mut breaker, now), pause, "{from:?}");
            assert_eq!(state(&breaker, now), to, "{from:?}");
            if let Some(pause) = pause {
                assert_eq!(state(&breaker, now + pause), HalfOpen, "{from:?}");
            }
        }
    }

    #[test]
    fn failures_in_a_row_open_it_for_pauses_that_grow_until_a_success() {
        let (mut breaker, mut now) = breaker(State::Closed);
        for pauses in [[0, 1, 2, 4, 4], [0, 1, 2, 4, 4]] {
            for pause in pauses.map(Duration::from_secs) {
                assert_eq!(breaker.record_failure(now).unwrap_or_default(), pause);
                now = now + pause;
                assert!(!breaker.is_open(now));
            }
            breaker.record_success();
        }
        breaker.record_outage(now);
        assert_eq!(breaker.record_failure(now), Some(LONGEST));
    }
}
