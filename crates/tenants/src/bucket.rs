//! The bucket of tokens behind each limit by time: of requests per second, of a model's tokens per
//! minute.

use std::time::Duration;

use kv_blocks::Moment;

/// What a bucket gets and holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Arriving tokens.
    per_second: f64,
    /// Most tokens that it holds.
    size: f64,
}

impl Rate {
    /// What arrives in a second, at least one, may be taken at once.
    pub(crate) fn per_second(rate: f64) -> Self {
        Self {
            per_second: rate,
            size: rate.max(1.0),
        }
    }

    /// What arrives in a minute may be taken at once.
    pub(crate) fn per_minute(rate: f64) -> Self {
        Self {
            per_second: rate / 60.0,
            size: rate,
        }
    }
}

/// Tokens that are left, at a moment; below 0: a debt that what arrives pays off.
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
    /// Takes this many tokens, or returns the time until they are there. More than the bucket holds
    /// are there when it is full; they leave a debt.
    ///
    /// The rate may change between calls: what is left stays, up to the new size.
    pub(crate) fn take(&mut self, tokens: f64, rate: Rate, now: Moment) -> Result<(), Duration> {
        self.fill(rate, now);
        let needed = tokens.min(rate.size);
        if self.tokens >= needed {
            self.tokens -= tokens;
            return Ok(());
        }
        let missing = (needed - self.tokens) / rate.per_second;
        Err(Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX))
    }

    /// Takes tokens that are used up already, also where they are not there.
    pub(crate) fn charge(&mut self, tokens: f64, rate: Rate, now: Moment) {
        self.fill(rate, now);
        self.tokens -= tokens;
    }

    /// Puts back tokens that were taken and not used.
    pub(crate) fn put_back(&mut self, tokens: f64) {
        self.tokens += tokens;
    }

    /// Adds what has arrived.
    fn fill(&mut self, rate: Rate, now: Moment) {
        let arrived = now.since(self.at).as_secs_f64() * rate.per_second;
        self.tokens = (self.tokens + arrived).min(rate.size);
        self.at = self.at.max(now);
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
            .filter(|_| bucket.take(1.0, Rate::per_second(rate), now).is_ok())
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
        let wait = bucket
            .take(1.0, Rate::per_second(0.5), at(0.5))
            .expect_err("too early");
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

    const MINUTE: Rate = Rate {
        per_second: 10.0,
        size: 600.0,
    };

    #[test]
    fn a_minutes_worth_may_be_taken_at_once_in_any_parts() {
        assert_eq!(Rate::per_minute(600.0), MINUTE);
        let mut bucket = TokenBucket::default();
        assert_eq!(bucket.take(400.0, MINUTE, at(5.0)), Ok(()));
        assert_eq!(bucket.take(200.0, MINUTE, at(5.0)), Ok(()));
        let wait = Err(Duration::from_secs(20));
        assert_eq!(bucket.take(200.0, MINUTE, at(5.0)), wait);
        assert_eq!(bucket.take(200.0, MINUTE, at(25.0)), Ok(()));
    }

    #[test]
    fn more_than_the_bucket_holds_waits_until_it_is_full_and_leaves_a_debt() {
        let mut bucket = TokenBucket::default();
        assert_eq!(bucket.take(1.0, MINUTE, at(0.0)), Ok(()));
        let wait = bucket.take(1800.0, MINUTE, at(0.0));
        assert_eq!(wait, Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(1800.0, MINUTE, at(0.1)), Ok(()));
        let wait = Duration::from_secs(121);
        assert_eq!(bucket.take(10.0, MINUTE, at(0.1)), Err(wait));
        assert_eq!(bucket.take(10.0, MINUTE, at(0.2) + wait), Ok(()));
    }

    #[test]
    fn what_is_used_beyond_the_reservation_is_charged_and_what_is_not_used_comes_back() {
        let mut bucket = TokenBucket::default();
        bucket.charge(700.0, MINUTE, at(0.0));
        assert_eq!(
            bucket.take(1.0, MINUTE, at(10.0)),
            Err(Duration::from_millis(100)),
            "the first charge counts too"
        );
        bucket.put_back(300.0);
        assert_eq!(bucket.take(300.0, MINUTE, at(10.0)), Ok(()));
        bucket.put_back(9000.0);
        assert_eq!(bucket.take(600.0, MINUTE, at(10.0)), Ok(()));
        assert!(
            bucket.take(1.0, MINUTE, at(10.0)).is_err(),
            "no more than its size"
        );
    }

    proptest! {
        /// Over any time what passed is at most rate x time + size + the last request.
        #[test]
        fn tokens_per_minute_hold_over_time(
            asked in proptest::collection::vec((0.0..20.0_f64, 1.0..2000.0_f64), 1..200),
        ) {
            let (mut bucket, mut now, mut passed) = (TokenBucket::default(), 0.0, 0.0);
            for (gap, tokens) in asked {
                now += gap;
                if bucket.take(tokens, MINUTE, at(now)).is_ok() {
                    prop_assert!(passed <= 10.0 * now + 600.0 + 1e-6, "{passed} before {tokens} at {now}");
                    passed += tokens;
                }
            }
        }

        /// Over any time at most rate x time + size requests pass, and after the told wait one does.
        #[test]
        fn the_rate_is_never_exceeded_and_the_told_wait_suffices(
            rate in 0.1..200.0_f64,
            gaps in proptest::collection::vec(0.0..0.5_f64, 1..200),
        ) {
            let (mut bucket, mut now, mut passed) = (TokenBucket::default(), 0.0, 0.0);
            for gap in gaps {
                now += gap;
                match bucket.take(1.0, Rate::per_second(rate), at(now)) {
                    Ok(()) => passed += 1.0,
                    Err(wait) => {
                        let later = at(now) + wait + Duration::from_micros(1);
                        prop_assert!(bucket.clone().take(1.0, Rate::per_second(rate), later).is_ok());
                    }
                }
                prop_assert!(passed <= rate * now + rate.max(1.0) + 1e-6);
            }
        }
    }
}
