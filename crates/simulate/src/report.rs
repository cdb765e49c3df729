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

/// The figures of one experiment. The first tenth of the requests warms the caches and is not
/// counted.
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
    /// Requests with a complete reply.
    pub finished: usize,
    /// Requests without a complete reply 900 s after the last arrival: they count with their age at
    /// that time.
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
