//! The speed of workers, learned from their first tokens and from the time of their replies.
//!
//! The ledger takes samples when a worker had no prefill waiting, so that the time to first token
//! is exactly `overhead + a * tokens + b * (end^2 - start^2)`: attention makes a token more
//! expensive the more tokens precede it. One curve is fitted to the first tokens of all workers, so
//! that it is known soon and for every length; each worker has a factor of its own. The fit weighs
//! samples by their relative deviation, which makes it robust against outliers; it forgets by
//! keeping only the latest samples. An unknown worker is assumed to be like the others.
//!
//! Decode steps are learned in the same way, from the time between the first and the last token of
//! replies: one curve for all workers, and a factor of each. Of that curve only the scale is learned.
//!
//! **Invariant**: for all inputs every figure is finite, positive and within its bounds.

use std::{ops::RangeInclusive, time::Duration};

use kv_blocks::{Moment, WorkerId};

pub use self::fit::PrefillCurve;
pub(crate) use self::learned::LearnedSpeeds;
use self::{
    decode::DecodeCurve,
    learner::RateLearner,
    table::{SpeedCurve, SpeedTable},
};
use crate::{DecodeSample, PrefillSample};

mod decode;
mod fit;
mod learned;
mod learner;
pub mod robust;
mod table;

/// The estimated speed of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Prompt tokens computed per second, for a prompt of 4,096 tokens.
    pub prefill_tokens_per_s: f64,
    /// The part of the time to first token that does not depend on the prompt.
    pub overhead_ms: f64,
    /// Time that one more sequence in the batch adds to each decode step.
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
        decode_ms_per_sequence: decode::SEQUENCE_MS,
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
const CONTEXT_TOKENS_PER_SEQUENCE: f64 = 700.0;

/// Prompt length for which a worker's speed is reported.
const REPORTED_TOKENS: f64 = 4096.0;
/// Bounds of reported speeds.
const REPORTED_SPEEDS: RangeInclusive<f64> = 20.0..=500_000.0;
/// Bounds of reported overheads.
const OVERHEAD_MS: RangeInclusive<f64> = 0.0..=2000.0;

/// Time after a sample of a worker for which those of peers are of no use. Fits are expensive, and
/// peers send as many samples as all of them have requests.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// The learned speed of every worker.
#[derive(Debug, Default)]
pub(crate) struct RateTable {
    prefill: SpeedTable<PrefillCurve>,
    decode: SpeedTable<DecodeCurve>,
}

impl RateTable {
    /// Records a prefill during which `worker` had nothing else to compute.
    pub(crate) fn observe(&mut self, now: Moment, worker: WorkerId, prefill: PrefillSample) {
        let PrefillSample { start, tokens, ms } = prefill;
        if tokens == 0 || !ms.is_finite() || ms <= 0.0 {
            return;
        }
        let sample = PrefillCurve::sample(f64::from(start), f64::from(tokens), ms);
        self.prefill.observe(now, worker, sample);
        self.decode.record_activity(now, worker);
    }

    /// Records the decode steps of a reply of `worker`.
    pub(crate) fn observe_decode(&mut self, now: Moment, worker: WorkerId, reply: DecodeSample) {
        if let Some(step) = reply.step() {
            self.decode.observe(now, worker, step);
        }
    }

    /// Returns whether one more sample of `worker` is of use: at a high rate the latest ones are
    /// all of the last moment.
    pub(crate) fn needs_sample(&self, now: Moment, worker: WorkerId) -> bool {
        let learner = self.prefill.learner(worker);
        learner.is_none_or(|learner| now.since(learner.last_sample) >= SAMPLE_INTERVAL)
    }

    /// Records a first token of `worker` that is no sample of its speed but shows that it is in
    /// use.
    pub(crate) fn record_activity(&mut self, now: Moment, worker: WorkerId) {
        self.prefill.record_activity(now, worker);
        self.decode.record_activity(now, worker);
    }

    /// Returns whether the speed of `worker` is known, and a first token came from it lately.
    pub(crate) fn is_current(&self, now: Moment, worker: WorkerId) -> bool {
        let learner = self.prefill.learner(worker);
        learner.is_some_and(|learner| learner.is_current(now))
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
        let own = self.prefill.learner(worker);
        let samples = own.map_or(0, |learner| learner.samples);
        let prefill_factor = own.map_or(1.0, &factor);
        let curve = self.prefill.curve.times(prefill_factor);
        let speed = REPORTED_TOKENS * 1e3 / curve.ms(0.0, REPORTED_TOKENS);
        // A worker of which only prefills are known is as slow in its decode steps.
        let decode = self.decode.learner(worker);
        let decode = decode.filter(|learner| learner.is_known());
        let decode_factor = decode.map_or(prefill_factor, &factor);
        Rates {
            prefill_tokens_per_s: speed.clamp(*REPORTED_SPEEDS.start(), *REPORTED_SPEEDS.end()),
            overhead_ms: curve
                .overhead_ms
                .clamp(*OVERHEAD_MS.start(), *OVERHEAD_MS.end()),
            decode_ms_per_sequence: self.decode.curve.times(decode_factor).sequence_ms(),
            samples,
            learned: own.is_some_and(RateLearner::is_known),
            curve,
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.prefill.forget(worker);
        self.decode.forget(worker);
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
            assert!(table.prefill.samples.len() <= table::MOST_SAMPLES);
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

    /// A reply on a worker whose steps take as long as those of the prior, times `slow`.
    fn reply(sequences: f64, slow: f64) -> DecodeSample {
        let context_tokens = 1_000.0 * sequences;
        DecodeSample {
            sequences,
            context_tokens,
            token_ms: slow
                * (4.45 + 0.02 * (sequences + context_tokens / CONTEXT_TOKENS_PER_SEQUENCE)),
        }
    }

    fn sequence_ms(table: &RateTable, worker: u32) -> f64 {
        table.of(WorkerId(worker)).decode_ms_per_sequence
    }

    #[test]
    fn the_decode_steps_of_a_larger_model_are_learned_beside_any_number_of_sequences() {
        for slow in [0.2, 2.5, 20.0] {
            let mut table = RateTable::default();
            for i in 0..40u32 {
                let noise = 0.95 + f64::from((i * 7919) % 11) / 100.0;
                let sequences = 1.0 + f64::from(i % 30);
                table.observe_decode(Moment::START, W, reply(sequences, slow * noise));
            }
            let found = sequence_ms(&table, 1);
            assert!(close(found, slow * 0.02, 0.1), "{slow}: {found}");
            assert_eq!(sequence_ms(&table, 9), found, "an unknown one is alike");
            let (rates, prior) = (table.of(W), Rates::PRIOR);
            assert_eq!(rates.prefill_tokens_per_s, prior.prefill_tokens_per_s);
        }
    }

    #[test]
    fn a_worker_that_is_slow_in_decode_steps_alone_is_recognized() {
        let mut table = RateTable::default();
        for i in 0..240u32 {
            let (worker, tokens) = (WorkerId(i % 4), 200 + (i * 997) % 8_000);
            let took = PrefillSample {
                start: 0,
                tokens,
                ms: 10.0 + 0.1 * f64::from(tokens),
            };
            table.observe(Moment::START, worker, took);
            let slow = if i % 4 == 0 { 3.0 } else { 1.0 };
            // One reply in seven was read slowly.
            let slow = if i % 7 == 0 { 9.0 * slow } else { slow };
            table.observe_decode(Moment::START, worker, reply(4.0, slow));
        }
        for (worker, expected) in [(0, 0.06), (1, 0.02), (2, 0.02), (3, 0.02)] {
            let found = sequence_ms(&table, worker);
            assert!(close(found, expected, 0.1), "{worker}: {found}");
        }
        let speed = |worker| table.of(WorkerId(worker)).prefill_tokens_per_s;
        assert_eq!(speed(0), speed(1));
    }

    #[test]
    fn a_worker_that_was_slow_in_decode_steps_before_a_long_pause_is_credited_quickly() {
        let mut table = RateTable::default();
        let serve = |table: &mut RateTable, at_s: u64, worker, slow| {
            let first_token = Moment::at(Duration::from_secs(at_s));
            table.record_activity(first_token, WorkerId(worker));
            let end = first_token + Duration::from_millis(500);
            table.observe_decode(end, WorkerId(worker), reply(4.0, slow));
        };
        for at_s in 0..40 {
            for (worker, slow) in [(1, 1.0), (2, 1.0), (3, 3.0)] {
                serve(&mut table, at_s, worker, slow);
            }
        }
        let found = sequence_ms(&table, 3);
        assert!(close(found, 0.06, 0.1), "{found}");
        for at_s in 300..304 {
            serve(&mut table, at_s, 3, 1.0);
        }
        let found = sequence_ms(&table, 3);
        assert!(close(found, 0.02, 0.1), "{found}");
    }

    #[test]
    fn a_worker_of_which_only_prefills_are_known_is_as_slow_in_decode_steps() {
        let mut table = RateTable::default();
        for i in 0..120u32 {
            let slow = if i % 3 == 0 { 3.0 } else { 1.0 };
            let tokens = 1_000 + (i * 997) % 8_000;
            let took = PrefillSample {
                start: 0,
                tokens,
                ms: slow * 0.1 * f64::from(tokens),
            };
            table.observe(Moment::START, WorkerId(i % 3), took);
        }
        let factor = sequence_ms(&table, 0) / sequence_ms(&table, 1);
        assert!(close(factor, 3.0, 0.1), "{factor}");
        // Its replies show that it is not.
        for _ in 0..40 {
            table.observe_decode(Moment::START, WorkerId(0), reply(4.0, 1.0));
            table.observe_decode(Moment::START, WorkerId(1), reply(4.0, 1.0));
        }
        assert_eq!(sequence_ms(&table, 0), sequence_ms(&table, 1));
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

        #[test]
        fn no_sequence_of_replies_leaves_the_bounds(
            replies in prop::collection::vec((any::<f64>(), any::<f64>(), any::<f64>(), 0u32..3), 0..200),
        ) {
            let mut table = RateTable::default();
            for (sequences, context_tokens, token_ms, worker) in replies {
                let reply = DecodeSample { sequences, context_tokens, token_ms };
                table.observe_decode(Moment::START, WorkerId(worker), reply);
            }
            for worker in 0..3 {
                let ms = sequence_ms(&table, worker);
                prop_assert!((1e-4..=10.0).contains(&ms), "{ms}");
            }
        }
    }
}
