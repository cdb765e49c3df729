//! How fast a worker is, learned from its first tokens.
//!
//! Samples are taken by the ledger when a worker had no prefill waiting, so that the time to first token is
//! `overhead + tokens * rate` and nothing else. The fit is the median of slopes between short and long prompts: it
//! shrugs off a quarter of wild samples, forgets by keeping the latest few, and never leaves its bounds. A worker that
//! is not known yet is taken to be like the others.
//!
//! **Invariant**: whatever is observed, every figure is finite, positive and within [`BOUNDS`].

use std::collections::HashMap;

use kv_blocks::WorkerId;

/// How fast a worker is believed to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Prompt tokens computed in a second.
    pub prefill_tokens_per_s: f64,
    /// Time to first token that does not depend on the prompt.
    pub overhead_ms: f64,
    /// What one more sequence in the batch adds to each decode step; a prior, not learned yet.
    pub decode_ms_per_sequence: f64,
    /// First tokens the estimate has seen.
    pub samples: u64,
    /// Whether enough were seen to trust them over the prior.
    pub learned: bool,
}

impl Rates {
    /// What is believed of a worker before anything was seen: one current GPU with a model of 8 billion parameters.
    pub const PRIOR: Self = Self {
        prefill_tokens_per_s: 7000.0,
        overhead_ms: 14.0,
        decode_ms_per_sequence: 0.02,
        samples: 0,
        learned: false,
    };

    /// Time to compute `tokens` prompt tokens.
    pub(crate) fn prefill_ms(&self, tokens: f64) -> f64 {
        tokens * 1e3 / self.prefill_tokens_per_s
    }

    /// What the decoding sequences add to one step: their number, and the context they read (a sequence of 700 tokens
    /// costs as much for its context as for being there).
    pub(crate) fn step_ms(&self, sequences: u32, context_tokens: u64) -> f64 {
        self.decode_ms_per_sequence * (f64::from(sequences) + context_tokens as f64 / CONTEXT_TOKENS_PER_SEQUENCE)
    }
}

/// Context tokens that cost one decode step as much as one more sequence does.
pub(crate) const CONTEXT_TOKENS_PER_SEQUENCE: f64 = 700.0;

/// A CPU with a large model, to a rack with a small one: milliseconds per token, and overhead in milliseconds.
const BOUNDS: (std::ops::RangeInclusive<f64>, std::ops::RangeInclusive<f64>) = (0.002..=50.0, 0.0..=2000.0);

/// Samples kept for a fit; older ones are forgotten.
const KEPT: usize = 32;

/// Samples needed before a fit replaces the prior.
const ENOUGH: u64 = 8;

/// What is known of every worker's speed. Bounded: one learner per worker that has not been forgotten.
#[derive(Debug, Default)]
pub(crate) struct RateBook {
    workers: HashMap<WorkerId, Learner>,
    /// All workers as one: the prior of a worker that is not known yet.
    fleet: Learner,
}

impl RateBook {
    /// `worker` took `ms` to the first token of a prompt with `tokens` to compute, and had nothing else to compute.
    pub(crate) fn observe(&mut self, worker: WorkerId, tokens: u32, ms: f64) {
        self.workers.entry(worker).or_default().observe(tokens, ms);
        self.fleet.observe(tokens, ms);
    }

    /// The best belief about `worker`.
    pub(crate) fn of(&self, worker: WorkerId) -> Rates {
        let own = self.workers.get(&worker);
        let samples = own.map_or(0, |learner| learner.samples);
        let learned = samples >= ENOUGH;
        let source = own.filter(|_| learned).unwrap_or(&self.fleet);
        Rates {
            prefill_tokens_per_s: 1e3 / source.ms_per_token,
            overhead_ms: source.overhead_ms,
            samples,
            learned,
            ..Rates::PRIOR
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
    }
}

#[derive(Debug)]
struct Learner {
    /// The latest samples (tokens, ms); when full the oldest is overwritten.
    kept: Vec<(f64, f64)>,
    samples: u64,
    ms_per_token: f64,
    overhead_ms: f64,
}

impl Default for Learner {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            samples: 0,
            ms_per_token: 1e3 / Rates::PRIOR.prefill_tokens_per_s,
            overhead_ms: Rates::PRIOR.overhead_ms,
        }
    }
}

impl Learner {
    fn observe(&mut self, tokens: u32, ms: f64) {
        if tokens == 0 || !ms.is_finite() || ms < 0.0 {
            return;
        }
        let sample = (f64::from(tokens), ms);
        if self.kept.len() < KEPT {
            self.kept.push(sample);
        } else {
            self.kept[usize::try_from(self.samples % KEPT as u64).expect("below KEPT")] = sample;
        }
        self.samples += 1;
        if self.samples >= ENOUGH {
            self.fit();
        }
    }

    fn fit(&mut self) {
        let (slope_bounds, overhead_bounds) = BOUNDS;
        let slope = |ms_per_token: f64| ms_per_token.clamp(*slope_bounds.start(), *slope_bounds.end());
        let overhead = |ms: f64| ms.clamp(*overhead_bounds.start(), *overhead_bounds.end());

        let mut sorted = self.kept.clone();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (short, long) = sorted.split_at(sorted.len() / 2);
        let least_apart = 0.1 * long.last().map_or(0.0, |longest| longest.0);
        let pairs: Vec<_> =
            short.iter().zip(long).filter(|(a, b)| b.0 - a.0 >= least_apart.max(1.0)).map(|(a, b)| (*a, *b)).collect();
        if pairs.len() >= 4 {
            let ms_per_token = slope(median(pairs.iter().map(|(a, b)| (b.1 - a.1) / (b.0 - a.0))));
            let base = median(sorted.iter().map(|(tokens, ms)| ms - ms_per_token * tokens));
            let noise = median(sorted.iter().map(|(tokens, ms)| (ms - base - ms_per_token * tokens).abs()));
            let spread = median(pairs.iter().map(|(a, b)| b.0 - a.0));
            // Lengths that explain no more than the noise say nothing about the slope.
            if ms_per_token * spread >= 2.0 * noise {
                self.ms_per_token = ms_per_token;
                self.overhead_ms = overhead(base);
                return;
            }
            // All the time there is goes to the prompt's length, or to what does not depend on it: only the latter is
            // supported by prompts too short to tell, unless the old slope already explains more than was seen.
            self.ms_per_token = self.ms_per_token.min(slope(median(sorted.iter().map(|(tokens, ms)| ms / tokens))));
            self.overhead_ms = overhead(median(sorted.iter().map(|(tokens, ms)| ms - self.ms_per_token * tokens)));
            return;
        }
        // Prompts of one length cannot tell slope from overhead: the overhead stays, within half of what was seen.
        self.overhead_ms = overhead(self.overhead_ms.min(0.5 * median(sorted.iter().map(|(_, ms)| *ms))));
        let base = self.overhead_ms;
        self.ms_per_token = slope(median(sorted.iter().map(|(tokens, ms)| (ms - base) / tokens)));
    }
}

/// The middle value; of two middle ones the upper. Zero of nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    if values.is_empty() {
        return 0.0;
    }
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const W: WorkerId = WorkerId(1);

    /// Feeds `count` prompts of mixed lengths to an engine of known speed.
    fn learn(tokens_per_s: f64, overhead_ms: f64, count: u32, disturb: impl Fn(u32, f64) -> f64) -> Rates {
        let mut book = RateBook::default();
        for i in 0..count {
            let tokens = 60 + (i * 997) % 3000;
            book.observe(W, tokens, disturb(i, overhead_ms + f64::from(tokens) * 1e3 / tokens_per_s));
        }
        book.of(W)
    }

    fn close(got: f64, want: f64, share: f64) -> bool {
        (got - want).abs() <= share * want
    }

    #[test]
    fn thirty_requests_teach_the_speed_of_a_fast_and_of_a_slow_engine() {
        for (tokens_per_s, overhead_ms) in [(10_000.0, 2.0), (500.0, 30.0), (90_000.0, 8.0), (60.0, 5.0)] {
            let rates = learn(tokens_per_s, overhead_ms, 30, |_, ms| ms);
            assert!(rates.learned);
            assert_eq!(rates.samples, 30);
            assert!(close(rates.prefill_tokens_per_s, tokens_per_s, 0.01), "{rates:?}");
            assert!((rates.overhead_ms - overhead_ms).abs() < 0.5, "{rates:?}");
        }
    }

    #[test]
    fn one_wild_sample_in_five_moves_the_estimate_little() {
        let rates = learn(10_000.0, 2.0, 30, |i, ms| if i % 5 == 0 { ms * 20.0 + 500.0 } else { ms * 1.05 });
        assert!(close(rates.prefill_tokens_per_s, 10_000.0, 0.25), "{rates:?}");
    }

    #[test]
    fn an_engine_that_changes_speed_is_learned_again() {
        let mut book = RateBook::default();
        for i in 0..200u32 {
            let tokens = 60 + (i * 997) % 3000;
            let ms_per_token = if i < 100 { 0.1 } else { 0.4 };
            book.observe(W, tokens, 5.0 + f64::from(tokens) * ms_per_token);
        }
        assert!(close(book.of(W).prefill_tokens_per_s, 2_500.0, 0.02));
    }

    #[test]
    fn prompts_of_one_length_still_give_the_time_they_took() {
        for (tokens_per_s, overhead_ms) in [(10_000.0, 2.0), (500.0, 30.0)] {
            let mut book = RateBook::default();
            let took = overhead_ms + 1000.0 * 1e3 / tokens_per_s;
            for _ in 0..30 {
                book.observe(W, 1000, took);
            }
            let rates = book.of(W);
            assert!(close(rates.overhead_ms + rates.prefill_ms(1000.0), took, 0.01), "{rates:?}");
            assert!(close(rates.prefill_tokens_per_s, tokens_per_s, 0.25), "{rates:?}");
        }
    }

    #[test]
    fn short_prompts_drowned_in_noise_do_not_make_prefill_free() {
        let mut book = RateBook::default();
        for i in 0..64u32 {
            book.observe(W, 8 + i % 24, 20.0 + f64::from((i * 7919) % 13));
        }
        let rates = book.of(W);
        assert!(rates.prefill_tokens_per_s <= 7_001.0, "{rates:?}");
    }

    #[test]
    fn an_unknown_worker_is_taken_to_be_like_the_others() {
        let mut book = RateBook::default();
        assert_eq!(book.of(W), Rates::PRIOR);
        for i in 0..30u32 {
            let tokens = 60 + (i * 997) % 3000;
            book.observe(WorkerId(2), tokens, 20.0 + f64::from(tokens) * 2.0);
        }
        let rates = book.of(W);
        assert!(!rates.learned);
        assert!(close(rates.prefill_tokens_per_s, 500.0, 0.02), "{rates:?}");
        book.forget(WorkerId(2));
        assert_eq!(book.of(WorkerId(2)).samples, 0);
    }

    proptest! {
        #[test]
        fn no_sequence_of_samples_leaves_the_bounds(samples in prop::collection::vec((0u32.., -1e3f64..1e9), 0..100)) {
            let mut book = RateBook::default();
            for (tokens, ms) in samples {
                book.observe(W, tokens, ms);
            }
            let rates = book.of(W);
            prop_assert!((20.0..=500_001.0).contains(&rates.prefill_tokens_per_s));
            prop_assert!((0.0..=2000.0).contains(&rates.overhead_ms));
        }
    }
}
