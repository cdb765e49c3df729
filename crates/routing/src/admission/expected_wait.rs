//! How long a request will wait for room: until those before it are let in, at the rate at which its
//! targets have let in requests of late or at which they lend, whichever is higher.

use std::time::Duration;

/// Longest expected wait: a day.
const MOST_MS: f64 = 86_400_000.0;

/// Returns the expected wait of a request; `before_ms`: the time to compute the prompts of the requests
/// before it, and what the targets have lent ahead; `rate`: the milliseconds of this that all its
/// targets do in each millisecond.
pub(super) fn expected_wait(before_ms: f64, rate: f64) -> Duration {
    let wait_ms = before_ms / rate;
    let wait_ms = if wait_ms.is_finite() {
        wait_ms.clamp(0.0, MOST_MS)
    } else {
        MOST_MS
    };
    Duration::from_secs_f64(wait_ms / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_the_work_before_the_request_over_the_rate_and_at_most_a_day() {
        for (before_ms, rate, seconds) in [
            (0.0, 0.1, 0.0),
            (4000.0, 0.8, 5.0),
            (4000.0, 2.0, 2.0),
            (-1.0, 0.1, 0.0),
            (f64::NAN, 0.1, 86_400.0),
            (f64::INFINITY, 0.1, 86_400.0),
            (1e300, 0.1, 86_400.0),
            (1.0, 0.0, 86_400.0),
        ] {
            let found = expected_wait(before_ms, rate).as_secs_f64();
            assert!(
                (found - seconds).abs() < 1e-6,
                "{before_ms} {rate}: {found}"
            );
        }
    }
}
