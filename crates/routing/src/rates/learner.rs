//! The factor of one worker.

use std::{collections::VecDeque, ops::RangeInclusive, time::Duration};

use kv_blocks::Moment;

use super::robust::{TimeSample, median};

/// A worker whose factor changes by this ratio at once is taken to be another engine.
const ANOTHER: f64 = 1.5;
/// Bounds of a worker's factor relative to the others.
pub(super) const FACTOR: RangeInclusive<f64> = 0.02..=50.0;
/// Most samples of one worker; older ones are dropped.
pub(super) const MOST_RECENT: usize = 32;
/// Samples of one worker that distinguish it from the others.
const MIN_SAMPLES: usize = 8;
/// Half-life of a slow worker's factor while it gets no samples; older samples then count for no
/// more than a few. Otherwise a worker that gets no requests because it was slow once would never
/// show that it has recovered.
const FADES: Duration = Duration::from_secs(60);
const MOST_STALE: usize = 3;

/// Returns whether times that differ by this factor are about equal.
pub(super) fn is_alike(factor: f64) -> bool {
    (0.9..=1.1).contains(&factor)
}

/// A worker's factor: its times as a multiple of the others'.
#[derive(Debug)]
pub(super) struct RateLearner {
    /// The latest samples, oldest first; at most [`MOST_RECENT`].
    pub(super) recent_samples: VecDeque<TimeSample>,
    pub(super) samples: u64,
    pub(super) factor: f64,
    /// When its last first token came, whether or not it was a sample of its speed.
    pub(super) last_seen: Moment,
    /// When the last sample of its speed came.
    pub(super) last_sample: Moment,
}

impl Default for RateLearner {
    fn default() -> Self {
        Self {
            recent_samples: VecDeque::new(),
            samples: 0,
            factor: 1.0,
            last_seen: Moment::START,
            last_sample: Moment::START,
        }
    }
}

impl RateLearner {
    /// Returns whether there were enough samples to distinguish it from the others.
    pub(super) fn is_known(&self) -> bool {
        self.samples >= MIN_SAMPLES as u64
    }

    /// Returns whether it is known, and a first token came lately.
    pub(super) fn is_current(&self, now: Moment) -> bool {
        self.is_known() && now.since(self.last_seen) < FADES
    }

    /// Records that the worker is in use: of a slow one that was not for long, few samples stay. A
    /// sample of decode steps follows its own first token.
    pub(super) fn record_activity(&mut self, now: Moment) {
        if self.factor > 1.0 && now.since(self.last_seen) >= FADES {
            self.recent_samples
                .drain(..self.recent_samples.len().saturating_sub(MOST_STALE));
        }
        self.last_seen = now;
    }

    /// Adds a sample; returns whether the worker's speed changed greatly.
    pub(super) fn observe(&mut self, now: Moment, sample: TimeSample, prices: &[f64; 3]) -> bool {
        self.record_activity(now);
        self.last_sample = now;
        if self.recent_samples.len() == MOST_RECENT {
            self.recent_samples.pop_front();
        }
        self.recent_samples.push_back(sample);
        self.samples = self.samples.saturating_add(1);
        if !self.is_known() {
            return false;
        }
        let factor = median(
            self.recent_samples
                .iter()
                .map(|sample| sample.ratio(prices)),
        );
        // One of the others: a few samples more or less are no reason to prefer it.
        let before = self.factor;
        self.factor = if is_alike(factor) {
            1.0
        } else {
            factor.clamp(*FACTOR.start(), *FACTOR.end())
        };
        !(1.0 / ANOTHER..=ANOTHER).contains(&(self.factor / before))
    }

    /// Returns the factor by now: a slow worker's returns to that of the others while no first
    /// token comes.
    pub(super) fn faded(&self, now: Moment) -> f64 {
        if self.factor <= 1.0 {
            return self.factor;
        }
        let left = 0.5_f64.powf(now.since(self.last_seen).as_secs_f64() / FADES.as_secs_f64());
        1.0 + (self.factor - 1.0) * left
    }
}
