//! Health, liveness and readiness.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Name;

/// `GET /health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthReply {
    /// `ok`: every worker is ready and nothing is degraded; `unavailable`: no worker is ready.
    #[schemars(extend("enum" = ["ok", "degraded", "unavailable"]))]
    pub status: Name,
    /// The workers.
    pub workers: WorkerCounts,
    /// Parts that do not work as configured, such as `redis` or `tokenizer:qwen`; sorted.
    pub degraded: Vec<String>,
}

/// Numbers of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerCounts {
    /// Workers that take requests.
    pub ready: usize,
    /// All workers.
    pub total: usize,
}

/// `GET /livez` and `GET /readyz`: 200 with `ok`, else 503.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeReply {
    /// State of the process.
    #[schemars(extend("enum" = [
        "ok", "draining", "failed", "unavailable", "stalled", "method_not_allowed",
    ]))]
    pub status: Name,
    /// Why the probe fails; empty if it does not.
    pub reasons: Vec<Name>,
}
