//! The speed of workers, learned from their first tokens.
//!
//! The ledger takes samples when a worker had no prefill waiting, so that the time to first token
//! is exactly `overhead + a * tokens + b * (end^2 - start^2)`: attention makes a token more
//! expensive the more tokens precede it. One curve is fitted to the first tokens of all workers, so
//! that it is known soon and for every length; each worker has a factor of its own. The fit weighs
//! samples by their relative deviation, which makes it robust against outliers; it forgets by
//! keeping only the latest samples. An unknown worker is assumed to be like the others.
//!
//! **Invariant**: for all inputs every figure is finite, positive and within its bounds.

use std::{
    collections::{HashMap, VecDeque},
    ops::RangeInclusive,
    time::Duration,
};

use foldhash::fast::FixedState;
use kv_blocks::{Moment, WorkerId};

pub use self::fit::PrefillCurve;
pub(crate) use self::learned::LearnedSpeeds;
use self::{
    learner::{FACTOR, RateLearner},
    robust::{TimeSample, median},
};
use crate::PrefillSample;

mod fit;
mod learned;
mod learner;
pub mod robust;

/// The estimated speed of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Prompt tokens computed per second, for a prompt of 4,096 tokens.
    pub prefill_tokens_per_s: f64,
    /// The part of the time to first token that does not depend on the prompt.
    pub overhead_ms: f64,
    /// Time that one more sequence in the batch adds to each decode step: a prior, times the
    /// worker's factor. Nothing is learned from decode steps yet.
    pub decode_ms_per_sequence: f64,
    /// First tokens of the worker that the estimate includes.
    pub samples: u64,
    /// Whether the worker has enough samples of its own to distinguish it from the others.
    pub learned: bool,
    /// The worker's curve.
    curve: PrefillCurve,
}

impl Rates {
    /// The estimate before any sample: one current GPU with a model of 8 billion parameters.
    pub const PRIOR: Self = Self {
        prefill_tokens_per_s: 7000.0,
        overhead_ms: 14.0,
        decode_ms_per_sequence: 0.02,
        samples: 0,
        learned: false,
        curve: PrefillCurve::PRIOR,
    };

    /// Returns the time to compute `tokens` prompt tokens after `start` cached ones.
    pub(crate) fn prefill_ms(&self, start: f64, tokens: f64) -> f64 {
        self.curve.ms(start, tokens)
    }

    /// Returns the time that one sequence with this context adds to a step.
    pub(crate) fn sequence_ms(&self, context_tokens: f64) -> f64 {
        self.decode_ms_per_sequence * (1.0 + context_tokens / CONTEXT_TOKENS_PER_SEQUENCE)
    }

    /// Returns the time that the decoding sequences add to one step: for their number, and for the
    /// context they read (a sequence of 700 tokens costs as much for its context as for being
    /// there).
    pub(crate) fn step_ms(&self, sequences: u32, context_tokens: u64) -> f64 {
        self.decode_ms_per_sequence
            * (f64::from(sequences) + context_tokens as f64 / CONTEXT_TOKENS_PER_SEQUENCE)
    }
}

/// Context tokens that cost one decode step as much as one more sequence.
pub(crate) const CONTEXT_TOKENS_PER_SEQUENCE: f64 = 700.0;

/// Prompt length for which a worker's speed is reported.
const REPORTED_TOKENS: f64 = 4096.0;
/// Bounds of reported speeds.
const REPORTED_SPEEDS: RangeInclusive<f64> = 20.0..=500_000.0;
/// Bounds of reported overheads.
const OVERHEAD_MS: RangeInclusive<f64> = 0.0..=2000.0;
/// Samples of all workers together that replace the prior.
const MIN_FLEET_SAMPLES: usize = 8;
/// Most samples of all workers; older ones are dropped.
const MOST_SAMPLES: usize = 96;
/// Below this number each sample is fitted; afterwards every fourth.
const EAGER: u64 = 64;

/// Time after a sample of a worker for which those of peers are of no use. Fits are expensive, and
/// peers send as many samples as all of them have requests.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// The learned speed of every worker. Bounded: one learner per worker that has not been forgotten.
#[derive(Debug)]
pub(crate) struct RateTable {
    workers: HashMap<WorkerId, RateLearner, FixedState>,
    /// The latest samples of all workers, oldest first; at most [`MOST_SAMPLES`].
    samples: VecDeque<(WorkerId, TimeSample)>,
    seen: u64,
    /// The curve of a worker with factor 1.
    curve: PrefillCurve,
}

impl Default for RateTable {
    fn default() -> Self {
        Self {
            workers: HashMap::default(),
            samples: VecDeque::new(),
            seen: 0,
            curve: PrefillCurve::PRIOR,
        }
    }
}

impl RateTable {
    /// Records a prefill during which `worker` had nothing else to compute.
    pub(crate) fn observe(&mut self, now: Moment, worker: WorkerId, prefill: PrefillSample) {
        let PrefillSample { start, tokens, ms } = prefill;
        if tokens == 0 || !ms.is_finite() || ms <= 0.0 {
            return;
        }
        let sample = PrefillCurve::sample(f64::from(start), f64::from(tokens), ms);
        self.samples.push_back((worker, sample));
        self.drop_oldest();
        self.seen += 1;
        if self.samples.len() >= MIN_FLEET_SAMPLES
            && (self.seen < EAGER || self.seen.is_multiple_of(4))
        {
            self.fit();
        }
        let learner = self.workers.entry(worker).or_default();
        if learner.observe(now, sample, &self.curve) {
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

    /// Returns whether one more sample of `worker` is of use: at a high rate the latest ones are
    /// all of the last moment.
    pub(crate) fn needs_sample(&self, now: Moment, worker: WorkerId) -> bool {
        self.workers
            .get(&worker)
            .is_none_or(|learner| now.since(learner.last_sample) >= SAMPLE_INTERVAL)
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
        let before = self.curve.token_ms;
        self.curve = self.curve.times(middle);
        // The curve is limited by its bounds: the part that it could not absorb stays with the
        // workers.
        let taken_up = self.curve.token_ms / before;
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
        self.curve = fit::fit(&alike, self.curve);
    }

    /// Records a first token of `worker` that is no sample of its speed but shows that it is in
    /// use.
    pub(crate) fn record_activity(&mut self, now: Moment, worker: WorkerId) {
        if let Some(learner) = self.workers.get_mut(&worker) {
            learner.last_seen = now;
        }
    }

    /// Returns the learned speed of `worker`.
    pub(crate) fn of(&self, worker: WorkerId) -> Rates {
        self.with_factor(worker, |learner| learner.factor)
    }

    /// Returns the best estimate for `worker` at this moment.
    pub(crate) fn rates_of(&self, now: Moment, worker: WorkerId) -> Rates {
        self.with_factor(worker, |learner| learner.faded(now))
    }

    fn with_factor(&self, worker: WorkerId, factor: impl Fn(&RateLearner) -> f64) -> Rates {
        let own = self.workers.get(&worker);
        let samples = own.map_or(0, |learner| learner.samples);
        let factor = own.map_or(1.0, factor);
        let curve = self.curve.times(factor);
        let speed = REPORTED_TOKENS * 1e3 / curve.ms(0.0, REPORTED_TOKENS);
        Rates {
            prefill_tokens_per_s: speed.clamp(*REPORTED_SPEEDS.start(), *REPORTED_SPEEDS.end()),
            overhead_ms: curve
                .overhead_ms
                .clamp(*OVERHEAD_MS.start(), *OVERHEAD_MS.end()),
            decode_ms_per_sequence: factor * Rates::PRIOR.decode_ms_per_sequence,
            samples,
            learned: own.is_some_and(RateLearner::is_known),
            curve,
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
        self.samples.retain(|(seen, _)| *seen != worker);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const W: WorkerId = WorkerId(1);

    /// Feeds `count` prompts of mixed lengths to an engine of known speed.
    fn learn(
        tokens_per_s: f64,
        overhead_ms: f64,
        count: u32,
        disturb: impl Fn(u32, f64) -> f64,
    ) -> Rates {
        let mut table = RateTable::default();
        for i in 0..count {
            let tokens = 60 + (i * 997) % 3000;
            table.observe(
                Moment::START,
                W,
                PrefillSample {
                    start: 0,
                    tokens,
                    ms: disturb(i, overhead_ms + f64::from(tokens) * 1e3 / tokens_per_s),
                },
            );
        }
        table.of(W)
    }

    fn close(got: f64, want: f64, share: f64) -> bool {
        (got - want).abs() <= share * want
    }

    #[test]
    fn the_speed_of_a_fast_and_of_a_slow_engine_is_learned_from_thirty_requests() {
        for (tokens_per_s, overhead_ms) in
            [(10_000.0, 2.0), (500.0, 30.0), (90_000.0, 8.0), (60.0, 5.0)]
        {
            let rates = learn(tokens_per_s, overhead_ms, 30, |_, ms| ms);
            assert!(rates.learned);
            assert_eq!(rates.samples, 30);
            assert!(
                close(rates.prefill_tokens_per_s, tokens_per_s, 0.01),
                "{rates:?}"
            );
            assert!((rates.overhead_ms - overhead_ms).abs() < 0.5, "{rates:?}");
        }
    }

    #[test]
    fn one_outlier_in_five_samples_moves_the_estimate_little() {
        let rates = learn(10_000.0, 2.0, 30, |i, ms| {
            if i % 5 == 0 {
                ms * 20.0 + 500.0
            } else {
                ms * 1.05
            }
        });
        assert!(
            close(rates.prefill_tokens_per_s, 10_000.0, 0.25),
            "{rates:?}"
        );
    }

    #[test]
    fn a_changed_engine_speed_is_learned() {
        let mut table = RateTable::default();
        for i in 0..200u32 {
            let tokens = 60 + (i * 997) % 3000;
            let ms_per_token = if i < 100 { 0.1 } else { 0.4 };
            table.observe(
                Moment::START,
                W,
                PrefillSample {
                    start: 0,
                    tokens,
                    ms: 5.0 + f64::from(tokens) * ms_per_token,
                },
            );
        }
        let rates = table.of(W);
        assert!(
            close(rates.prefill_tokens_per_s, 2_500.0, 0.02),
            "{rates:?}"
        );
    }

    #[test]
    fn prompts_of_equal_length_predict_the_measured_time() {
        for (tokens_per_s, overhead_ms) in [(10_000.0, 2.0), (500.0, 30.0)] {
            let mut table = RateTable::default();
            let took = overhead_ms + 1000.0 * 1e3 / tokens_per_s;
            for _ in 0..30 {
                table.observe(
                    Moment::START,
                    W,
                    PrefillSample {
                        start: 0,
                        tokens: 1000,
                        ms: took,
                    },
                );
            }
            let rates = table.of(W);
            assert!(
                close(
                    rates.overhead_ms + rates.prefill_ms(0.0, 1000.0),
                    took,
                    0.01
                ),
                "{rates:?}"
            );
            assert!(
                close(rates.prefill_tokens_per_s, tokens_per_s, 0.25),
                "{rates:?}"
            );
        }
    }

    #[test]
    fn the_cost_per_token_grows_with_prompt_length_and_context() {
        let mut table = RateTable::default();
        let took = |start: f64, tokens: f64| {
            14.0 + 0.014 * tokens + 5e-7 * tokens * (2.0 * start + tokens)
        };
        for i in 0..200u32 {
            let (start, tokens) = ((i % 7) * 5_000, 100 + (i * 997) % 30_000);
            // Noise of up to a tenth.
            let noise = 0.9 + f64::from((i * 7919) % 21) / 100.0;
            table.observe(
                Moment::START,
                W,
                PrefillSample {
                    start,
                    tokens,
                    ms: noise * took(f64::from(start), f64::from(tokens)),
                },
            );
        }
        let rates = table.of(W);
        for (start, tokens) in [
            (0.0, 1_000.0),
            (0.0, 30_000.0),
            (30_000.0, 1_000.0),
            (10_000.0, 10_000.0),
        ] {
            let (got, want) = (
                rates.overhead_ms + rates.prefill_ms(start, tokens),
                took(start, tokens),
            );
            assert!(close(got, want, 0.1), "{start} {tokens}: {got} {want}");
        }
    }

    #[test]
    fn a_slow_worker_among_fast_ones_is_recognized_and_the_others_stay_equal() {
        let mut table = RateTable::default();
        for i in 0..240u32 {
            let tokens = 200 + (i * 997) % 8_000;
            let slow = if i % 4 == 0 { 3.0 } else { 1.0 };
            let noise = 0.95 + f64::from((i * 7919) % 11) / 100.0;
            table.observe(
                Moment::START,
                WorkerId(i % 4),
                PrefillSample {
                    start: 0,
                    tokens,
                    ms: 10.0 + noise * slow * 0.1 * f64::from(tokens),
                },
            );
        }
        let speed = |worker| table.of(WorkerId(worker)).prefill_tokens_per_s;
        assert!(
            close(speed(1), 10_000.0, 0.1) && close(speed(0), 3_333.0, 0.1),
            "{} {}",
            speed(0),
            speed(1)
        );
        assert_eq!((speed(1), speed(2)), (speed(2), speed(3)));
    }

    #[test]
    fn a_slow_worker_without_samples_is_tried_again_and_credited_quickly() {
        let mut table = RateTable::default();
        let take = |table: &mut RateTable, at_s: u64, worker, times: f64| {
            table.observe(
                Moment::at(Duration::from_secs(at_s)),
                WorkerId(worker),
                PrefillSample {
                    start: 0,
                    tokens: 1000,
                    ms: 10.0 + 100.0 * times,
                },
            );
        };
        for i in 0..40 {
            take(&mut table, i, 1, 1.0);
            take(&mut table, i, 2, 1.0);
            take(&mut table, i, 3, 3.0);
        }
        let takes = |table: &RateTable, at_s| {
            let rates = table.rates_of(Moment::at(Duration::from_secs(at_s)), WorkerId(3));
            rates.overhead_ms + rates.prefill_ms(0.0, 1000.0)
        };
        assert!(
            close(takes(&table, 40), 310.0, 0.05),
            "{}",
            takes(&table, 40)
        );
        assert!(
            close(takes(&table, 99), 210.0, 0.05),
            "{}",
            takes(&table, 99)
        );
        // The worker is in use, but no first token is a sample of its speed: nothing decays.
        table.record_activity(Moment::at(Duration::from_secs(99)), WorkerId(3));
        assert!(
            close(takes(&table, 99), 310.0, 0.05),
            "{}",
            takes(&table, 99)
        );
        // It is no longer slow.
        for i in 0..4 {
            take(&mut table, 300 + i, 3, 1.0);
        }
        assert!(
            close(takes(&table, 304), 110.0, 0.05),
            "{}",
            takes(&table, 304)
        );
    }

    #[test]
    fn an_unmeasured_worker_keeps_its_speed_while_the_others_leave_the_bounds() {
        let mut table = RateTable::default();
        for i in 0..60u32 {
            table.observe(
                Moment::START,
                WorkerId(i % 3),
                PrefillSample {
                    start: 0,
                    tokens: 200 + (i * 997) % 8_000,
                    ms: 20.0 + 0.1 * f64::from(200 + (i * 997) % 8_000),
                },
            );
        }
        // Long prompts at almost no cost: there is a cache without events.
        for i in 0..1_000u32 {
            table.observe(
                Moment::START,
                WorkerId(i % 2),
                PrefillSample {
                    start: 0,
                    tokens: 20_000 + (i * 7_919) % 100_000,
                    ms: 20.0,
                },
            );
            assert!(table.samples.len() <= MOST_SAMPLES);
        }
        for worker in 0..3 {
            let rates = table.of(WorkerId(worker));
            assert!(
                rates.prefill_ms(0.0, 4_096.0).is_finite()
                    && REPORTED_SPEEDS.contains(&rates.prefill_tokens_per_s),
                "{rates:?}"
            );
        }
        assert!(
            table.of(WorkerId(2)).prefill_ms(0.0, 4_096.0) <= 2.0 * 409.6,
            "{:?}",
            table.of(WorkerId(2))
        );
    }

    #[test]
    fn an_unknown_worker_gets_the_current_speed_of_the_others() {
        let unknown = |table: &RateTable| table.of(WorkerId(9)).prefill_tokens_per_s;
        // One engine that changes its speed.
        let mut table = RateTable::default();
        for i in 0..400u32 {
            let tokens = 60 + (i * 997) % 3000;
            let ms_per_token = if (i / 100) % 2 == 0 { 0.1 } else { 0.4 };
            table.observe(
                Moment::START,
                W,
                PrefillSample {
                    start: 0,
                    tokens,
                    ms: 5.0 + f64::from(tokens) * ms_per_token,
                },
            );
            if i % 100 >= 40 {
                assert!(
                    close(table.of(W).prefill_tokens_per_s, 1e3 / ms_per_token, 0.35),
                    "{i} {:?}",
                    table.of(W)
                );
                assert_eq!(unknown(&table), table.of(W).prefill_tokens_per_s);
            }
        }
        // Four equal workers with much noise, for a long time.
        let mut table = RateTable::default();
        let mut dice = 1u64;
        for i in 0..8_000u32 {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let noise = 0.6 + 0.8 * ((dice >> 40) as f64 / (1u64 << 24) as f64);
            let tokens = 200 + (i * 997) % 8_000;
            table.observe(
                Moment::START,
                WorkerId(i % 4),
                PrefillSample {
                    start: 0,
                    tokens,
                    ms: 10.0 + noise * 0.1 * f64::from(tokens),
                },
            );
            if i > 200 {
                assert!(
                    close(unknown(&table), 10_000.0, 0.35),
                    "{i} {}",
                    unknown(&table)
                );
            }
        }
    }

    #[test]
    fn short_prompts_with_much_noise_do_not_make_prefill_free() {
        let mut table = RateTable::default();
        for i in 0..64u32 {
            table.observe(
                Moment::START,
                W,
                PrefillSample {
                    start: 0,
                    tokens: 8 + i % 24,
                    ms: 20.0 + f64::from((i * 7919) % 13),
                },
            );
        }
        let rates = table.of(W);
        assert!(rates.prefill_tokens_per_s <= 7_001.0, "{rates:?}");
    }

    #[test]
    fn an_unknown_worker_gets_the_mean_speed_of_the_others() {
        let mut table = RateTable::default();
        assert_eq!(table.of(W), Rates::PRIOR);
        for i in 0..30u32 {
            let tokens = 60 + (i * 997) % 3000;
            table.observe(
                Moment::START,
                WorkerId(2),
                PrefillSample {
                    start: 0,
                    tokens,
                    ms: 20.0 + f64::from(tokens) * 2.0,
                },
            );
        }
        let rates = table.of(W);
        assert!(!rates.learned);
        assert!(close(rates.prefill_tokens_per_s, 500.0, 0.02), "{rates:?}");
        table.forget(WorkerId(2));
        assert_eq!(table.of(WorkerId(2)).samples, 0);
    }

    proptest! {
        #[test]
        fn no_sequence_of_samples_leaves_the_bounds(samples in prop::collection::vec((0u32.., -1e3f64..1e9), 0..100)) {
            let mut table = RateTable::default();
            for (tokens, ms) in samples {
                table.observe(Moment::START, W, PrefillSample { start: 0, tokens, ms });
            }
            let rates = table.of(W);
            prop_assert!((20.0..=500_001.0).contains(&rates.prefill_tokens_per_s));
            prop_assert!((0.0..=2000.0).contains(&rates.overhead_ms));
        }
    }
}
