//! The router's judgement of its own predictions: how long first tokens took, over how long they were
//! predicted to take.
//!
//! Short predictions err by other factors than long ones: a step of the engine is a large part of
//! them. Each worker therefore has a window of ratios for each class of lengths. While the window of
//! a class has few samples, predictions of this class count as right.

use std::collections::{BTreeMap, HashMap, VecDeque};

use foldhash::fast::FixedState;
use kv_blocks::WorkerId;

use crate::ReservationId;

/// Shortest predictions of each class, in milliseconds.
const CLASSES_MS: [f64; 3] = [0.0, 100.0, 1000.0];
/// Ratios in a window; older ones are dropped.
const MOST_SAMPLES: usize = 64;
/// Ratios of which a quantile is used.
const LEAST_SAMPLES: usize = 16;
/// Ratios beyond these count as these: one stalled request shows no factor.
const LEAST_RATIO: f64 = 0.05;
const MOST_RATIO: f64 = 20.0;

/// Share of the first tokens that come before a cautious prediction, a likely one and a hopeful one.
pub(crate) const CAUTIOUS: f64 = 0.9;
pub(crate) const LIKELY: f64 = 0.5;
pub(crate) const HOPEFUL: f64 = 0.1;

/// Predicted over actual times to first token of one worker, for predictions of one class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TtftRatios {
    /// The shortest prediction of the class, in milliseconds.
    pub from_ms: f64,
    /// Compared first tokens, of the latest ones.
    pub samples: usize,
    /// The 10th percentile of predicted over actual.
    pub p10: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// Factor on predictions for slack and headroom: nine in ten first tokens come before.
    pub margin: f64,
}

/// The ratios of all workers. Bounded by the open reservations and the known workers.
#[derive(Debug, Default)]
pub(crate) struct TtftParity {
    /// The prediction of each open reservation that has one. Ordered, because a hash table that
    /// grows moves all entries under the lock.
    open: BTreeMap<ReservationId, (WorkerId, f64)>,
    workers: HashMap<WorkerId, [RatioWindow; CLASSES_MS.len()], FixedState>,
}

/// The latest ratios of actual over predicted times.
#[derive(Debug, Default)]
struct RatioWindow {
    /// In the order of their first tokens; at most [`MOST_SAMPLES`].
    latest: VecDeque<f64>,
    /// The same by size.
    sorted: Vec<f64>,
}

impl TtftParity {
    /// Records the prediction of a reservation: the time from now to its first token.
    pub(crate) fn predict(&mut self, id: ReservationId, worker: WorkerId, ms: f64) {
        if ms.is_finite() && ms > 0.0 {
            self.open.insert(id, (worker, ms));
        }
    }

    /// Compares the prediction of a reservation with the time that its first token took.
    pub(crate) fn observe(&mut self, id: ReservationId, actual_ms: f64) {
        let Some((worker, predicted_ms)) = self.open.remove(&id) else {
            return;
        };
        let ratio = actual_ms / predicted_ms;
        if ratio.is_finite() {
            let windows = self.workers.entry(worker).or_default();
            windows[class(predicted_ms)].record(ratio.clamp(LEAST_RATIO, MOST_RATIO));
        }
    }

    /// Drops the prediction of a reservation that ends without a first token.
    pub(crate) fn end(&mut self, id: ReservationId) {
        self.open.remove(&id);
    }

    /// Drops what is known of a removed worker, whose first tokens are compared no more.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
        self.open.retain(|_, (of, _)| *of != worker);
    }

    /// Returns the factor on a prediction for `worker` before which this share of the first tokens
    /// comes; 1 while too few were seen.
    pub(crate) fn factor(&self, worker: WorkerId, predicted_ms: f64, share: f64) -> f64 {
        let windows = self.workers.get(&worker);
        let window = windows.map(|windows| &windows[class(predicted_ms)]);
        window
            .filter(|window| window.sorted.len() >= LEAST_SAMPLES)
            .map_or(1.0, |window| window.quantile(share))
    }

    /// Returns the figures of a worker, those of short predictions first; classes without a first token
    /// are left out.
    pub(crate) fn report(&self, worker: WorkerId) -> Vec<TtftRatios> {
        let windows = self.workers.get(&worker).into_iter().flatten();
        let classes = CLASSES_MS.iter().zip(windows);
        let seen = classes.filter(|(_, window)| !window.sorted.is_empty());
        seen.map(|(from_ms, window)| TtftRatios {
            from_ms: *from_ms,
            samples: window.sorted.len(),
            // The quantiles of the inverse, from the other end.
            p10: 1.0 / window.quantile(0.9),
            p50: 1.0 / window.quantile(0.5),
            p90: 1.0 / window.quantile(0.1),
            margin: self.factor(worker, *from_ms, CAUTIOUS),
        })
        .collect()
    }
}

/// Returns the class of a prediction.
fn class(predicted_ms: f64) -> usize {
    CLASSES_MS[1..]
        .iter()
        .take_while(|from_ms| predicted_ms >= **from_ms)
        .count()
}

impl RatioWindow {
    fn record(&mut self, ratio: f64) {
        if self.latest.len() >= MOST_SAMPLES
            && let Some(oldest) = self.latest.pop_front()
        {
            let at = self.sorted.partition_point(|known| *known < oldest);
            if at < self.sorted.len() {
                self.sorted.remove(at);
            }
        }
        self.latest.push_back(ratio);
        let at = self.sorted.partition_point(|known| *known < ratio);
        self.sorted.insert(at, ratio);
    }

    /// Returns the ratio that is not exceeded by this share of the ratios; 1 without any.
    fn quantile(&self, share: f64) -> f64 {
        let Some(last) = self.sorted.len().checked_sub(1) else {
            return 1.0;
        };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a length is one"
        )]
        let at = (last as f64 * share).round() as usize;
        self.sorted[at.min(last)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORKER: WorkerId = WorkerId(1);

    fn observed(parity: &mut TtftParity, number: u64, predicted_ms: f64, actual_ms: f64) {
        let id = ReservationId(number);
        parity.predict(id, WORKER, predicted_ms);
        parity.observe(id, actual_ms);
    }

    #[test]
    fn predictions_count_as_right_until_enough_of_their_length_are_compared() {
        let mut parity = TtftParity::default();
        for number in 1..LEAST_SAMPLES as u64 {
            observed(&mut parity, number, 200.0, 500.0);
            assert_eq!(parity.factor(WORKER, 200.0, CAUTIOUS), 1.0);
        }
        observed(&mut parity, 99, 200.0, 500.0);
        assert_eq!(parity.factor(WORKER, 200.0, CAUTIOUS), 2.5);
        assert_eq!(parity.factor(WORKER, 900.0, HOPEFUL), 2.5);
        for other in [50.0, 1000.0] {
            assert_eq!(parity.factor(WORKER, other, CAUTIOUS), 1.0, "{other}");
        }
        assert_eq!(parity.factor(WorkerId(2), 200.0, CAUTIOUS), 1.0);
    }

    #[test]
    fn margins_widen_when_predictions_become_wrong_and_narrow_again() {
        let mut parity = TtftParity::default();
        let mut number = 0;
        let mut play = |parity: &mut TtftParity, actual_ms: f64| {
            for _ in 0..MOST_SAMPLES {
                number += 1;
                observed(parity, number, 200.0, actual_ms);
            }
            parity.factor(WORKER, 200.0, CAUTIOUS)
        };
        assert_eq!(play(&mut parity, 200.0), 1.0);
        assert_eq!(play(&mut parity, 600.0), 3.0);
        assert_eq!(play(&mut parity, 100.0), 0.5);
    }

    #[test]
    fn the_report_has_predicted_over_actual_for_each_class_with_samples() {
        let mut parity = TtftParity::default();
        // Actual over predicted from 0.5 to 1.5.
        for number in 0..=20u32 {
            let actual_ms = 2000.0 * (0.5 + f64::from(number) / 20.0);
            observed(&mut parity, u64::from(number), 2000.0, actual_ms);
        }
        let figures = parity.report(WORKER);
        let [long] = &figures[..] else {
            panic!("{figures:?}");
        };
        assert_eq!((long.from_ms, long.samples), (1000.0, 21));
        for (found, expected) in [
            (long.p10, 1.0 / 1.4),
            (long.p50, 1.0),
            (long.p90, 1.0 / 0.6),
            (long.margin, 1.4),
        ] {
            assert!((found - expected).abs() < 1e-9, "{long:?}");
        }
        parity.predict(ReservationId(99), WORKER, 10.0);
        parity.forget(WORKER);
        parity.observe(ReservationId(99), 10.0);
        assert!(parity.report(WORKER).is_empty());
    }

    #[test]
    fn a_reservation_without_a_first_token_or_a_prediction_shows_nothing() {
        let mut parity = TtftParity::default();
        for (number, predicted_ms) in [(1, f64::NAN), (2, 0.0), (3, f64::INFINITY)] {
            observed(&mut parity, number, predicted_ms, 10.0);
        }
        parity.predict(ReservationId(4), WORKER, 10.0);
        parity.end(ReservationId(4));
        parity.observe(ReservationId(4), 10.0);
        observed(&mut parity, 5, 10.0, f64::NAN);
        assert!(parity.report(WORKER).is_empty() && parity.open.is_empty());
    }

    proptest! {
        #[test]
        fn a_window_has_the_quantiles_of_its_latest_ratios(
            ratios in prop::collection::vec(0.05f64..20.0, 1..200),
            share in 0.0f64..=1.0,
        ) {
            let mut window = RatioWindow::default();
            ratios.iter().for_each(|ratio| window.record(*ratio));
            let mut latest = ratios[ratios.len().saturating_sub(MOST_SAMPLES)..].to_vec();
            latest.sort_by(f64::total_cmp);
            prop_assert_eq!(&window.sorted, &latest);
            let below = latest.iter().filter(|ratio| **ratio <= window.quantile(share)).count();
            prop_assert!(below as f64 >= share * (latest.len() - 1) as f64);
        }
    }
}
