//! How long something takes.

use std::time::Instant;

/// Rounds, of which the median counts.
const ROUNDS: usize = 51;

/// Microseconds of one call of `run`, by the median of rounds of `calls` calls each; a call is given its number.
#[expect(clippy::disallowed_methods, reason = "it measures real time")]
pub(crate) fn us_per_call(calls: u32, mut run: impl FnMut(u32)) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            (0..calls).for_each(&mut run);
            started.elapsed().as_secs_f64() * 1e6 / f64::from(calls)
        })
        .collect();
    rounds.sort_unstable_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}
