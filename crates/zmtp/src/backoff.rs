//! Pauses between connection attempts.

use std::time::Duration;

use resilience::Backoff;

const FIRST: Duration = Duration::from_millis(100);
/// The longest pause after an attempt. A publisher that was away for long is read again at most
/// this long after its return, so that its worker is used again, and then its events, within three
/// seconds.
const LONGEST: Duration = Duration::from_secs(2);
/// Minimum duration of a good connection. Shorter ones do not reset the pause; otherwise a peer
/// that accepts every connection and then breaks off would be called ten times a second for ever.
const GOOD: Duration = Duration::from_secs(1);

/// Returns the pauses of one connection.
pub(crate) fn reconnects() -> Backoff {
    Backoff::new(FIRST, LONGEST).reset_after(GOOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_two_seconds_and_reset_after_a_good_connection() {
        let mut backoff = reconnects();
        let waits: Vec<u128> = (0..8)
            .map(|_| backoff.after(Duration::ZERO).as_millis())
            .collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000, 2000]);
        assert_eq!(backoff.after(Duration::from_millis(999)).as_millis(), 2000);
        assert_eq!(backoff.after(GOOD).as_millis(), 100);
        assert_eq!(backoff.after(Duration::ZERO).as_millis(), 200);
    }
}
