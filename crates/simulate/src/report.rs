//! What is told of a simulation, in the order and with the names of `warmroute simulate --json`.

use std::fmt;

use serde::Serialize;

use crate::{FitReport, Trace, infinite_hit_ratio};

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimulationReport {
    /// `warmroute.simulation/1`.
    pub schema: &'static str,
    /// What was played.
    pub trace: TraceSummary,
    /// The engines' profile by name.
    pub profile: &'static str,
    /// How the profile was found, if it is none of those that have a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<FitReport>,
    /// Of all cells.
    pub seed: u64,
    /// One for each experiment.
    pub cells: Vec<CellReport>,
}

impl SimulationReport {
    /// The name and version of this layout.
    pub const SCHEMA: &'static str = "warmroute.simulation/1";
}

/// What was played.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceSummary {
    /// As it was named.
    pub file: String,
    /// Requests that were played.
    pub requests: usize,
    /// Requests that were left out because no engine could hold them.
    pub dropped: usize,
    /// Blocks of all their prompts.
    pub blocks: usize,
    /// Share of them that a cache without end would hold when they come.
    pub infinite_hit_ratio: f64,
}

impl TraceSummary {
    /// Of a trace that is named like this.
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
    /// What there is to play, without its name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.infinite_hit_ratio * 100.0;
        write!(
            f,
            "{} requests, {} blocks, {found:.2} % of them could be found in a cache without end",
            self.requests, self.blocks
        )
    }
}

/// What one experiment showed. The first tenth of the requests warms the caches and is not counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellReport {
    /// The policy by name.
    pub policy: &'static str,
    /// Engines.
    pub workers: u32,
    /// The load index, if the pace was chosen by one.
    pub load: Option<f64>,
    /// How many times faster than recorded the trace was played.
    pub speedup: f64,
    /// Requests with a complete reply.
    pub finished: usize,
    /// Requests without one 900 s after the last arrival: they count with their age at that time.
    pub unfinished: usize,
    /// Share of the prompts' blocks that were found in a cache.
    pub block_hit_ratio: f64,
    /// The same in tokens.
    pub token_hit_ratio: f64,
    /// From arrival to first token.
    pub ttft_ms: Milliseconds,
    /// Mean gap between the tokens of a reply.
    pub itl_ms: Milliseconds,
    /// From arrival to last token.
    pub e2e_ms: Milliseconds,
    /// Prompt tokens that the busiest engine computed, over the mean of all.
    pub prefill_imbalance: f64,
    /// Share of the requests that the router held back for a while.
    pub held_ratio: f64,
    /// One for each engine.
    pub per_worker: Vec<WorkerReport>,
}

/// A time as it was for all requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Milliseconds {
    /// The mean.
    pub mean: f64,
    /// The median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    /// Nine in ten are not above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90: Option<f64>,
    /// Ninety-nine in a hundred are not above it.
    pub p99: f64,
    /// The largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// One engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerReport {
    /// Requests sent there.
    pub requests: u64,
    /// Prompt tokens it computed.
    pub computed_tokens: u64,
    /// Prompt tokens it found in its cache.
    pub hit_tokens: u64,
}

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestReport {
    /// When it came, in seconds of virtual time.
    pub arrival_s: f64,
    /// The engine that it was sent to, from 0.
    pub worker: Option<usize>,
    /// Whether the router held it back for a while.
    pub held: bool,
    /// Prompt tokens that were not found in the cache there; all of them if it has no first token.
    pub computed_tokens: u32,
    /// From arrival to first token.
    pub ttft_ms: Option<f64>,
    /// From arrival to last token.
    pub e2e_ms: Option<f64>,
}

/// Rounds a figure to so many decimals: the rest is no information.
pub(crate) fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}
