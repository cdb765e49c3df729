//! The speeds of all workers at one kind of work.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;
use kv_blocks::{Moment, WorkerId};

use super::{
    learner::{FACTOR, RateLearner},
    robust::{TimeSample, median},
};

/// Samples of all workers together that replace the prior.
const MIN_FLEET_SAMPLES: usize = 8;
/// Most samples of all workers; older ones are dropped.
pub(super) const MOST_SAMPLES: usize = 96;
/// Below this number each sample is fitted; afterwards every fourth.
const EAGER: u64 = 64;

/// The prices of one kind of work on a worker with factor 1.
pub(super) trait SpeedCurve: Copy {
    /// Returns the curve before any sample.
    fn prior() -> Self;

    /// Returns the prices of the parts of a sample.
    fn prices(&self) -> [f64; 3];

    /// Returns the curve with these prices, within their bounds; `None`: they are no numbers.
    fn of_prices(prices: [f64; 3]) -> Option<Self>;

    /// Returns the curve of a worker slower by this factor, within its bounds.
    fn times(self, factor: f64) -> Self;

    /// Returns the factor that makes `other` this curve.
    fn factor_over(&self, other: &Self) -> f64;

    /// Returns the curve closest to most of `samples`.
    fn fitted_to(&self, samples: &[TimeSample]) -> Self;
}

/// The learned speeds. Bounded: one learner per worker that has not been forgotten.
#[derive(Debug)]
pub(super) struct SpeedTable<C> {
    pub(super) workers: HashMap<WorkerId, RateLearner, FixedState>,
    /// The latest samples of all workers, oldest first; at most [`MOST_SAMPLES`].
    pub(super) samples: VecDeque<(WorkerId, TimeSample)>,
    pub(super) seen: u64,
    /// The curve of a worker with factor 1.
    pub(super) curve: C,
}

impl<C: SpeedCurve> Default for SpeedTable<C> {
    fn default() -> Self {
        Self {
            workers: HashMap::default(),
            samples: VecDeque::new(),
            seen: 0,
            curve: C::prior(),
        }
    }
}

impl<C: SpeedCurve> SpeedTable<C> {
    /// Records the time of some work of `worker`.
    pub(super) fn observe(&mut self, now: Moment, worker: WorkerId, sample: TimeSample) {
        self.samples.push_back((worker, sample));
        self.drop_oldest();
        self.seen += 1;
        if self.samples.len() >= MIN_FLEET_SAMPLES
            && (self.seen < EAGER || self.seen.is_multiple_of(4))
        {
            self.fit();
        }
        let learner = self.workers.entry(worker).or_default();
        if learner.observe(now, sample, &self.curve.prices()) {
            // It is another engine now: its earlier samples are no evidence about any engine.
            self.samples.retain(|(seen, _)| *seen != worker);
            self.samples.extend(
                learner
                    .recent_samples
                    .iter()
                    .map(|sample| (worker, *sample)),
            );
            self.drop_oldest();
        }
        self.anchor();
    }

    fn drop_oldest(&mut self) {
        self.samples
            .drain(..self.samples.len().saturating_sub(MOST_SAMPLES));
    }

    /// Fixes the scale: samples show only the product of curve and factor. The median worker has
    /// the factor 1, so that an unknown worker is like the others, and curve and factors do not
    /// drift apart.
    fn anchor(&mut self) {
        let known = || self.workers.values().filter(|learner| learner.is_known());
        if known().next().is_none() {
            return;
        }
        let middle = median(known().map(|learner| learner.factor));
        let before = self.curve;
        self.curve = before.times(middle);
        // The curve is limited by its bounds: the part that it could not absorb stays with the
        // workers.
        let taken_up = self.curve.factor_over(&before);
        let known = self
            .workers
            .values_mut()
            .filter(|learner| learner.is_known());
        known.for_each(|learner| {
            learner.factor = (learner.factor / taken_up).clamp(*FACTOR.start(), *FACTOR.end())
        });
    }

    /// Fits the curve to the times that all workers would have taken if they were alike.
    fn fit(&mut self) {
        let factor = |worker| {
            self.workers
                .get(worker)
                .map_or(1.0, |learner| learner.factor)
        };
        let alike: Vec<TimeSample> = self
            .samples
            .iter()
            .map(|(worker, sample)| sample.over(factor(worker)))
            .collect();
        self.curve = self.curve.fitted_to(&alike);
    }

    /// Records that `worker` is in use, though nothing shows its speed.
    pub(super) fn record_activity(&mut self, now: Moment, worker: WorkerId) {
        if let Some(learner) = self.workers.get_mut(&worker) {
            learner.record_activity(now);
        }
    }

    pub(super) fn learner(&self, worker: WorkerId) -> Option<&RateLearner> {
        self.workers.get(&worker)
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
        self.samples.retain(|(seen, _)| *seen != worker);
    }
}
