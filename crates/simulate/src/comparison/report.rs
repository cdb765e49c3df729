//! The report of a table, in the order and with the names of `warmroute compare --json`.

use serde::Serialize;

use super::{
    Contender, GateLoss,
    gate::losses,
    markdown,
    plan::{ComparedPace, ComparisonPlan, PlannedCell},
    plot,
};

/// The whole table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonReport {
    /// `warmroute.comparison/1`.
    pub schema: &'static str,
    /// The engines' profile by name.
    pub profile: &'static str,
    /// Number of engines.
    pub workers: u32,
    /// The time to first token within which turns count.
    pub ttft_slo_ms: f64,
    /// The seed of all runs.
    pub seed: u64,
    /// The cells, in the order of the traces.
    pub cells: Vec<ComparisonCell>,
    /// The figures of `warm` that are worse than the gate allows.
    pub losses: Vec<GateLoss>,
}

/// One trace at one pace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonCell {
    /// Name of the trace.
    pub trace: String,
    /// Requests of the trace that were played, or that the sessions were taken from.
    pub requests: usize,
    /// How it was played.
    pub pace: ComparedPace,
    /// One row for each contender.
    pub rows: Vec<ComparisonRow>,
}

/// The figures of one contender in one cell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ComparisonRow {
    /// Name of the contender.
    pub contender: Contender,
    /// Sessions at a time, in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
    /// Share of the available reuse: prompt tokens found in a cache over those that one cache without
    /// end would have held. `None` where no prompt repeats anything.
    pub reuse_ratio: Option<f64>,
    /// Complete replies per minute whose first token came within the SLO.
    pub turns_per_minute: f64,
    /// The 95th percentile of the time from arrival to first token.
    pub ttft_p95_ms: f64,
    /// Prompt tokens that the busiest engine computed, over the mean of all engines.
    pub prefill_imbalance: f64,
}

impl ComparisonReport {
    /// The name and version of this layout.
    pub const SCHEMA: &'static str = "warmroute.comparison/1";

    pub(super) fn of(plan: &ComparisonPlan, cells: Vec<ComparisonCell>) -> Self {
        Self {
            schema: Self::SCHEMA,
            profile: plan.profile.name,
            workers: plan.workers,
            ttft_slo_ms: plan.ttft_slo.as_secs_f64() * 1e3,
            seed: plan.seed,
            losses: losses(&cells),
            cells,
        }
    }

    /// Returns the table as Markdown.
    pub fn markdown(&self) -> String {
        markdown::table(self)
    }

    /// Returns the reuse and the turns of all cells as an SVG document.
    pub fn plot(&self) -> String {
        plot::drawing(self)
    }
}

impl ComparisonCell {
    pub(super) fn of(cell: &PlannedCell<'_>, rows: Vec<ComparisonRow>) -> Self {
        Self {
            trace: cell.name.to_owned(),
            requests: cell.requests(),
            pace: cell.pace,
            rows,
        }
    }
}
