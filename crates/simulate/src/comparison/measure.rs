//! The figures of one run.

use std::{ops::RangeInclusive, time::Duration};

use super::{Contender, report::ComparisonRow};
use crate::{
    Cell, RequestReport, SessionPlan, Trace,
    figures::{percentile, ratio, sorted},
    report::rounded,
    run::{PATIENCE, WARM_UP},
    run_in_detail,
    search::play,
};

/// One contender in one cell.
#[derive(Debug)]
pub(super) struct PlannedRun<'a> {
    pub(super) contender: Contender,
    pub(super) trace: &'a Trace,
    /// The tokens of each prompt that a cache without end would hold.
    pub(super) reusable: &'a [u32],
    pub(super) cell: Cell,
    pub(super) ttft_slo: Duration,
}

impl PlannedRun<'_> {
    /// Plays the run.
    pub(super) fn measure(&self) -> ComparisonRow {
        match self.cell.pace.sessions {
            None => self.recorded(),
            Some(plan) if plan.ttft_goal.is_some() => self.searched(),
            Some(plan) => self.closed_loop(&plan),
        }
    }

    /// Plays the recorded arrivals. As everywhere, the first tenth only warms the caches, and a request
    /// without a first token counts with its age 900 s after the last arrival.
    fn recorded(&self) -> ComparisonRow {
        let (report, requests) = run_in_detail(self.trace, &self.cell);
        let warm_up = requests.len() / WARM_UP;
        let counted = requests.get(warm_up..).unwrap_or_default();
        let first_s = counted.first().map_or(0.0, |request| request.arrival_s);
        let last_s = counted.last().map_or(0.0, |request| request.arrival_s);
        let end_s = last_s + PATIENCE.as_secs_f64();
        let (mut found, mut available) = (0, 0);
        let played = requests.iter().zip(&self.trace.requests);
        for ((request, traced), reusable) in played.zip(self.reusable).skip(warm_up) {
            let cached = traced.prompt_tokens - request.computed_tokens;
            found += u64::from(cached.min(*reusable));
            available += u64::from(*reusable);
        }
        let waits = counted
            .iter()
            .map(|request| request.ttft_ms.unwrap_or((end_s - request.arrival_s) * 1e3));
        let turns = self.turns_within(counted, f64::NEG_INFINITY..=f64::INFINITY);
        let seconds = (last_s - first_s).max(1.0);
        ComparisonRow {
            contender: self.contender,
            sessions: None,
            reuse_ratio: (available > 0).then(|| rounded(ratio(found, available), 6)),
            turns_per_minute: per_minute(turns, seconds),
            ttft_p95_ms: rounded(percentile(&sorted(waits.collect()), 0.95), 3),
            prefill_imbalance: report.prefill_imbalance,
        }
    }

    /// Plays a number of sessions.
    fn closed_loop(&self, plan: &SessionPlan) -> ComparisonRow {
        let (report, requests) = run_in_detail(self.trace, &self.cell);
        let from_s = plan.warm_up.as_secs_f64();
        let to_s = from_s + plan.measured.as_secs_f64();
        let turns = self.turns_within(&requests, from_s..=to_s);
        ComparisonRow {
            contender: self.contender,
            sessions: Some(plan.concurrent),
            reuse_ratio: report.sessions.map(|sessions| sessions.reuse_ratio),
            turns_per_minute: per_minute(turns, plan.measured.as_secs_f64().max(1.0)),
            ttft_p95_ms: report.sessions.map_or(0.0, |sessions| sessions.ttft_p95_ms),
            prefill_imbalance: report.prefill_imbalance,
        }
    }

    /// Searches for the most sessions within the SLO; where one is too many, there are no turns within
    /// it.
    fn searched(&self) -> ComparisonRow {
        let report = play(self.trace, &self.cell);
        let sessions = report.sessions;
        let most = sessions
            .and_then(|sessions| sessions.goal)
            .map_or(0, |goal| goal.most_sessions);
        let turns = sessions
            .filter(|_| most > 0)
            .map_or(0.0, |sessions| sessions.turns_per_minute);
        ComparisonRow {
            contender: self.contender,
            sessions: Some(most),
            reuse_ratio: sessions.map(|sessions| sessions.reuse_ratio),
            turns_per_minute: turns,
            ttft_p95_ms: sessions.map_or(0.0, |sessions| sessions.ttft_p95_ms),
            prefill_imbalance: report.prefill_imbalance,
        }
    }

    /// Returns how many complete replies have their first token within the SLO and end in a time, in seconds.
    fn turns_within(&self, requests: &[RequestReport], window_s: RangeInclusive<f64>) -> usize {
        let slo_ms = self.ttft_slo.as_secs_f64() * 1e3;
        requests
            .iter()
            .filter(|request| request.ttft_ms.is_some_and(|ttft| ttft <= slo_ms))
            .filter(|request| end_s(request).is_some_and(|end| window_s.contains(&end)))
            .count()
    }
}

/// Returns the end of a request's reply, in seconds of virtual time.
fn end_s(request: &RequestReport) -> Option<f64> {
    Some(request.arrival_s + request.e2e_ms? / 1e3)
}

fn per_minute(turns: usize, seconds: f64) -> f64 {
    rounded(turns as f64 * 60.0 / seconds, 3)
}
