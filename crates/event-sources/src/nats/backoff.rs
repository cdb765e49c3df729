//! Waits between connections to NATS.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

const FIRST: Duration = Duration::from_millis(100);
/// Longest wait, before jitter.
const LONGEST: Duration = Duration::from_secs(2);
/// A connection of at least this length resets the wait. A shorter one does not, or a server that
/// accepts and then closes every connection would be called ten times a second forever.
const GOOD: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct NatsBackoff {
    next: Option<Duration>,
}

impl NatsBackoff {
    /// Returns the wait after a connection of this length (zero: it could not be made).
    pub(crate) fn after(&mut self, lasted: Duration) -> Duration {
        self.with_chance(lasted, chance())
    }

    /// Adds jitter: `chance` is from 0 to 1 and adds at most half of the wait, because all readers
    /// lose a server at the same time.
    fn with_chance(&mut self, lasted: Duration, chance: f64) -> Duration {
        let wait = if lasted >= GOOD {
            FIRST
        } else {
            self.next.unwrap_or(FIRST)
        };
        self.next = Some((wait * 2).min(LONGEST));
        wait.mul_f64(1.0 + 0.5 * chance.clamp(0.0, 1.0))
    }
}

/// Returns a number from 0 to 1 that differs between processes and between calls.
fn chance() -> f64 {
    let drawn = RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(drawn >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_two_seconds_and_reset_after_a_good_connection() {
        let mut backoff = NatsBackoff::default();
        let waits: Vec<u128> = (0..7)
            .map(|_| backoff.with_chance(Duration::ZERO, 0.0).as_millis())
            .collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(
            backoff.with_chance(Duration::from_secs(4), 0.0).as_millis(),
            2000
        );
        assert_eq!(backoff.with_chance(GOOD, 1.0).as_millis(), 150);
    }
}
