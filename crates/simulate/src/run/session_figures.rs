//! The figures of a closed loop.

use engine_model::Profile;
use kv_blocks::Moment;

use super::session_loop::{PlayedTurn, SessionLoop};
use crate::{
    Cell, GoalReport, SessionPlan, SessionReport, TraceRequest,
    figures::{percentile, ratio, sorted},
    outcome::RequestResult,
    report::rounded,
    session_plan::mean_footprint,
};

/// A run's progress counts if at least one in so many parts of the measured time lies in it.
const LEAST_PART: f64 = 12.0;

/// The measured time.
#[derive(Clone, Copy)]
struct Window {
    from: Moment,
    to: Moment,
}

impl Window {
    fn of(plan: &SessionPlan) -> Self {
        let from = Moment::at(plan.warm_up);
        Self {
            from,
            to: from + plan.measured,
        }
    }

    fn contains(self, at: Moment) -> bool {
        (self.from..=self.to).contains(&at)
    }

    /// Returns the milliseconds of a time that lie in the window.
    fn ms_of(self, from: Moment, to: Moment) -> f64 {
        to.min(self.to).ms_since(from.max(self.from))
    }
}

impl SessionLoop<'_> {
    /// Returns the figures, from one result for each request.
    pub(super) fn report(&self, cell: &Cell, requests: &[RequestResult]) -> SessionReport {
        let window = Window::of(&self.plan);
        let waits = self.waits(window, requests);
        let turns = (requests.iter())
            .filter(|result| result.done.is_some_and(|done| window.contains(done)))
            .count();
        let ended = (self.runs.iter())
            .filter(|run| run.ended.is_some_and(|ended| window.contains(ended)))
            .count();
        let minutes = (self.plan.measured.as_secs_f64() / 60.0).max(f64::MIN_POSITIVE);
        let held = f64::from(cell.profile.kv_tokens) * f64::from(cell.workers);
        let needed = f64::from(self.plan.concurrent) * mean_footprint(self.trace);
        SessionReport {
            concurrent: self.plan.concurrent,
            capacity_ratio: rounded(needed / held, 3),
            warm_up_s: self.plan.warm_up.as_secs_f64(),
            measured_s: self.plan.measured.as_secs_f64(),
            turns_per_minute: rounded(turns as f64 / minutes, 3),
            finished: ended,
            reuse_ratio: self.reuse_ratio(window, requests),
            ttft_p95_ms: rounded(percentile(&waits, 0.95), 3),
            longest_wait_ms: rounded(percentile(&waits, 1.0), 3),
            jain_index: rounded(jain_index(&self.progress(window, cell, requests)), 6),
            goal: self.goal(&waits),
        }
    }

    /// Returns whether a request arrived in the measured time, or waited for its first token until its
    /// end.
    pub(super) fn counts(&self, result: &RequestResult) -> bool {
        let window = Window::of(&self.plan);
        result.arrival <= window.to
            && (result.arrival >= window.from || result.first_token.is_none())
    }

    /// Returns the times to first token of the requests that count, in ascending order; a request
    /// without one counts with its age at the end.
    fn waits(&self, window: Window, requests: &[RequestResult]) -> Vec<f64> {
        let wait = |result: &RequestResult| {
            let until = result.first_token.unwrap_or(window.to);
            until.ms_since(result.arrival)
        };
        let counted = requests.iter().filter(|result| self.counts(result));
        sorted(counted.map(wait).collect())
    }

    /// Returns the share of the tokens that a cache without end would have held that were found,
    /// of the requests whose first token came in the measured time.
    fn reuse_ratio(&self, window: Window, requests: &[RequestResult]) -> f64 {
        let (mut found, mut reusable) = (0, 0);
        for (turn, result) in self.turns.iter().zip(requests) {
            if result.first_token.is_some_and(|at| window.contains(at)) {
                found += u64::from(result.cached_tokens.min(turn.reusable_tokens));
                reusable += u64::from(turn.reusable_tokens);
            }
        }
        rounded(ratio(found, reusable), 6)
    }

    /// Returns the share of the waits within the goal, if there is one.
    fn goal(&self, waits: &[f64]) -> Option<GoalReport> {
        let ttft_ms = self.plan.ttft_goal?.as_secs_f64() * 1e3;
        let within = waits.iter().filter(|wait| **wait <= ttft_ms).count();
        let share_within = ratio(within as u64, waits.len() as u64);
        let is_met = share_within >= SessionPlan::SHARE_WITHIN;
        Some(GoalReport {
            ttft_ms,
            share_within: rounded(share_within, 6),
            most_sessions: if is_met { self.plan.concurrent } else { 0 },
        })
    }

    /// Returns the progress of each run: the time that its turns and pauses in the window would take
    /// alone on an engine that holds all that it can, over the time that it took.
    fn progress(&self, window: Window, cell: &Cell, requests: &[RequestResult]) -> Vec<f64> {
        let mut gained_ms = vec![0.0; self.runs.len()];
        for (request, (turn, result)) in self.turns.iter().zip(requests).enumerate() {
            let (Some(done), Some(row)) = (result.done, self.row(request)) else {
                continue;
            };
            let traced = &self.trace.requests[row];
            let took_ms = done.ms_since(result.arrival);
            if took_ms > 0.0 {
                let share = window.ms_of(result.arrival, done) / took_ms;
                gained_ms[turn.run] += share * ideal_ms(&cell.profile, traced, turn);
            }
            if let Some(pause) = turn.pause {
                gained_ms[turn.run] += window.ms_of(done, done + pause);
            }
        }
        let least_ms = self.plan.measured.as_secs_f64() * 1e3 / LEAST_PART;
        (self.runs.iter().zip(gained_ms))
            .filter_map(|(run, gained_ms)| {
                let ms = window.ms_of(run.started, run.ended.unwrap_or(window.to));
                (ms > 0.0 && ms >= least_ms).then(|| gained_ms / ms)
            })
            .collect()
    }
}

/// Returns the time of a turn alone on an engine that holds all of the prompt that it can.
fn ideal_ms(profile: &Profile, request: &TraceRequest, turn: &PlayedTurn) -> f64 {
    let prompt = request.prompt_tokens;
    let step_ms = profile.step_ms + profile.sequence_ms + profile.kv_token_ms * f64::from(prompt);
    profile.overhead_ms
        + profile.step_ms
        + profile.prefill_ms_of(turn.reusable_tokens, prompt)
        + f64::from(request.output_tokens.saturating_sub(1)) * step_ms
}

/// Returns the Jain index of `values`: 1 if they are equal or there are none.
fn jain_index(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares > 0.0 {
        sum * sum / (values.len() as f64 * squares)
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jain_index_is_one_for_equal_values_and_the_share_of_those_that_progress() {
        assert_eq!(jain_index(&[0.5, 0.5, 0.5]), 1.0);
        assert_eq!(jain_index(&[2.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!((jain_index(&[]), jain_index(&[0.0, 0.0])), (1.0, 1.0));
    }
}
