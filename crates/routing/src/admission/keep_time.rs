//! How long blocks count as used lately after their request ended, and how much that counts.
//!
//! A block that is kept costs its share of the cache; one that is not has to be computed again.
//! As with a rented thing that could be bought, it is kept until the rent is about the price. There
//! is one time for all targets: an engine evicts in the order of last use, and would not honour a
//! time of each session's own.

use std::time::Duration;

/// Multiple of the rent for which blocks are kept.
const RENT: f64 = 1.5;
/// Limits of the time, in seconds, and the time before anything is known.
const LEAST_S: f64 = 10.0;
const MOST_S: f64 = 300.0;
const PRIOR_S: f64 = 90.0;
/// Weight of one more request in the mean rent.
const WEIGHT: f64 = 0.01;
/// Share of the counts that remains with each request that ends.
const RETAINED: f64 = 0.995;
/// Requests that must have ended before the blocks of any count.
const LEAST_ENDED: f64 = 20.0;
/// From a share of 0.8 of prompts that return on, all blocks count.
const RETURN_GAIN: f64 = 1.25;

/// What is learned of how sessions use caches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeepTime {
    /// Mean time that a request's blocks may stay for the price of their computation, in seconds.
    rent_s: Option<f64>,
    ended: f64,
    returned: f64,
}

impl KeepTime {
    /// Records the end of a request that took this much engine time for its share of the cache.
    pub(super) fn ended(&mut self, rent_s: Option<f64>) {
        self.ended = self.ended * RETAINED + 1.0;
        self.returned *= RETAINED;
        if let Some(rent_s) = rent_s.filter(|rent_s| rent_s.is_finite() && *rent_s > 0.0) {
            let mean = self.rent_s.unwrap_or(rent_s);
            self.rent_s = Some(mean + WEIGHT * (rent_s - mean));
        }
    }

    /// Records that a request continues one that ended within the time.
    pub(super) fn returned(&mut self) {
        self.returned += 1.0;
    }

    /// Returns the time for which blocks count after their request ended.
    pub(super) fn time(&self) -> Duration {
        let seconds = self.rent_s.map_or(PRIOR_S, |rent_s| RENT * rent_s);
        Duration::from_secs_f64(seconds.clamp(LEAST_S, MOST_S))
    }

    /// Returns the share of live blocks that count, 0 to 1: none if prompts mostly do not return, as
    /// with single requests to an API.
    pub(super) fn share(&self) -> f64 {
        if self.ended < LEAST_ENDED {
            return 0.0;
        }
        (RETURN_GAIN * self.returned / self.ended).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_half_again_the_rent_within_its_limits() {
        for (rent_s, seconds) in [
            (None, 90.0),
            (Some(54.0), 81.0),
            (Some(1.0), 10.0),
            (Some(900.0), 300.0),
            (Some(f64::NAN), 90.0),
            (Some(-1.0), 90.0),
        ] {
            let mut keep = KeepTime::default();
            keep.ended(rent_s);
            assert_eq!(keep.time(), Duration::from_secs_f64(seconds), "{rent_s:?}");
        }
    }

    #[test]
    fn live_blocks_count_only_where_prompts_return() {
        let share = |returning: u32| {
            let mut keep = KeepTime::default();
            for request in 0..1000u32 {
                keep.ended(Some(54.0));
                if request % 10 < returning {
                    keep.returned();
                }
            }
            keep.share()
        };
        assert_eq!(share(0), 0.0);
        assert!((share(4) - 0.5).abs() < 0.02, "{}", share(4));
        assert_eq!(share(9), 1.0);
        let mut young = KeepTime::default();
        for _ in 0..19 {
            young.ended(None);
            young.returned();
        }
        assert_eq!(young.share(), 0.0);
    }
}
