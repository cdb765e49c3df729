//! The comparison table: `warm`, with admission off and on, beside the rules of other routers, on
//! several traces.
//!
//! A trace that names sessions is played in a closed loop, every other one by its recorded arrivals.
//! Every contender gets the same requests, engines and events. The table is also a gate: `warm` may be
//! worse than the best other contender only within [`BOUNDS`].

mod contender;
mod gate;
mod markdown;
mod measure;
mod plan;
mod plot;
mod report;

use std::sync::atomic::AtomicBool;

pub use self::{
    contender::{CONTENDERS, Contender},
    gate::{BOUNDS, Bound, ComparedFigure, GateLoss},
    plan::{ComparedPace, ComparisonPlan},
    report::{ComparisonCell, ComparisonReport, ComparisonRow},
};
use self::{measure::PlannedRun, plan::PlannedCell};
use crate::{Trace, run_all::run_each};

/// A trace of the table, as [`ComparisonPlan::prepare`] makes it.
#[derive(Debug)]
pub struct ComparedTrace {
    /// Its name in the table.
    name: String,
    /// Its requests.
    trace: Trace,
    /// The tokens of each prompt that a cache without end would hold.
    reusable: Vec<u32>,
}

/// Plays every trace with every contender on up to `threads` threads, which end before this function
/// does. Calls `progress` with the number of finished runs and the number of all, from 0 on.
pub fn compare(
    traces: &[ComparedTrace],
    plan: &ComparisonPlan,
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> ComparisonReport {
    let cells: Vec<PlannedCell<'_>> = traces
        .iter()
        .flat_map(|compared| plan.cells(compared))
        .collect();
    let runs: Vec<PlannedRun<'_>> = cells
        .iter()
        .flat_map(|cell| {
            CONTENDERS
                .into_iter()
                .map(move |contender| plan.run(cell, contender))
        })
        .collect();
    let never = AtomicBool::new(false);
    let rows = run_each(
        &runs,
        threads,
        &never,
        &mut |done| progress(done, runs.len()),
        PlannedRun::measure,
    );
    let cells: Vec<ComparisonCell> = cells
        .iter()
        .zip(rows.chunks(CONTENDERS.len()))
        .map(|(cell, rows)| ComparisonCell::of(cell, rows.to_vec()))
        .collect();
    ComparisonReport::of(plan, cells)
}
