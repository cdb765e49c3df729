//! The recent hit rate of the cache. Pure: time is an argument.

use std::time::Duration;

use kv_blocks::Moment;

/// Length of a bucket.
const PART: Duration = Duration::from_secs(30);
/// Number of buckets: five minutes, the current one included.
const PARTS: usize = 10;

/// Hits and misses of the last five minutes, in buckets of half a minute.
#[derive(Clone, Debug, Default)]
pub(crate) struct HitRate {
    parts: [RateBucket; PARTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct RateBucket {
    /// Number of the bucket since the start of the process.
    number: u64,
    hits: u64,
    misses: u64,
}

impl HitRate {
    pub(crate) fn hit(&mut self, now: Moment) {
        self.part(now).hits += 1;
    }

    pub(crate) fn miss(&mut self, now: Moment) {
        self.part(now).misses += 1;
    }

    /// Returns the rate, 0 to 1; 0 without lookups.
    pub(crate) fn rate(&self, now: Moment) -> f64 {
        let number = number(now);
        let counts = self
            .parts
            .iter()
            .filter(|part| part.number <= number && part.number + PARTS as u64 > number);
        let (hits, all) = counts.fold((0, 0), |(hits, all), part| {
            (hits + part.hits, all + part.hits + part.misses)
        });
        #[expect(
            clippy::cast_precision_loss,
            reason = "a share of five minutes' requests"
        )]
        if all == 0 {
            0.0
        } else {
            hits as f64 / all as f64
        }
    }

    fn part(&mut self, now: Moment) -> &mut RateBucket {
        let number = number(now);
        let slot = usize::try_from(number % PARTS as u64).unwrap_or_default();
        let part = &mut self.parts[slot];
        // A late record must not bring an old bucket back.
        if part.number < number {
            *part = RateBucket {
                number,
                ..RateBucket::default()
            };
        }
        part
    }
}

fn number(now: Moment) -> u64 {
    now.since_start().as_secs() / PART.as_secs()
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    #[contract("CK68")]
    #[expect(clippy::float_cmp, reason = "quotients of small whole numbers")]
    fn the_hit_rate_covers_only_the_last_five_minutes() {
        let mut rate = HitRate::default();
        assert_eq!(rate.rate(at(0)), 0.0, "nothing was looked for");
        (0..3).for_each(|_| rate.miss(at(0)));
        rate.hit(at(0));
        assert_eq!(rate.rate(at(1)), 0.25);
        rate.hit(at(200));
        rate.hit(at(200));
        assert_eq!(rate.rate(at(200)), 0.5);
        assert_eq!(rate.rate(at(299)), 0.5);
        assert_eq!(
            rate.rate(at(300)),
            1.0,
            "the first half minute no longer counts"
        );
        assert_eq!(rate.rate(at(479)), 1.0);
        assert_eq!(rate.rate(at(480)), 0.0);
        rate.miss(at(1_000_000));
        assert_eq!(rate.rate(at(1_000_000)), 0.0);
        rate.hit(at(1_000_001));
        assert_eq!(rate.rate(at(1_000_001)), 0.5);
    }
}
