//! What a target's engine did while it generated, as sums over time.

use kv_blocks::Moment;

/// Fewest tokens of a reply that show the time of a decode step.
const LEAST_TOKENS: u32 = 16;
/// A reply shows the time of decode steps if at most this share of its time went to prompts: theirs
/// is an estimate.
const PREFILL_MOST: f64 = 0.05;

/// The sums until a moment. The difference of two is what the engine did in between.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DecodeClock {
    at: Moment,
    /// Milliseconds times the generating sequences.
    sequence_ms: f64,
    /// Milliseconds times the tokens of their prompts.
    context_ms: f64,
    /// Estimated milliseconds of the prompts that were computed.
    prefill_ms: f64,
}

/// The decode steps of one reply: a sample of a worker's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeSample {
    /// Mean number of sequences that were generated at the same time, itself included.
    pub sequences: f64,
    /// Mean number of the tokens of their prompts.
    pub context_tokens: f64,
    /// Time for each token after the first one.
    pub token_ms: f64,
}

impl DecodeClock {
    /// Counts the time until `now`, in which this many sequences with this many tokens generated.
    pub(super) fn advance(&mut self, now: Moment, sequences: u32, context_tokens: u64) {
        let ms = now.ms_since(self.at);
        self.sequence_ms += ms * f64::from(sequences);
        self.context_ms += ms * context_tokens as f64;
        self.at = self.at.max(now);
    }

    /// Counts a prompt that was computed.
    pub(super) fn record_prefill(&mut self, ms: f64) {
        self.prefill_ms += ms;
    }

    /// Returns what a reply of this length shows that began at `start`; `None`: it is too short, or
    /// too much of its time went to prompts.
    pub(super) fn sample_since(&self, start: &Self, output_tokens: u32) -> Option<DecodeSample> {
        let ms = self.at.ms_since(start.at);
        let prefill_ms = self.prefill_ms - start.prefill_ms;
        if output_tokens < LEAST_TOKENS || ms <= 0.0 || prefill_ms > PREFILL_MOST * ms {
            return None;
        }
        Some(DecodeSample {
            sequences: (self.sequence_ms - start.sequence_ms) / ms,
            context_tokens: (self.context_ms - start.context_ms) / ms,
            token_ms: (ms - prefill_ms) / f64::from(output_tokens - 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at_ms(ms: u64) -> Moment {
        Moment::at(Duration::from_millis(ms))
    }

    /// A clock at 1 s, and at 3 s after one sequence for a second and three for another one.
    fn clocks(prefill_ms: f64) -> [DecodeClock; 2] {
        let mut clock = DecodeClock::default();
        clock.record_prefill(70.0);
        clock.advance(at_ms(1_000), 5, 9_000);
        let start = clock;
        clock.advance(at_ms(2_000), 1, 100);
        clock.record_prefill(prefill_ms);
        clock.advance(at_ms(3_000), 3, 900);
        [start, clock]
    }

    #[test]
    fn a_reply_shows_the_time_of_a_token_beside_the_mean_of_the_others() {
        let [start, end] = clocks(100.0);
        let sample = end.sample_since(&start, 101).expect("it is long enough");
        assert_eq!(
            (sample.sequences, sample.context_tokens, sample.token_ms),
            (2.0, 500.0, 19.0)
        );
    }

    #[test]
    fn a_short_reply_and_one_beside_much_prefill_show_nothing() {
        let [start, end] = clocks(100.0);
        assert_eq!(end.sample_since(&start, LEAST_TOKENS - 1), None);
        assert!(end.sample_since(&start, LEAST_TOKENS).is_some());
        assert_eq!(start.sample_since(&start, 100), None, "no time passed");
        let [start, end] = clocks(101.0);
        assert_eq!(end.sample_since(&start, 100), None);
    }

    #[test]
    fn a_clock_that_is_set_back_counts_nothing_twice() {
        let [start, mut end] = clocks(0.0);
        let before = end.sample_since(&start, 101);
        end.advance(at_ms(1_500), 9, 9);
        assert_eq!(end.sample_since(&start, 101), before);
    }
}
