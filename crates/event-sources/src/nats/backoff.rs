//! How long to wait before connecting to NATS again.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

const FIRST: Duration = Duration::from_millis(100);
/// The longest wait before chance adds to it.
const LONGEST: Duration = Duration::from_secs(2);
/// A connection that lasted this long was a good one. A shorter one does not reset the wait, or a server that accepts
/// everybody and then breaks off would be called ten times a second for ever.
const GOOD: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct NatsBackoff {
    next: Option<Duration>,
}

impl NatsBackoff {
    /// The wait after a connection that lasted so long (zero: it could not be made).
    pub(crate) fn after(&mut self, lasted: Duration) -> Duration {
        self.with_chance(lasted, chance())
    }

    /// `chance` is from 0 to 1, and adds half of the wait at most: all readers lose a server together.
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

/// A number from 0 to 1 that differs between processes and between calls.
fn chance() -> f64 {
    let drawn = RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(drawn >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_two_seconds_and_start_again_after_a_good_connection() {
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
