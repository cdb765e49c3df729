//! The time of decode steps.

use std::ops::RangeInclusive;

use super::{
    CONTEXT_TOKENS_PER_SEQUENCE,
    learner::is_alike,
    robust::{TimeSample, median},
    table::SpeedCurve,
};
use crate::DecodeSample;

/// The time of a decode step of one current GPU with a model of 8 billion parameters: for the step
/// itself, and for each sequence in it.
const STEP_MS: f64 = 4.45;
pub(super) const SEQUENCE_MS: f64 = 0.02;

/// Prices by sequences, the step itself and context tokens.
const PRIOR: [f64; 3] = [
    SEQUENCE_MS,
    STEP_MS,
    SEQUENCE_MS / CONTEXT_TOKENS_PER_SEQUENCE,
];

/// Largest amount or time that a sample may have.
const MOST: f64 = 1e12;

/// Bounds of a worker's times, relative to the prior.
const SCALE: RangeInclusive<f64> = 0.01..=100.0;

/// Time of a decode step, by the sequences in it and their context.
///
/// Only the scale is learned: models of 8 to 70 billion parameters, on one to four GPUs, differ by a
/// tenth in the ratio of the prices. Few sequences at a time, or always as many, do not separate the
/// price of a sequence from that of the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DecodeCurve {
    scale: f64,
}

impl DecodeCurve {
    /// Returns the time that one more sequence adds to each step.
    pub(super) fn sequence_ms(self) -> f64 {
        self.scale * SEQUENCE_MS
    }

    fn of_scale(scale: f64) -> Self {
        // Samples of an earlier process may have amounts beyond any number.
        let scale = if scale.is_nan() { 1.0 } else { scale };
        Self {
            scale: scale.clamp(*SCALE.start(), *SCALE.end()),
        }
    }
}

impl SpeedCurve for DecodeCurve {
    fn prior() -> Self {
        Self { scale: 1.0 }
    }

    fn prices(&self) -> [f64; 3] {
        PRIOR.map(|price| self.scale * price)
    }

    fn of_prices(prices: [f64; 3]) -> Option<Self> {
        let scale = prices[1] / STEP_MS;
        scale.is_finite().then(|| Self::of_scale(scale))
    }

    fn times(self, factor: f64) -> Self {
        Self::of_scale(self.scale * factor)
    }

    fn factor_over(&self, other: &Self) -> f64 {
        self.scale / other.scale
    }

    fn fitted_to(&self, samples: &[TimeSample]) -> Self {
        let off = median(samples.iter().map(|sample| sample.ratio(&self.prices())));
        // A few samples more or less are no reason to change it.
        if is_alike(off) {
            *self
        } else {
            self.times(off)
        }
    }
}

impl DecodeSample {
    /// Returns the time of a step; `None`: it is none.
    pub(super) fn step(self) -> Option<TimeSample> {
        let parts = [self.sequences, 1.0, self.context_tokens];
        let is_valid = parts.iter().all(|part| (0.0..=MOST).contains(part));
        let has_time = self.token_ms > 0.0 && self.token_ms <= MOST;
        (is_valid && has_time).then_some(TimeSample {
            parts,
            ms: self.token_ms,
        })
    }
}
