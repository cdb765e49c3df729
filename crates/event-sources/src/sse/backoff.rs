//! Waits between connections.

use std::time::Duration;

/// First wait, unless the configured interval is shorter.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait.
const LONGEST: Duration = Duration::from_secs(60);
/// A connection of at least this length resets the waits.
const GOOD: Duration = Duration::from_secs(60);
/// Most jitter, as a share of the wait, so that readers that lost one server together do not return
/// together.
const JITTER: f64 = 0.1;

/// The waits of one stream: min(1 s, interval), the interval, then doubling up to a minute.
#[derive(Debug)]
pub(crate) struct SseBackoff {
    interval: Duration,
    next: Duration,
}

impl SseBackoff {
    /// Creates the waits for an `interval`, which is `reconnect_interval_ms`.
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            next: FIRST.min(interval),
        }
    }

    /// Returns the wait after a connection of this length (zero: it could not be made), however it
    /// ended. `chance` is from 0 to 1.
    pub(crate) fn after(&mut self, lasted: Duration, chance: f64) -> Duration {
        if lasted >= GOOD {
            self.next = FIRST.min(self.interval);
        }
        let wait = self.next;
        self.next = if wait < self.interval {
            self.interval
        } else {
            wait * 2
        }
        .min(LONGEST);
        wait.mul_f64(1.0 + JITTER * chance.clamp(0.0, 1.0))
            .min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn pauses(backoff: &mut SseBackoff, count: usize) -> Vec<u128> {
        (0..count)
            .map(|_| backoff.after(Duration::ZERO, 0.0).as_millis())
            .collect()
    }

    #[test]
    #[contract("CK48")]
    fn the_first_pause_is_a_second_then_the_interval_doubling_to_a_minute() {
        let mut backoff = SseBackoff::new(Duration::from_secs(5));
        assert_eq!(
            pauses(&mut backoff, 8),
            [1000, 5000, 10_000, 20_000, 40_000, 60_000, 60_000, 60_000]
        );
    }

    #[test]
    fn a_healthy_minute_resets_the_pauses_and_a_shorter_connection_does_not() {
        let mut backoff = SseBackoff::new(Duration::from_secs(5));
        pauses(&mut backoff, 4);
        assert_eq!(backoff.after(Duration::from_secs(59), 0.0).as_secs(), 40);
        assert_eq!(backoff.after(Duration::from_secs(60), 0.0).as_secs(), 1);
        assert_eq!(backoff.after(Duration::ZERO, 0.0).as_secs(), 5);
    }

    #[test]
    fn a_short_interval_also_shortens_the_first_pause() {
        let mut backoff = SseBackoff::new(Duration::from_millis(20));
        assert_eq!(pauses(&mut backoff, 4), [20, 40, 80, 160]);
        assert_eq!(
            pauses(&mut SseBackoff::new(Duration::from_secs(90)), 3),
            [1000, 60_000, 60_000]
        );
    }

    #[test]
    fn jitter_adds_at_most_a_tenth_and_never_exceeds_a_minute() {
        let mut backoff = SseBackoff::new(Duration::from_secs(5));
        assert_eq!(backoff.after(Duration::ZERO, 1.0).as_millis(), 1100);
        pauses(&mut backoff, 6);
        assert_eq!(backoff.after(Duration::ZERO, 1.0).as_secs(), 60);
    }
}
