//! A robust fit of the prices of a time's parts, from samples with outliers.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// A time, and the amount of each of its three parts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeSample {
    /// The amounts. The second part explains the time that the others do not.
    pub parts: [f64; 3],
    /// Above 0.
    pub ms: f64,
}

impl TimeSample {
    /// Returns the expected time at these prices.
    pub fn expected_ms(&self, prices: &[f64; 3]) -> f64 {
        self.parts
            .iter()
            .zip(prices)
            .map(|(part, price)| part * price)
            .sum()
    }

    /// Returns the sample's time as a multiple of the expected one.
    pub fn ratio(&self, prices: &[f64; 3]) -> f64 {
        self.ms / self.expected_ms(prices)
    }

    /// Returns the logarithm of that ratio: twice as much is as far off as half.
    fn off(&self, prices: &[f64; 3]) -> f64 {
        self.ratio(prices).ln()
    }

    /// Returns the sample of a worker faster by this factor.
    pub(super) fn over(&self, factor: f64) -> Self {
        Self {
            ms: self.ms / factor,
            ..*self
        }
    }
}

/// Prices before any sample, and their bounds.
#[derive(Clone, Debug)]
pub struct RatePrior {
    /// Prices of parts without evidence.
    pub prices: [f64; 3],
    /// Bounds of each price; the second one's do not include 0.
    pub bounds: [RangeInclusive<f64>; 3],
}

/// Rounds of reweighting samples by their deviation.
const ROUNDS: usize = 6;
/// Weight of the prior beside each sample, for parts without evidence.
const WEIGHT: f64 = 1e-4;

/// Returns the prices closest to most of `samples`, in relative terms; `before` is the start of the
/// search.
pub fn fit(samples: &[TimeSample], before: [f64; 3], belief: &RatePrior) -> [f64; 3] {
    let mut prices = before;
    let mut weights = Vec::with_capacity(samples.len());
    let mut deviations: Vec<f64> = Vec::with_capacity(samples.len());
    for round in 0..ROUNDS {
        let weigh =
            |sample: &TimeSample, trust: f64| trust / (sample.ms * sample.expected_ms(&prices));
        weights.clear();
        if round == 0 {
            // All samples are trusted: the earlier prices may be another engine's.
            weights.extend(samples.iter().map(|sample| weigh(sample, 1.0)));
        } else {
            deviations.clear();
            deviations.extend(samples.iter().map(|sample| sample.off(&prices).abs()));
            let scale = 2.0 * median(deviations.iter().copied()).max(1e-6);
            let trust = |deviation: f64| (scale / deviation.max(scale)).powi(2);
            let with_deviations = samples.iter().zip(&deviations);
            weights.extend(with_deviations.map(|(sample, off)| weigh(sample, trust(*off))));
        }
        prices = solved(samples, &weights, belief);
    }
    prices
}

/// Solves least squares of relative differences, without negative parts.
fn solved(samples: &[TimeSample], weights: &[f64], belief: &RatePrior) -> [f64; 3] {
    let equations = NormalEquations::of(samples, weights, &belief.prices);
    for used in [
        [true, true, true],
        [true, true, false],
        [false, true, true],
        [false, true, false],
    ] {
        if let Some(prices) = equations.solution(used)
            && prices
                .iter()
                .zip(&belief.bounds)
                .all(|(price, bounds)| price >= bounds.start())
        {
            return std::array::from_fn(|part| prices[part].min(*belief.bounds[part].end()));
        }
    }
    belief.prices
}

/// The normal equations of weighted samples.
#[derive(Debug)]
struct NormalEquations {
    /// One for each part, with the right side last.
    rows: [[f64; 4]; 3],
    /// Parts differ greatly in size: each is scaled by its mean over the samples.
    unit: [f64; 3],
}

impl NormalEquations {
    fn of(samples: &[TimeSample], weights: &[f64], believed: &[f64; 3]) -> Self {
        let mean = |part: usize| {
            samples.iter().map(|sample| sample.parts[part]).sum::<f64>() / samples.len() as f64
        };
        let unit = [mean(0), mean(1), mean(2)];
        let mut rows = [[0.0; 4]; 3];
        let mut belief = 0.0;
        for (sample, weight) in samples.iter().zip(weights) {
            belief += WEIGHT * weight;
            let parts = sample.parts;
            for row in 0..3 {
                for column in 0..3 {
                    rows[row][column] +=
                        weight * parts[row] / unit[row] * parts[column] / unit[column];
                }
                rows[row][3] += weight * parts[row] / unit[row] * sample.ms;
            }
        }
        for part in [0, 2] {
            rows[part][part] += belief;
            rows[part][3] += belief * believed[part] * unit[part];
        }
        Self { rows, unit }
    }

    /// Solves the equations of the used parts by elimination; `None` if they have no solution.
    fn solution(&self, used: [bool; 3]) -> Option<[f64; 3]> {
        let (mut rows, unit) = (self.rows, self.unit);
        for part in (0..3).filter(|part| !used[*part]) {
            rows.iter_mut().for_each(|row| row[part] = 0.0);
            rows[part] = [0.0; 4];
            rows[part][part] = 1.0;
        }
        for pivot in 0..3 {
            let best = (pivot..3)
                .max_by(|a, b| rows[*a][pivot].abs().total_cmp(&rows[*b][pivot].abs()))?;
            rows.swap(pivot, best);
            if rows[pivot][pivot].abs() < f64::MIN_POSITIVE {
                return None;
            }
            for row in (0..3).filter(|row| *row != pivot) {
                let times = rows[row][pivot] / rows[pivot][pivot];
                let taken = rows[pivot].map(|value| times * value);
                rows[row]
                    .iter_mut()
                    .zip(taken)
                    .for_each(|(value, taken)| *value -= taken);
            }
        }
        let found = [0, 1, 2].map(|part| rows[part][3] / rows[part][part] / unit[part]);
        found.iter().all(|part| part.is_finite()).then_some(found)
    }
}

/// Values of which the median is found without an allocation.
const MOST_ON_STACK: usize = 96;

/// Returns the median; of two middle values the upper one. 0 without values.
pub fn median(mut values: impl Iterator<Item = f64>) -> f64 {
    let mut first = [0.0; MOST_ON_STACK];
    let mut count = 0;
    for (place, value) in first.iter_mut().zip(values.by_ref()) {
        *place = value;
        count += 1;
    }
    match values.next() {
        None => middle(&mut first[..count]),
        Some(next) => {
            let later = std::iter::once(next).chain(values);
            middle(&mut first.into_iter().chain(later).collect::<Vec<f64>>())
        }
    }
}

fn middle(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_upper_one_of_the_middle_values_of_any_number() {
        for count in [
            1,
            2,
            5,
            MOST_ON_STACK - 1,
            MOST_ON_STACK,
            MOST_ON_STACK + 1,
            500,
        ] {
            // In an order that is not theirs.
            let values = (0..count).map(|at| (at * 7_919 % count) as f64);
            let mut sorted: Vec<f64> = values.clone().collect();
            sorted.sort_unstable_by(f64::total_cmp);
            assert_eq!(median(values), sorted[count / 2], "{count}");
        }
        assert_eq!(median(std::iter::empty()), 0.0);
    }
}
