//! The learned speeds of one process, for a later one.

use kv_blocks::{Moment, WorkerId};
use serde::{Deserialize, Serialize};

use super::{
    RateTable,
    learner::{FACTOR, MOST_RECENT, RateLearner},
    robust::TimeSample,
    table::{MOST_SAMPLES, SpeedCurve, SpeedTable},
};

/// The learned speed of every worker at one kind of work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LearnedSpeeds {
    /// Prices of the curve of a worker with factor 1.
    prices: [f64; 3],
    /// The latest samples of all workers, oldest first.
    samples: Vec<(u32, TimeSample)>,
    workers: Vec<LearnedSpeed>,
}

/// The learned speed of one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct LearnedSpeed {
    worker: u32,
    factor: f64,
    samples: u64,
    /// Its latest samples, oldest first.
    recent: Vec<TimeSample>,
}

impl LearnedSpeeds {
    pub(crate) fn retain(&mut self, is_known: impl Fn(WorkerId) -> bool) {
        self.samples
            .retain(|(worker, _)| is_known(WorkerId(*worker)));
        self.workers
            .retain(|speed| is_known(WorkerId(speed.worker)));
    }
}

impl RateTable {
    /// Returns what was learned of prefills, and of decode steps.
    pub(crate) fn learned(&self) -> [LearnedSpeeds; 2] {
        [self.prefill.learned(), self.decode.learned()]
    }

    /// Replaces what was learned of prefills, and of decode steps if any was; leaves out what cannot
    /// have been.
    pub(crate) fn restore(
        &mut self,
        now: Moment,
        prefill: LearnedSpeeds,
        decode: Option<LearnedSpeeds>,
    ) {
        self.prefill.restore(now, prefill);
        if let Some(decode) = decode {
            self.decode.restore(now, decode);
        }
    }
}

impl<C: SpeedCurve> SpeedTable<C> {
    fn learned(&self) -> LearnedSpeeds {
        let of_worker = |(worker, learner): (&WorkerId, &RateLearner)| LearnedSpeed {
            worker: worker.0,
            factor: learner.factor,
            samples: learner.samples,
            recent: learner.recent_samples.iter().copied().collect(),
        };
        let samples = self.samples.iter();
        LearnedSpeeds {
            prices: self.curve.prices(),
            samples: samples
                .map(|(worker, sample)| (worker.0, *sample))
                .collect(),
            workers: self.workers.iter().map(of_worker).collect(),
        }
    }

    fn restore(&mut self, now: Moment, learned: LearnedSpeeds) {
        let Some(curve) = C::of_prices(learned.prices) else {
            return;
        };
        let samples = learned.samples.into_iter();
        let samples = samples.filter(|(_, sample)| is_possible(sample));
        *self = Self {
            samples: samples
                .take(MOST_SAMPLES)
                .map(|(worker, sample)| (WorkerId(worker), sample))
                .collect(),
            curve,
            ..Self::default()
        };
        self.seen = self.samples.len() as u64;
        for speed in learned.workers {
            let recent = speed.recent.into_iter().filter(is_possible);
            let learner = RateLearner {
                recent_samples: recent.take(MOST_RECENT).collect(),
                samples: speed.samples,
                factor: speed.factor,
                last_seen: now,
                last_sample: now,
            };
            if FACTOR.contains(&speed.factor) && !learner.recent_samples.is_empty() {
                self.workers.insert(WorkerId(speed.worker), learner);
            }
        }
    }
}

fn is_possible(sample: &TimeSample) -> bool {
    let amounts = sample
        .parts
        .iter()
        .all(|part| part.is_finite() && *part >= 0.0);
    amounts && sample.parts[1] >= 1.0 && sample.ms.is_finite() && sample.ms > 0.0
}
