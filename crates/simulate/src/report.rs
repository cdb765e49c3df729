//! The report of a simulation, in the order and with the names of `warmroute simulate --json`.

use std::fmt;

use serde::Serialize;

use crate::{FitReport, Trace, TracePace, infinite_hit_ratio};

/// The report of all cells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimulationReport {
    /// `warmroute.simulation/1`.
    pub schema: &'static str,
    /// The workload.
    pub trace: TraceSummary,
    /// The engines' profile by name.
    pub profile: &'static str,
    /// The fit behind the profile, unless it is a named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<FitReport>,
    /// The seed of all cells.
    pub seed: u64,
    /// One report for each experiment.
    pub cells: Vec<CellReport>,
}

impl SimulationReport {
    /// The name and version of this layout.
    pub const SCHEMA: &'static str = "warmroute.simulation/1";

    /// Returns the part of a sentence about the requests that are not counted.
    pub fn uncounted(&self) -> String {
        match self.cells.iter().find_map(|cell| cell.sessions) {
            Some(sessions) => format!("the first {} s are not counted", sessions.warm_up_s),
            None => "the first tenth of the requests is not counted".to_owned(),
        }
    }
}

/// Summary of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceSummary {
    /// The trace's name as given.
    pub file: String,
    /// Requests that were played.
    pub requests: usize,
    /// Requests that were left out because no engine has room for them.
    pub dropped: usize,
    /// Blocks of all prompts.
    pub blocks: usize,
    /// Share of the blocks that an unbounded cache would hold at their arrival.
    pub infinite_hit_ratio: f64,
}

impl TraceSummary {
    /// Summarises a trace of this name.
    pub fn of(file: String, trace: &Trace) -> Self {
        Self {
            file,
            requests: trace.requests.len(),
            dropped: trace.dropped,
            blocks: trace.blocks(),
            infinite_hit_ratio: rounded(infinite_hit_ratio(trace), 6),
        }
    }
}

impl fmt::Display for TraceSummary {
    /// Writes the summary without the name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.infinite_hit_ratio * 100.0;
        write!(
            f,
            "{} requests, {} blocks, {found:.2} % of them could be found in a cache without end",
            self.requests, self.blocks
        )
    }
}

/// The figures of one experiment. What comes first only warms the caches and is not counted: the
/// first tenth of the requests, or the warm-up of a closed loop.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellReport {
    /// Name of the policy.
    pub policy: &'static str,
    /// Number of engines.
    pub workers: u32,
    /// Number of routers, if there are several.
    #[serde(skip_serializing_if = "is_one")]
    pub routers: u32,
    /// What the routers told each other of their load, if they did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_sync: Option<LoadSyncReport>,
    /// The speed of the trace.
    #[serde(flatten)]
    pub pace: TracePace,
    /// The figures of a closed loop, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<SessionReport>,
    /// The figures of the target for the time to first token, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo: Option<SloReport>,
    /// Requests with a complete reply.
    pub finished: usize,
    /// Requests without a complete reply 900 s after the last arrival, or at the end of a closed loop:
    /// they count with their age at that time.
    pub unfinished: usize,
    /// Share of the prompts' blocks that were found in a cache.
    pub block_hit_ratio: f64,
    /// Share of the prompts' tokens that were found in a cache.
    pub token_hit_ratio: f64,
    /// Time from arrival to first token.
    pub ttft_ms: Milliseconds,
    /// Mean gap between the tokens of a reply.
    pub itl_ms: Milliseconds,
    /// Time from arrival to last token.
    pub e2e_ms: Milliseconds,
    /// Prompt tokens that the busiest engine computed, over the mean of all engines.
    pub prefill_imbalance: f64,
    /// Share of the requests that the router queued for a while.
    pub held_ratio: f64,
    /// One report for each engine.
    pub per_worker: Vec<WorkerReport>,
}

/// The figures of a closed loop, over the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SessionReport {
    /// Sessions at a time.
    pub concurrent: u32,
    /// Their number times the mean tokens of a prompt with its reply, over the tokens that all
    /// caches hold.
    pub capacity_ratio: f64,
    /// Time that only warmed the caches, in seconds.
    pub warm_up_s: f64,
    /// Time that was measured after it, in seconds.
    pub measured_s: f64,
    /// Complete replies per minute.
    pub turns_per_minute: f64,
    /// Sessions that ended.
    pub finished: usize,
    /// Share of the prompt tokens found in a cache that a cache without end would have held.
    pub reuse_ratio: f64,
    /// The 95th percentile of the time from arrival to first token.
    pub ttft_p95_ms: f64,
    /// The longest time from arrival to first token.
    pub longest_wait_ms: f64,
    /// Jain index of the sessions' progress: 1 where all progress alike, 1/n where one of n does.
    pub jain_index: f64,
    /// The goal that was searched for, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<GoalReport>,
}

/// How a target for the time to first token was met.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SloReport {
    /// The target.
    pub ttft_ms: f64,
    /// Share of the requests whose first token came within it; refused requests missed it.
    pub met_share: f64,
    /// The router's predictions, if its policy has a time model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predictions: Option<PredictionReport>,
}

/// Predicted over actual times from the sending of a request to its first token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PredictionReport {
    /// Requests with a prediction and a first token.
    pub requests: usize,
    /// The 5th percentile of predicted over actual.
    pub p05: f64,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// Share of the predictions within a factor of 1.25 of the actual time.
    pub close_share: f64,
}

/// A goal for the time to first token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GoalReport {
    /// The time within which first tokens have to come.
    pub ttft_ms: f64,
    /// Share of the requests whose first token came within it.
    pub share_within: f64,
    /// The number of sessions, if the share is large enough; else 0.
    pub most_sessions: u32,
}

/// What routers told each other of their load: means over routers and virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoadSyncReport {
    /// Requests per second of a router.
    pub requests_per_s: f64,
    /// Messages that a router sent per second, however many routers received them.
    pub messages_per_s: f64,
    /// Changes in them, per second.
    pub changes_per_s: f64,
    /// Hashes of blocks in them, per second.
    pub hashes_per_s: f64,
    /// Those of them that the router had not sent before.
    pub new_hashes_per_s: f64,
    /// Repairs of what one router knew of another, in the whole run.
    pub repairs: u64,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_one(number: &u32) -> bool {
    *number == 1
}

/// Statistics of a time over all requests, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Milliseconds {
    /// The mean.
    pub mean: f64,
    /// The median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    /// The 90th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90: Option<f64>,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// The figures of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerReport {
    /// Requests sent to it.
    pub requests: u64,
    /// Prompt tokens it computed.
    pub computed_tokens: u64,
    /// Prompt tokens it found in its cache.
    pub hit_tokens: u64,
}

/// The result of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestReport {
    /// Number of its tenant, if the trace names one.
    pub tenant: Option<u64>,
    /// Arrival, in seconds of virtual time.
    pub arrival_s: f64,
    /// When it was sent to its engine, in seconds of virtual time.
    pub bound_s: Option<f64>,
    /// The engine that got the request, from 0.
    pub worker: Option<usize>,
    /// Whether the router queued it for a while.
    pub queued: bool,
    /// Prompt tokens that were not in the engine's cache; all of them if there is no first token.
    pub computed_tokens: u32,
    /// Time from arrival to first token.
    pub ttft_ms: Option<f64>,
    /// Time from arrival to last token.
    pub e2e_ms: Option<f64>,
}

/// Rounds a figure to this many decimals: further ones carry no information.
pub(crate) fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}
