//! The curve of time over prompt length, fitted to samples of which some are wild.

/// Time to first token of a prompt: `overhead_ms + a * tokens + b * (end^2 - start^2)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Curve {
    pub(super) overhead_ms: f64,
    /// Milliseconds per token.
    linear: f64,
    /// Milliseconds per token and per twice the tokens before it.
    square: f64,
}

/// A CPU with a large model, to a rack with a small one.
const LINEAR: std::ops::RangeInclusive<f64> = 0.002..=50.0;
const SQUARE: std::ops::RangeInclusive<f64> = 0.0..=0.01;
const OVERHEAD_MS: std::ops::RangeInclusive<f64> = 0.0..=2000.0;

/// Rounds of weighing samples anew by how far they are off.
const ROUNDS: usize = 6;
/// What samples say nothing about is what it was believed to be: that counts as so much beside each of them.
const BELIEF: f64 = 1e-4;

impl Curve {
    pub(super) const PRIOR: Self = Self { overhead_ms: 14.0, linear: 1.0 / 7.0, square: 0.0 };

    /// Time to compute `tokens` behind `start`, without the overhead.
    pub(super) fn ms(&self, start: f64, tokens: f64) -> f64 {
        self.linear * tokens + self.square * squares(start, tokens)
    }

    /// So many times slower.
    pub(super) fn times(self, factor: f64) -> Self {
        let Self { overhead_ms, linear, square } = self;
        let within = |value: f64, range: &std::ops::RangeInclusive<f64>| value.clamp(*range.start(), *range.end());
        Self {
            overhead_ms: within(overhead_ms * factor, &OVERHEAD_MS),
            linear: within(linear * factor, &LINEAR),
            square: within(square * factor, &SQUARE),
        }
    }
}

fn squares(start: f64, tokens: f64) -> f64 {
    tokens * (2.0 * start + tokens)
}

/// One first token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    tokens: f64,
    squares: f64,
    ms: f64,
}

impl Sample {
    pub(super) fn new(start: f64, tokens: f64, ms: f64) -> Self {
        Self { tokens, squares: squares(start, tokens), ms }
    }

    fn parts(&self) -> [f64; 3] {
        [1.0, self.tokens, self.squares]
    }

    /// What the curve says of it, overhead included.
    fn expected_ms(&self, curve: &Curve) -> f64 {
        curve.overhead_ms + curve.linear * self.tokens + curve.square * self.squares
    }

    /// How many times more than the curve says it took, as a logarithm: twice as much is as far off as half.
    fn off(&self, curve: &Curve) -> f64 {
        (self.ms / self.expected_ms(curve)).ln()
    }

    /// How many times what the curve says it took.
    pub(super) fn ratio(&self, curve: &Curve) -> f64 {
        self.ms / self.expected_ms(curve)
    }

    /// The same of a worker so many times as fast.
    pub(super) fn over(&self, factor: f64) -> Self {
        Self { ms: self.ms / factor, ..*self }
    }
}

/// The curve that is closest to most of `samples`; `before` is the one until now.
pub(super) fn fit(samples: &[Sample], before: Curve) -> Curve {
    let least_ms = samples.iter().map(|sample| sample.ms).fold(f64::INFINITY, f64::min);
    // Prompts of one length cannot tell the overhead from the price of a token: it stays, within half of what was seen.
    let believed = Curve { overhead_ms: before.overhead_ms.min(0.5 * least_ms), square: 0.0, ..before };
    let mut curve = before;
    for round in 0..ROUNDS {
        let scale = 2.0 * median(samples.iter().map(|sample| sample.off(&curve).abs())).max(1e-6);
        // The first round believes everybody: the curve of before may be another engine's.
        let trust =
            |sample: &Sample| if round == 0 { 1.0 } else { (scale / sample.off(&curve).abs().max(scale)).powi(2) };
        let weigh = |sample: &Sample| trust(sample) / (sample.ms * sample.expected_ms(&curve));
        let weights: Vec<f64> = samples.iter().map(weigh).collect();
        curve = solved(samples, &weights, believed);
    }
    if tells_the_price_of_a_token(samples, &curve) { curve } else { without_price(samples, before) }
}

/// Whether lengths explain more than the noise.
fn tells_the_price_of_a_token(samples: &[Sample], curve: &Curve) -> bool {
    let mut lengths: Vec<f64> = samples.iter().map(|sample| sample.tokens).collect();
    lengths.sort_unstable_by(f64::total_cmp);
    let (short, long) = (lengths[lengths.len() / 4], lengths[lengths.len() * 3 / 4]);
    let noise_ms = median(samples.iter().map(|sample| (sample.ms - sample.expected_ms(curve)).abs()));
    // Of one length there is nothing to explain.
    let explained_ms = curve.ms(0.0, if long - short < 0.1 * long { long } else { long - short });
    explained_ms >= 2.0 * noise_ms
}

/// All the time there is goes to the prompt's length, or to what does not depend on it: only the latter is supported by
/// prompts too short to tell, unless the price of before already explains more than was seen.
fn without_price(samples: &[Sample], before: Curve) -> Curve {
    let most = median(samples.iter().map(|sample| sample.ms / sample.tokens));
    let linear = before.linear.min(most).clamp(*LINEAR.start(), *LINEAR.end());
    let overhead_ms = median(samples.iter().map(|sample| sample.ms - linear * sample.tokens));
    Curve { overhead_ms: overhead_ms.clamp(*OVERHEAD_MS.start(), *OVERHEAD_MS.end()), linear, square: before.square }
}

/// Least squares of relative differences, without negative parts.
fn solved(samples: &[Sample], weights: &[f64], believed: Curve) -> Curve {
    for used in [[true, true, true], [true, true, false], [false, true, true], [false, true, false]] {
        if let Some([overhead, linear, square]) = least_squares(samples, weights, believed, used)
            && overhead >= 0.0
            && linear >= *LINEAR.start()
            && square >= 0.0
        {
            return Curve {
                overhead_ms: overhead.clamp(*OVERHEAD_MS.start(), *OVERHEAD_MS.end()),
                linear: linear.clamp(*LINEAR.start(), *LINEAR.end()),
                square: square.clamp(*SQUARE.start(), *SQUARE.end()),
            };
        }
    }
    believed
}

/// The normal equations of the used parts, solved by elimination; `None` where they say nothing.
fn least_squares(samples: &[Sample], weights: &[f64], believed: Curve, used: [bool; 3]) -> Option<[f64; 3]> {
    // Parts are of very different size: each is measured by its mean over the samples.
    let mean = |part: usize| samples.iter().map(|sample| sample.parts()[part]).sum::<f64>() / samples.len() as f64;
    let unit = [mean(0), mean(1), mean(2)];
    let mut rows = [[0.0; 4]; 3];
    let mut belief = 0.0;
    for (sample, weight) in samples.iter().zip(weights) {
        belief += BELIEF * weight;
        let parts = sample.parts();
        for row in 0..3 {
            for column in 0..3 {
                rows[row][column] += weight * parts[row] / unit[row] * parts[column] / unit[column];
            }
            rows[row][3] += weight * parts[row] / unit[row] * sample.ms;
        }
    }
    // The price of a token is whatever explains the rest.
    for (part, value) in [(0, believed.overhead_ms), (2, believed.square)] {
        rows[part][part] += belief;
        rows[part][3] += belief * value * unit[part];
    }
    for part in (0..3).filter(|part| !used[*part]) {
        rows.iter_mut().for_each(|row| row[part] = 0.0);
        rows[part] = [0.0; 4];
        rows[part][part] = 1.0;
    }
    for pivot in 0..3 {
        let best = (pivot..3).max_by(|a, b| rows[*a][pivot].abs().total_cmp(&rows[*b][pivot].abs()))?;
        rows.swap(pivot, best);
        if rows[pivot][pivot].abs() < f64::MIN_POSITIVE {
            return None;
        }
        for row in (0..3).filter(|row| *row != pivot) {
            let times = rows[row][pivot] / rows[pivot][pivot];
            let taken = rows[pivot].map(|value| times * value);
            rows[row].iter_mut().zip(taken).for_each(|(value, taken)| *value -= taken);
        }
    }
    let found = [0, 1, 2].map(|part| rows[part][3] / rows[part][part] / unit[part]);
    found.iter().all(|part| part.is_finite()).then_some(found)
}

/// The middle value; of two middle ones the upper. Zero of nothing.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    if values.is_empty() {
        return 0.0;
    }
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}
