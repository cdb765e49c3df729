//! The search for the largest number of sessions that meets a goal.

use crate::{Cell, CellReport, SessionPlan, Trace, TracePace, run, sessions_for};

/// The search ends when the numbers that meet the goal and that do not differ by one in so many.
const STEPS: u32 = 64;

/// Share of the caches' tokens that the sessions of the first run need, and the largest multiple
/// that is tried.
const FIRST_RATIO: f64 = 0.5;
const LAST_RATIO: f64 = 16.0;

/// Plays `trace` in one cell, or in a search.
pub(crate) fn play(trace: &Trace, cell: &Cell) -> CellReport {
    match cell.pace.sessions {
        Some(plan) if plan.ttft_goal.is_some() => most_sessions(trace, cell, plan),
        _ => run(trace, cell),
    }
}

/// Returns the report of the largest number of sessions found that meets the goal: doubled until it
/// does not, then halved in between. Where none does, that of one session.
fn most_sessions(trace: &Trace, cell: &Cell, plan: SessionPlan) -> CellReport {
    let with = |concurrent: u32| {
        let pace = TracePace::closed_loop(SessionPlan { concurrent, ..plan });
        run(
            trace,
            &Cell {
                pace,
                ..cell.clone()
            },
        )
    };
    let needing = |ratio| sessions_for(trace, &cell.profile, cell.workers, ratio);
    let most = plan.concurrent.clamp(1, needing(LAST_RATIO));
    let (mut best, mut failed) = (None, None);
    let (mut low, mut high) = (0_u32, None);
    let mut next = needing(FIRST_RATIO).min(most);
    loop {
        let report = with(next);
        if meets_goal(&report) {
            (low, best) = (next, Some(report));
        } else {
            (high, failed) = (Some(next), Some(report));
        }
        next = match high {
            None if low >= most => break,
            None => low.saturating_mul(2).min(most),
            Some(high) if high - low <= (low / STEPS).max(1) => break,
            Some(high) => low + (high - low) / 2,
        };
    }
    best.or(failed).unwrap_or_else(|| with(1))
}

fn meets_goal(report: &CellReport) -> bool {
    report
        .sessions
        .and_then(|sessions| sessions.goal)
        .is_some_and(|goal| goal.most_sessions > 0)
}
