//! The bucket of tokens that limits a tenant's requests per second.

use std::time::Duration;

use kv_blocks::Moment;

/// Tokens that are left, at a moment. A request takes one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    tokens: f64,
    at: Moment,
}

/// A bucket begins full, whatever its size will be.
impl Default for TokenBucket {
    fn default() -> Self {
        Self {
            tokens: f64::INFINITY,
            at: Moment::START,
        }
    }
}

impl TokenBucket {
    /// Takes one token, or returns the time until there is one. The bucket holds what arrives in a
    /// second, at least one token.
    ///
    /// The rate may change between calls: what is left stays, up to the new size.
    pub(crate) fn take(&mut self, per_second: f64, now: Moment) -> Result<(), Duration> {
        let size = per_second.max(1.0);
        let arrived = now.since(self.at).as_secs_f64() * per_second;
        self.tokens = (self.tokens + arrived).min(size);
        self.at = self.at.max(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        let missing = (1.0 - self.tokens) / per_second;
        Err(Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: f64) -> Moment {
        Moment::at(Duration::from_secs_f64(seconds))
    }

    /// How many of `requests` at this moment get a token.
    fn taken(bucket: &mut TokenBucket, rate: f64, seconds: f64, requests: usize) -> usize {
        let now = at(seconds);
        (0..requests)
            .filter(|_| bucket.take(rate, now).is_ok())
            .count()
    }

    #[test]
    #[contract("V31")]
    fn a_seconds_worth_may_arrive_at_once_and_the_rate_holds_after_it() {
        let mut bucket = TokenBucket::default();
        assert_eq!(taken(&mut bucket, 5.0, 10.0, 20), 5);
        assert_eq!(taken(&mut bucket, 5.0, 10.1, 20), 0);
        assert_eq!(taken(&mut bucket, 5.0, 10.4, 20), 2);
        assert_eq!(
            taken(&mut bucket, 5.0, 1000.0, 20),
            5,
            "it never holds more"
        );
    }

    #[test]
    fn a_rate_below_one_still_lets_single_requests_through() {
        let mut bucket = TokenBucket::default();
        assert_eq!(taken(&mut bucket, 0.5, 0.0, 3), 1);
        let wait = bucket.take(0.5, at(0.5)).expect_err("too early");
        assert_eq!(wait, Duration::from_millis(1500));
        assert_eq!(taken(&mut bucket, 0.5, 2.0, 3), 1);
    }

    #[test]
    fn a_changed_rate_keeps_what_is_left_up_to_its_own_size() {
        let mut bucket = TokenBucket::default();
        assert_eq!(taken(&mut bucket, 10.0, 0.0, 4), 4);
        assert_eq!(taken(&mut bucket, 3.0, 0.0, 9), 3, "6 were left");
        assert_eq!(taken(&mut bucket, 10.0, 0.0, 9), 0);
    }

    #[test]
    fn a_moment_before_the_last_one_gives_nothing_away() {
        let mut bucket = TokenBucket::default();
        assert_eq!(taken(&mut bucket, 1.0, 5.0, 2), 1);
        assert_eq!(taken(&mut bucket, 1.0, 4.0, 2), 0);
        assert_eq!(taken(&mut bucket, 1.0, 5.5, 2), 0);
        assert_eq!(taken(&mut bucket, 1.0, 6.0, 2), 1);
    }

    proptest! {
        /// Over any time at most rate x time + size requests pass, and after the told wait one does.
        #[test]
        fn the_rate_is_never_exceeded_and_the_told_wait_suffices(
            rate in 0.1..200.0_f64,
            gaps in proptest::collection::vec(0.0..0.5_f64, 1..200),
        ) {
            let (mut bucket, mut now, mut passed) = (TokenBucket::default(), 0.0, 0.0);
            for gap in gaps {
                now += gap;
                match bucket.take(rate, at(now)) {
                    Ok(()) => passed += 1.0,
                    Err(wait) => {
                        let later = at(now) + wait + Duration::from_micros(1);
                        prop_assert!(bucket.clone().take(rate, later).is_ok());
                    }
                }
                prop_assert!(passed <= rate * now + rate.max(1.0) + 1e-6);
            }
        }
    }
}
