//! The learned time of reads between workers, and how often they bring nothing.
//!
//! A read takes `floor + tokens * ms_per_token`. One such line is fitted to the reads of all pairs of
//! workers, so that it is known soon; each pair has a factor of its own, as each worker has on the
//! curve of prefills. The fit weighs samples by their relative deviation, and begins at a prior that a
//! few samples outweigh. Reads that share a source share its connection: a sample counts its tokens
//! once for each of them.
//!
//! **Invariant**: for all inputs every figure is finite and within its bounds.

use std::{
    collections::{HashMap, VecDeque},
    ops::RangeInclusive,
    time::Duration,
};

use foldhash::fast::FixedState;
use kv_blocks::{Moment, WorkerId};

use crate::{decaying_sum::DecayingSum, rates::robust::median};

/// The source and the target of a read.
pub(super) type FetchPair = (WorkerId, WorkerId);

/// Bounds of the time of a read that does not depend on its length, and of the time per token.
const FLOOR_MS: RangeInclusive<f64> = 0.05..=10_000.0;
const TOKEN_MS: RangeInclusive<f64> = 1e-5..=10.0;
/// Bounds of a pair's factor relative to the others.
const FACTOR: RangeInclusive<f64> = 0.05..=50.0;
/// A pair this close to the others is one of them.
const ALIKE: RangeInclusive<f64> = 0.9..=1.1;

/// Most samples of all pairs; older ones are dropped.
const MOST_SAMPLES: usize = 64;
/// Most samples of one pair, and samples that distinguish it from the others.
const MOST_OF_PAIR: usize = 16;
const LEAST_OF_PAIR: usize = 4;
/// Most pairs that are remembered; one more takes the place of that which was used least lately.
const MOST_PAIRS: usize = 4096;
/// Rounds of reweighting samples by their deviation.
const ROUNDS: usize = 4;
/// Weight of the prior beside each sample.
const PRIOR_WEIGHT: f64 = 0.02;
/// Share of the expected time below which a sample weighs no more: what is left of a first token may
/// be next to nothing, which would outweigh all other samples.
const LEAST_SHARE: f64 = 0.5;

/// Half-life of what is learned beyond the usual time while there are no new samples: a read that is
/// never chosen because it was slow once would never show that it is fast again.
const PAIR_FADES: Duration = Duration::from_secs(60);
const LINE_FADES: Duration = Duration::from_secs(600);
/// Most samples from before such a pause that count: a read that is tried again after each pause would
/// need many of them to outnumber a full window.
const MOST_STALE: usize = 3;
/// Time for which a read that brought its blocks, or did not, counts.
const OUTCOME_MEMORY: Duration = Duration::from_secs(300);
/// Reads of a pair that count as much as the experience with all pairs.
const SHARED_OUTCOMES: f64 = 1.0;
/// Reads of all pairs that are assumed to have brought their blocks.
const PRIOR_OUTCOMES: f64 = 0.5;

/// The time of a read as a line over its tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ReadLine {
    floor_ms: f64,
    token_ms: f64,
}

impl ReadLine {
    /// Before any sample: 128 KiB for each token over a link of 10 GB/s.
    const PRIOR: Self = Self {
        floor_ms: 10.0,
        token_ms: 0.013,
    };

    fn ms(self, tokens: f64) -> f64 {
        self.floor_ms + tokens * self.token_ms
    }

    /// Returns the line of reads that take so many times as long.
    fn times(self, factor: f64) -> Self {
        Self {
            floor_ms: within(self.floor_ms * factor, &FLOOR_MS, self.floor_ms),
            token_ms: within(self.token_ms * factor, &TOKEN_MS, self.token_ms),
        }
    }

    /// Returns the line by now: what is above the prior fades while there are no samples.
    fn faded(self, age: Duration) -> Self {
        let left = left_of(age, LINE_FADES);
        let fade = |learned: f64, prior: f64| {
            if learned > prior {
                prior + (learned - prior) * left
            } else {
                learned
            }
        };
        Self {
            floor_ms: fade(self.floor_ms, Self::PRIOR.floor_ms),
            token_ms: fade(self.token_ms, Self::PRIOR.token_ms),
        }
    }

    /// Returns the line closest to most of `samples` in relative terms; `self` is the current one.
    fn fitted(self, samples: &[ReadSample]) -> Self {
        let mut line = self;
        for round in 0..ROUNDS {
            let off = |sample: &ReadSample| (sample.ms / line.ms(sample.tokens)).ln().abs();
            let scale = 2.0 * median(samples.iter().map(off)).max(1e-6);
            // The first round trusts all samples: the current line may be that of other links.
            let trust = |sample: &ReadSample| {
                if round == 0 {
                    1.0
                } else {
                    (scale / off(sample).max(scale)).powi(2)
                }
            };
            let weigh = |sample: &ReadSample| {
                let expected = line.ms(sample.tokens);
                trust(sample) / (sample.ms.max(LEAST_SHARE * expected) * expected)
            };
            let weighed: Vec<f64> = samples.iter().map(weigh).collect();
            line = line.least_squares(samples, &weighed);
        }
        line
    }

    /// Solves weighted least squares with the prior as one more sample of each part, as far off as it
    /// is from the current line in relative terms.
    fn least_squares(self, samples: &[ReadSample], weights: &[f64]) -> Self {
        let prior = Self::PRIOR;
        let weight = |part: f64, prior: f64| PRIOR_WEIGHT / part.max(prior).powi(2);
        let floor_weight = weight(self.floor_ms, prior.floor_ms);
        let token_weight = weight(self.token_ms, prior.token_ms);
        let (mut floors, mut mixed, mut tokens) = (floor_weight, 0.0, token_weight);
        let (mut floor_ms, mut token_ms) =
            (floor_weight * prior.floor_ms, token_weight * prior.token_ms);
        for (sample, weight) in samples.iter().zip(weights) {
            floors += weight;
            mixed += weight * sample.tokens;
            tokens += weight * sample.tokens * sample.tokens;
            floor_ms += weight * sample.ms;
            token_ms += weight * sample.tokens * sample.ms;
        }
        // Above 0, since the prior has a weight on both parts.
        let determinant = floors * tokens - mixed * mixed;
        let floor = within(
            (floor_ms * tokens - token_ms * mixed) / determinant,
            &FLOOR_MS,
            prior.floor_ms,
        );
        // With the floor at its bound the rest is the best price of a token.
        let token = within(
            (token_ms - mixed * floor) / tokens,
            &TOKEN_MS,
            prior.token_ms,
        );
        Self {
            floor_ms: floor,
            token_ms: token,
        }
    }
}

/// A read that was timed.
#[derive(Clone, Copy, Debug)]
struct ReadSample {
    /// Its tokens, once for each read that shared its source.
    tokens: f64,
    ms: f64,
}

/// Reads that brought their blocks, and those that did not.
#[derive(Clone, Copy, Debug)]
struct Outcomes {
    arrived: DecayingSum,
    missed: DecayingSum,
}

impl Default for Outcomes {
    fn default() -> Self {
        Self {
            arrived: DecayingSum::over(OUTCOME_MEMORY),
            missed: DecayingSum::over(OUTCOME_MEMORY),
        }
    }
}

impl Outcomes {
    fn record(&mut self, now: Moment, arrived: bool) {
        let sum = if arrived {
            &mut self.arrived
        } else {
            &mut self.missed
        };
        sum.add(now, 1.0);
    }

    /// Returns the share of reads that brought nothing, with `usual` in place of `weight` reads.
    fn missed_share(&self, now: Moment, usual: f64, weight: f64) -> f64 {
        let (arrived, missed) = (self.arrived.at(now), self.missed.at(now));
        (missed + usual * weight) / (arrived + missed + weight)
    }
}

/// What one pair is relative to the others.
#[derive(Debug, Default)]
struct PairLearner {
    /// The latest samples, oldest first; at most [`MOST_OF_PAIR`].
    samples: VecDeque<ReadSample>,
    factor: Option<f64>,
    outcomes: Outcomes,
    last_sample: Moment,
    last_used: Moment,
}

impl PairLearner {
    fn learn(&mut self, now: Moment, sample: ReadSample, line: ReadLine) {
        let was_slow = self.factor.is_some_and(|factor| factor > 1.0);
        if was_slow && now.since(self.last_sample) >= PAIR_FADES {
            let stale = self.samples.len().saturating_sub(MOST_STALE);
            self.samples.drain(..stale);
        }
        if self.samples.len() >= MOST_OF_PAIR {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.last_sample = now;
        if self.samples.len() < LEAST_OF_PAIR {
            return;
        }
        let ratio = |sample: &ReadSample| sample.ms / line.ms(sample.tokens);
        let factor = median(self.samples.iter().map(ratio));
        self.factor = distinct(factor);
    }

    /// Returns the factor by now.
    fn factor(&self, now: Moment) -> f64 {
        let factor = self.factor.unwrap_or(1.0);
        if factor <= 1.0 {
            return factor;
        }
        1.0 + (factor - 1.0) * left_of(now.since(self.last_sample), PAIR_FADES)
    }
}

/// The expected time of a read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ReadPrice {
    pub(super) ms: f64,
    /// Probability that it brings nothing.
    pub(super) missed: f64,
}

/// What is learned of the reads between workers.
#[derive(Debug)]
pub(crate) struct FetchRates {
    line: ReadLine,
    /// The latest samples of all pairs, oldest first; at most [`MOST_SAMPLES`].
    samples: VecDeque<(FetchPair, ReadSample)>,
    outcomes: Outcomes,
    last_sample: Moment,
    /// At most [`MOST_PAIRS`].
    pairs: HashMap<FetchPair, PairLearner, FixedState>,
}

impl Default for FetchRates {
    fn default() -> Self {
        Self {
            line: ReadLine::PRIOR,
            samples: VecDeque::new(),
            outcomes: Outcomes::default(),
            last_sample: Moment::START,
            pairs: HashMap::default(),
        }
    }
}

impl FetchRates {
    /// Returns what a read of this many tokens costs while `others` other reads share its source.
    pub(super) fn price(
        &self,
        now: Moment,
        pair: FetchPair,
        tokens: u32,
        others: u32,
    ) -> ReadPrice {
        let line = self.line.faded(now.since(self.last_sample));
        let usual = self.outcomes.missed_share(now, 0.0, PRIOR_OUTCOMES);
        let known = self.pairs.get(&pair);
        let own = known.map(|known| &known.outcomes);
        ReadPrice {
            ms: line.ms(shared_tokens(tokens, others))
                * known.map_or(1.0, |known| known.factor(now)),
            missed: own.map_or(usual, |own| own.missed_share(now, usual, SHARED_OUTCOMES)),
        }
    }

    /// Records how long a read took.
    pub(super) fn learn(
        &mut self,
        now: Moment,
        pair: FetchPair,
        (tokens, others): (u32, u32),
        ms: f64,
    ) {
        if !ms.is_finite() || tokens == 0 {
            return;
        }
        let sample = ReadSample {
            tokens: shared_tokens(tokens, others),
            // The other parts of a first token are estimates, which may be longer than all of it.
            ms: ms.max(*FLOOR_MS.start()),
        };
        self.drop_stale(now);
        if self.samples.len() >= MOST_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((pair, sample));
        self.last_sample = now;
        let samples = self.samples.iter();
        let alike: Vec<ReadSample> = samples
            .map(|(pair, sample)| ReadSample {
                ms: sample.ms / self.factor_of(pair),
                ..*sample
            })
            .collect();
        self.line = self.line.fitted(&alike);
        let line = self.line;
        self.pair_mut(now, pair).learn(now, sample, line);
        self.anchor();
    }

    /// Drops most samples of a time in which all reads were slow, if nothing was read since. The pairs
    /// are relative to that time too.
    fn drop_stale(&mut self, now: Moment) {
        let age = now.since(self.last_sample);
        if age < LINE_FADES || self.line.faded(age) == self.line {
            return;
        }
        let stale = self.samples.len().saturating_sub(MOST_STALE);
        self.samples.drain(..stale);
        for known in self.pairs.values_mut() {
            known.samples.clear();
            known.factor = None;
        }
    }

    fn factor_of(&self, pair: &FetchPair) -> f64 {
        let known = self.pairs.get(pair);
        known.and_then(|known| known.factor).unwrap_or(1.0)
    }

    /// Fixes the scale: samples show only the product of line and factor. The median sample is of a
    /// pair with the factor 1, so that an unknown pair is like most.
    fn anchor(&mut self) {
        let middle = median(self.samples.iter().map(|(pair, _)| self.factor_of(pair)));
        if middle == 1.0 {
            return;
        }
        self.line = self.line.times(middle);
        for known in self.pairs.values_mut() {
            known.factor = known.factor.and_then(|factor| distinct(factor / middle));
        }
    }

    /// Records whether a read brought its blocks.
    pub(super) fn record(&mut self, now: Moment, pair: FetchPair, arrived: bool) {
        self.outcomes.record(now, arrived);
        self.pair_mut(now, pair).outcomes.record(now, arrived);
    }

    /// Drops what is known of a removed worker.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        let is_of = |(source, target): &FetchPair| *source == worker || *target == worker;
        self.pairs.retain(|pair, _| !is_of(pair));
        self.samples.retain(|(pair, _)| !is_of(pair));
    }

    fn pair_mut(&mut self, now: Moment, pair: FetchPair) -> &mut PairLearner {
        if self.pairs.len() >= MOST_PAIRS && !self.pairs.contains_key(&pair) {
            let used = |(pair, known): (&FetchPair, &PairLearner)| (known.last_used, *pair);
            let oldest = self.pairs.iter().map(used).min();
            if let Some((_, oldest)) = oldest {
                self.pairs.remove(&oldest);
            }
        }
        let known = self.pairs.entry(pair).or_default();
        known.last_used = now;
        known
    }
}

/// Returns the tokens of a read, once for each read that shares its source.
fn shared_tokens(tokens: u32, others: u32) -> f64 {
    f64::from(tokens) * (1.0 + f64::from(others))
}

/// Returns the factor of a pair that differs from the others; `None`: it is one of them.
fn distinct(factor: f64) -> Option<f64> {
    (!ALIKE.contains(&factor)).then(|| within(factor, &FACTOR, 1.0))
}

/// Returns the share that is left after this time.
fn left_of(age: Duration, half_life: Duration) -> f64 {
    0.5_f64.powf(age.as_secs_f64() / half_life.as_secs_f64())
}

/// Returns a value within its bounds; `usual` if it is not a number.
fn within(value: f64, bounds: &RangeInclusive<f64>, usual: f64) -> f64 {
    if value.is_finite() {
        value.clamp(*bounds.start(), *bounds.end())
    } else {
        usual
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAIR: FetchPair = (WorkerId(1), WorkerId(2));
    const OTHER: FetchPair = (WorkerId(3), WorkerId(2));

    fn at_s(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    /// Feeds `count` reads of mixed lengths with this floor and this time per token.
    fn learn(rates: &mut FetchRates, pair: FetchPair, count: u32, (floor, token): (f64, f64)) {
        for read in 0..count {
            let tokens = 500 + (read * 997) % 20_000;
            let ms = floor + f64::from(tokens) * token;
            rates.learn(Moment::START, pair, (tokens, 0), ms);
        }
    }

    fn ms(rates: &FetchRates, pair: FetchPair, tokens: u32) -> f64 {
        rates.price(Moment::START, pair, tokens, 0).ms
    }

    #[test]
    fn floor_and_rate_of_links_are_learned_from_a_few_dozen_reads() {
        for (floor, token) in [(5.0, 0.0131), (40.0, 0.002), (1.0, 0.5)] {
            let mut rates = FetchRates::default();
            learn(&mut rates, PAIR, 40, (floor, token));
            for tokens in [1_000, 10_000, 20_000] {
                let expected = floor + f64::from(tokens) * token;
                let found = ms(&rates, PAIR, tokens);
                assert!((found / expected - 1.0).abs() < 0.15, "{found} {expected}");
            }
        }
    }

    #[test]
    fn one_stalled_read_in_five_moves_the_price_little() {
        let mut rates = FetchRates::default();
        for read in 0..40u32 {
            let tokens = 500 + (read * 997) % 20_000;
            let usual = 5.0 + f64::from(tokens) * 0.0131;
            let stalled = if read % 5 == 0 { 20.0 } else { 1.0 };
            rates.learn(Moment::START, PAIR, (tokens, 0), usual * stalled);
        }
        assert!((ms(&rates, PAIR, 10_000) / 136.0 - 1.0).abs() < 0.25);
    }

    #[test]
    fn one_read_in_five_that_seems_to_take_no_time_moves_the_price_little() {
        let mut rates = FetchRates::default();
        for read in 0..40u32 {
            let tokens = 500 + (read * 997) % 20_000;
            // The estimate of the other parts was longer than the whole.
            let ms = if read % 5 == 4 {
                -3.0
            } else {
                5.0 + f64::from(tokens) * 0.0131
            };
            rates.learn(Moment::START, PAIR, (tokens, 0), ms);
        }
        let found = ms(&rates, PAIR, 10_000);
        assert!((found / 136.0 - 1.0).abs() < 0.25, "{found}");
    }

    #[test]
    fn a_slow_pair_is_told_from_the_others_which_stand_for_an_unknown_one() {
        let mut rates = FetchRates::default();
        for _ in 0..4 {
            learn(&mut rates, OTHER, 8, (5.0, 0.0131));
            learn(&mut rates, PAIR, 2, (50.0, 0.131));
        }
        let unknown = ms(&rates, (WorkerId(8), WorkerId(9)), 10_000);
        assert!((unknown / 136.0 - 1.0).abs() < 0.3, "{unknown}");
        assert!(ms(&rates, PAIR, 10_000) > 4.0 * unknown);
        // It is tried again later.
        let later = rates.price(at_s(600), PAIR, 10_000, 0).ms;
        assert!(later < 1.5 * unknown, "{later}");
    }

    #[test]
    fn a_pair_that_was_slow_is_like_the_others_after_three_faster_reads() {
        let mut rates = FetchRates::default();
        for _ in 0..4 {
            learn(&mut rates, OTHER, 8, (5.0, 0.0131));
            learn(&mut rates, PAIR, 4, (50.0, 0.131));
        }
        assert!(ms(&rates, PAIR, 10_000) > 4.0 * 136.0);
        for again in 1..=3 {
            rates.learn(at_s(300 * again), PAIR, (10_000, 0), 136.0);
        }
        let found = rates.price(at_s(900), PAIR, 10_000, 0).ms;
        assert!((found / 136.0 - 1.0).abs() < 0.3, "{found}");
    }

    #[test]
    fn where_all_reads_were_slow_a_few_faster_ones_show_that_they_no_longer_are() {
        let mut rates = FetchRates::default();
        for _ in 0..4 {
            learn(&mut rates, OTHER, 8, (50.0, 0.131));
            learn(&mut rates, PAIR, 8, (50.0, 0.131));
        }
        assert!(ms(&rates, PAIR, 10_000) > 9.0 * 136.0);
        let later = at_s(1_800);
        for (pair, tokens) in [
            (PAIR, 4_000u32),
            (OTHER, 9_000),
            (PAIR, 16_000),
            (OTHER, 7_000),
        ] {
            rates.learn(later, pair, (tokens, 0), 5.0 + f64::from(tokens) * 0.0131);
        }
        for pair in [PAIR, OTHER] {
            let found = rates.price(later, pair, 10_000, 0).ms;
            assert!((found / 136.0 - 1.0).abs() < 0.3, "{found}");
        }
    }

    #[test]
    fn reads_that_share_a_source_take_longer_and_teach_the_same_price() {
        let mut rates = FetchRates::default();
        for read in 0..40u32 {
            let (tokens, others) = (500 + (read * 997) % 20_000, read % 4);
            let shared = f64::from(tokens) * f64::from(1 + others);
            rates.learn(Moment::START, PAIR, (tokens, others), 5.0 + 0.0131 * shared);
        }
        let alone = rates.price(Moment::START, PAIR, 10_000, 0).ms;
        let shared = rates.price(Moment::START, PAIR, 10_000, 3).ms;
        assert!((alone / 136.0 - 1.0).abs() < 0.15, "{alone}");
        assert!((shared / 529.0 - 1.0).abs() < 0.15, "{shared}");
    }

    #[test]
    fn a_pair_that_brings_nothing_is_told_from_one_that_does_and_forgiven_later() {
        let mut rates = FetchRates::default();
        assert_eq!(rates.price(Moment::START, PAIR, 1_000, 0).missed, 0.0);
        for _ in 0..6 {
            rates.record(Moment::START, PAIR, false);
            rates.record(Moment::START, OTHER, true);
        }
        let missed = |pair, now| rates.price(now, pair, 1_000, 0).missed;
        assert!(missed(PAIR, Moment::START) > 0.8);
        assert!(missed(OTHER, Moment::START) < 0.2);
        assert!(missed(PAIR, at_s(1_800)) < 0.1);
    }

    #[test]
    fn where_no_read_ever_arrives_an_unknown_pair_is_not_trusted_either() {
        let mut rates = FetchRates::default();
        for _ in 0..6 {
            rates.record(Moment::START, OTHER, false);
        }
        assert!(rates.price(Moment::START, PAIR, 1_000, 0).missed > 0.8);
    }

    #[test]
    fn no_more_pairs_are_remembered_than_the_bound_and_a_removed_worker_is_forgotten() {
        let mut rates = FetchRates::default();
        let most = u32::try_from(MOST_PAIRS).expect("it is small");
        for source in 0..most + 10 {
            let pair = (WorkerId(source), WorkerId(0));
            rates.record(at_s(u64::from(source)), pair, true);
        }
        assert_eq!(rates.pairs.len(), MOST_PAIRS);
        assert!(!rates.pairs.contains_key(&(WorkerId(0), WorkerId(0))));
        rates.forget(WorkerId(0));
        assert!(rates.pairs.is_empty());
    }

    proptest! {
        #[test]
        fn whatever_is_learned_prices_stay_finite_and_positive(
            reads in prop::collection::vec(
                (0u32..200_000, 0u32..50, -1e9f64..1e9, any::<bool>()),
                0..100,
            ),
            tokens in 0u32..1_000_000,
        ) {
            let mut rates = FetchRates::default();
            for (tokens, others, ms, arrived) in reads {
                rates.learn(Moment::START, PAIR, (tokens, others), ms);
                rates.record(Moment::START, PAIR, arrived);
            }
            let price = rates.price(at_s(10), PAIR, tokens, 1);
            prop_assert!(price.ms.is_finite() && price.ms > 0.0);
            prop_assert!((0.0..=1.0).contains(&price.missed));
        }
    }
}
