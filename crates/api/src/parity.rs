//! Predicted beside actual cached tokens, and times to first token.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Name, numbers};

/// `GET /admin/parity`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParityReport {
    /// Length of the window, seconds.
    #[serde(serialize_with = "numbers::seconds")]
    pub window_s: f64,
    /// One entry per worker and rank.
    pub workers: Vec<TargetParity>,
    /// The sum over all targets.
    pub total: ParityFigures,
    /// Predicted over actual times to first token, one entry per worker.
    pub ttft: Vec<WorkerTtftParity>,
}

/// Predicted over actual times to first token of a worker, over its latest streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerTtftParity {
    /// The worker's name.
    pub worker: Arc<str>,
    /// One entry for each class of predictions with samples, the shortest first.
    pub classes: Vec<TtftParity>,
}

/// Predicted over actual times to first token, for predictions of one length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TtftParity {
    /// The shortest prediction of the class, ms; up to that of the next class.
    pub from_ms: f64,
    /// First tokens that were compared: the latest 64 at most.
    pub samples: usize,
    /// 10th percentile of predicted over actual.
    pub ratio_p10: f64,
    /// Median of predicted over actual.
    pub ratio_p50: f64,
    /// 90th percentile of predicted over actual.
    pub ratio_p90: f64,
    /// Factor on predictions for slack and headroom, before which nine in ten first tokens come; 1
    /// with fewer than 16 samples.
    pub margin: f64,
}

/// Parity of one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetParity {
    /// The worker's name.
    pub worker: Arc<str>,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Its figures.
    #[serde(flatten)]
    pub figures: ParityFigures,
}

/// The state of a target's predictions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParityVerdict {
    /// Whether the predictions are trusted.
    #[schemars(extend("enum" = ["ok", "drifting", "downgraded", "recovering", "no_data"]))]
    pub state: Name,
    /// When the state began, RFC 3339.
    pub since: String,
    /// Why the state is not `ok`.
    pub reason: Option<String>,
}

/// Figures of a window, and whether the predictions are trusted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParityFigures {
    /// The figures.
    #[serde(flatten)]
    pub counts: ParityCounts,
    /// Whether the predictions are trusted, and since when.
    #[serde(flatten)]
    pub verdict: ParityVerdict,
    /// Part of the window that the figures cover, seconds.
    #[serde(serialize_with = "numbers::seconds")]
    pub covered_s: f64,
}

/// Requests and tokens of a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParityCounts {
    /// Requests that ended.
    pub requests: u64,
    /// Requests whose reply reported its cached tokens.
    pub joined: u64,
    /// Source of the actual tokens: the replies, or the engine's own counters where fewer than a
    /// tenth of the replies report them.
    #[schemars(extend("enum" = ["usage", "engine_metrics"]))]
    pub source: Name,
    /// Joined requests whose prediction was exact.
    pub exact: u64,
    /// `exact` as a share of `joined`; `null` without any.
    pub exact_ratio: Option<f64>,
    /// Predicted cached tokens.
    pub predicted_tokens: u64,
    /// Actual cached tokens.
    pub actual_tokens: u64,
    /// Median of predicted minus actual tokens over the joined requests; `null` without any.
    pub drift_tokens_p50: Option<i64>,
    /// 99th percentile of predicted minus actual tokens over the joined requests; `null` without any.
    pub drift_tokens_p99: Option<i64>,
    /// Share of the joined requests whose prediction was too high; `null` without any.
    pub over_ratio: Option<f64>,
}
