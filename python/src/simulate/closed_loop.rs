//! The keywords of a closed loop.

use std::time::Duration;

use pyo3::{exceptions::PyValueError, prelude::*};
use simulate::{
    PlannedPace, SessionNumbers, SessionPlan,
    ranges::{LONGEST_LOOP_S, LONGEST_TTFT_MS, MOST_CAPACITY, MOST_SESSIONS},
};

use super::{
    experiments::counts,
    options::{Options, number, values, whole},
};

/// Returns the closed loops, if the keywords ask for any.
pub(super) fn planned(options: &Options<'_, '_>) -> PyResult<Option<PlannedPace>> {
    let seconds = |name, least, usual: Duration| {
        let given = options.whole(name, least..=LONGEST_LOOP_S)?;
        let length = given.map_or(usual, Duration::from_secs);
        PyResult::Ok((given.is_some(), length))
    };
    let usual = SessionPlan::new(1);
    let (has_warm_up, warm_up) = seconds("warm_up_s", 0, usual.warm_up)?;
    let (has_measured, measured) = seconds("measured_s", 1, usual.measured)?;
    let (has_tail, mean_tail) = seconds("tail_s", 1, usual.mean_tail)?;
    let Some(numbers) = numbers(options)? else {
        return if has_warm_up || has_measured || has_tail {
            Err(PyValueError::new_err(
                "warm_up_s, measured_s and tail_s are for closed loops: expected sessions, \
                 capacity_ratio or find_sessions, too",
            ))
        } else {
            Ok(None)
        };
    };
    let plan = SessionPlan {
        warm_up,
        measured,
        mean_tail,
        ..usual
    };
    Ok(Some(PlannedPace::Sessions(numbers, plan)))
}

fn numbers(options: &Options<'_, '_>) -> PyResult<Option<SessionNumbers>> {
    let sessions = options.get("sessions")?;
    let ratios = options.get("capacity_ratio")?;
    let goal = goal(options)?;
    match (sessions, ratios, goal) {
        (None, None, None) => Ok(None),
        (Some(sessions), None, None) => counts("sessions", &sessions, MOST_SESSIONS)
            .map(|numbers| Some(SessionNumbers::Each(numbers))),
        (None, Some(ratios), None) => {
            let ratio = |value: &Bound<'_, PyAny>| {
                number(
                    "capacity_ratio",
                    value,
                    |times| times > 0.0 && times <= MOST_CAPACITY,
                    "a number above 0, at most 100; at 1 the sessions just fit",
                )
            };
            let ratios = values("capacity_ratio", &ratios)?;
            let ratios = ratios.iter().map(ratio).collect::<PyResult<_>>()?;
            Ok(Some(SessionNumbers::CapacityRatios(ratios)))
        }
        (None, None, Some(goal)) => Ok(Some(SessionNumbers::MostWithin(goal))),
        _ => Err(PyValueError::new_err(
            "of sessions, capacity_ratio and find_sessions several are given: expected one of them",
        )),
    }
}

/// Returns the goal of a search: `{"ttft_ms": 2000}`.
fn goal(options: &Options<'_, '_>) -> PyResult<Option<Duration>> {
    if options.get("find_sessions")?.is_none() {
        return Ok(None);
    }
    match &options.entries("find_sessions")?[..] {
        [(name, ms)] if name == "ttft_ms" => {
            let ms = whole("find_sessions", ms, &(1..=LONGEST_TTFT_MS))?;
            Ok(Some(Duration::from_millis(ms)))
        }
        _ => Err(PyValueError::new_err(
            "find_sessions is a dict with other keys: expected {\"ttft_ms\": MS}",
        )),
    }
}
