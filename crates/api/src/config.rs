//! The configuration's changes, and the process's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Name, Problem};

/// `POST /admin/reload` and `POST /admin/config/rollback`: 200, or 400 with `problems`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadOutcome {
    /// Whether it is in force.
    pub applied: bool,
    /// Keys whose values in force differ from before, or would differ.
    pub changed: Vec<String>,
    /// Keys whose new values take effect at the next start.
    pub restart_needed: Vec<String>,
    /// Reasons why nothing changed; empty if the change is or would be accepted.
    pub problems: Vec<Problem>,
}

/// `GET /admin/config/history`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigHistory {
    /// Newest first.
    pub history: Vec<HistoryEntry>,
}

/// One applied or refused change of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// Sequence number; the start is 1.
    pub id: u64,
    /// Time of the change, RFC 3339.
    pub at: String,
    /// Origin of the change.
    #[schemars(extend("enum" = ["start", "file", "admin", "signal", "discovery", "lease", "replicas"]))]
    pub source: Name,
    /// Whether it came into force.
    #[schemars(extend("enum" = ["applied", "rejected"]))]
    pub result: Name,
    /// Keys that changed.
    pub changed: Vec<String>,
}

/// `POST /admin/drain` and `GET /admin/drain/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainReport {
    /// Whether the process drains.
    pub draining: bool,
    /// When it began, RFC 3339.
    pub since: Option<String>,
    /// Requests still running.
    pub open_streams: u64,
    /// Connections that were cut with a request running.
    pub cut_streams: u64,
}

/// `POST /admin/takeover`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TakeoverReply {
    /// Always true; a failure is an error.
    pub given: bool,
}
