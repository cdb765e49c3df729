//! The curve of prefill time over prompt length.

use std::ops::RangeInclusive;

use super::{
    robust::{self, RatePrior, TimeSample, median},
    table::SpeedCurve,
};

/// Time to first token of a prompt: `overhead_ms + token_ms * tokens + square_ms * (end^2 -
/// start^2)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillCurve {
    /// The part that does not depend on the prompt, in milliseconds.
    pub overhead_ms: f64,
    /// Milliseconds for each token.
    pub token_ms: f64,
    /// Milliseconds for each token and twice the tokens before it.
    pub square_ms: f64,
}

/// From a CPU with a large model to a rack with a small one.
const TOKEN_MS: RangeInclusive<f64> = 0.002..=50.0;
const SQUARE_MS: RangeInclusive<f64> = 0.0..=0.01;
const OVERHEAD_MS: RangeInclusive<f64> = 0.0..=2000.0;

impl PrefillCurve {
    /// One current GPU with a model of 8 billion parameters.
    pub const PRIOR: Self = Self {
        overhead_ms: 14.0,
        token_ms: 1.0 / 7.0,
        square_ms: 0.0,
    };

    /// Returns the sample of a first token that took `ms`, with `tokens` computed after `start`
    /// cached ones.
    pub fn sample(start: f64, tokens: f64, ms: f64) -> TimeSample {
        TimeSample {
            parts: [1.0, tokens, squares(start, tokens)],
            ms,
        }
    }

    /// Returns the curve closest to most of `samples`; `None` if their lengths explain no more than
    /// their noise. Coefficients without evidence stay as in `before`.
    pub fn fit_curve(samples: &[TimeSample], before: Self) -> Option<Self> {
        if samples.is_empty() {
            return None;
        }
        let least_ms = samples
            .iter()
            .map(|sample| sample.ms)
            .fold(f64::INFINITY, f64::min);
        // Prompts of one length cannot separate the overhead from the price of a token: the
        // overhead stays, within half of the observed time.
        let belief = RatePrior {
            prices: [before.overhead_ms.min(0.5 * least_ms), before.token_ms, 0.0],
            bounds: [OVERHEAD_MS, TOKEN_MS, SQUARE_MS],
        };
        let [overhead_ms, token_ms, square_ms] = robust::fit(samples, before.prices(), &belief);
        Some(Self {
            overhead_ms,
            token_ms,
            square_ms,
        })
        .filter(|curve| curve.explains(samples))
    }

    /// Returns the prices of overhead, tokens and their squares.
    pub fn prices(&self) -> [f64; 3] {
        [self.overhead_ms, self.token_ms, self.square_ms]
    }

    /// Returns the time to compute `tokens` after `start`, without the overhead.
    pub fn ms(&self, start: f64, tokens: f64) -> f64 {
        self.token_ms * tokens + self.square_ms * squares(start, tokens)
    }

    /// Returns whether lengths explain more than the noise.
    fn explains(&self, samples: &[TimeSample]) -> bool {
        let mut lengths: Vec<f64> = samples.iter().map(tokens).collect();
        lengths.sort_unstable_by(f64::total_cmp);
        let (short, long) = (lengths[lengths.len() / 4], lengths[lengths.len() * 3 / 4]);
        let prices = self.prices();
        let noise_ms = median(
            samples
                .iter()
                .map(|sample| (sample.ms - sample.expected_ms(&prices)).abs()),
        );
        // With prompts of one length there is nothing to explain.
        let explained_ms = self.ms(
            0.0,
            if long - short < 0.1 * long {
                long
            } else {
                long - short
            },
        );
        explained_ms >= 2.0 * noise_ms
    }

    /// Returns a curve with the earlier price of a token, or a lower one if that already explains
    /// more than was observed; the remaining time is overhead. Prompts too short to separate the
    /// two are evidence for the overhead only.
    fn without_price(samples: &[TimeSample], before: Self) -> Self {
        let most = median(samples.iter().map(|sample| sample.ms / tokens(sample)));
        let token_ms = within(before.token_ms.min(most), &TOKEN_MS);
        let overhead_ms = median(
            samples
                .iter()
                .map(|sample| sample.ms - token_ms * tokens(sample)),
        );
        Self {
            overhead_ms: within(overhead_ms, &OVERHEAD_MS),
            token_ms,
            square_ms: before.square_ms,
        }
    }
}

impl SpeedCurve for PrefillCurve {
    fn prior() -> Self {
        Self::PRIOR
    }

    fn prices(&self) -> [f64; 3] {
        PrefillCurve::prices(self)
    }

    fn of_prices(prices: [f64; 3]) -> Option<Self> {
        let [overhead_ms, token_ms, square_ms] = prices;
        let curve = Self {
            overhead_ms,
            token_ms,
            square_ms,
        };
        prices
            .iter()
            .all(|price| price.is_finite())
            .then(|| curve.times(1.0))
    }

    fn times(self, factor: f64) -> Self {
        Self {
            overhead_ms: within(self.overhead_ms * factor, &OVERHEAD_MS),
            token_ms: within(self.token_ms * factor, &TOKEN_MS),
            square_ms: within(self.square_ms * factor, &SQUARE_MS),
        }
    }

    fn factor_over(&self, other: &Self) -> f64 {
        self.token_ms / other.token_ms
    }

    fn fitted_to(&self, samples: &[TimeSample]) -> Self {
        Self::fit_curve(samples, *self).unwrap_or_else(|| Self::without_price(samples, *self))
    }
}

fn tokens(sample: &TimeSample) -> f64 {
    sample.parts[1]
}

fn squares(start: f64, tokens: f64) -> f64 {
    tokens * (2.0 * start + tokens)
}

fn within(value: f64, range: &RangeInclusive<f64>) -> f64 {
    value.clamp(*range.start(), *range.end())
}
