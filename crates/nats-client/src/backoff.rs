//! Waits between connections to NATS.

use std::time::Duration;

use resilience::{Backoff, jittered};

const FIRST: Duration = Duration::from_millis(100);
/// Longest wait, before jitter.
const LONGEST: Duration = Duration::from_secs(2);
/// A connection of at least this length resets the wait. A shorter one does not, or a server that
/// accepts and then closes every connection would be called ten times a second forever.
const GOOD: Duration = Duration::from_secs(5);
/// Most jitter, as a share of the wait: all readers lose a server at the same time.
const JITTER: f64 = 0.5;

/// Returns the waits of one reader or relay.
pub fn reconnects() -> Backoff {
    Backoff::new(FIRST, LONGEST).reset_after(GOOD)
}

/// Returns the wait after a connection of this length (zero: it could not be made).
pub fn wait(backoff: &mut Backoff, lasted: Duration, chance: f64) -> Duration {
    jittered(backoff.after(lasted), JITTER, chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_two_seconds_and_reset_after_a_good_connection() {
        let mut backoff = reconnects();
        for pause in [100, 200, 400, 800, 1_600, 2_000, 2_000] {
            let wait = wait(&mut backoff, Duration::ZERO, 0.0);
            assert_eq!(wait.as_millis(), pause);
        }
        let late = wait(&mut backoff, Duration::from_secs(4), 0.0);
        assert_eq!(late.as_millis(), 2_000);
        assert_eq!(wait(&mut backoff, GOOD, 1.0).as_millis(), 150);
    }
}
