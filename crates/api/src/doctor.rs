//! The doctor's report, `warmroute.doctor/1`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Name;

/// Report of a whole run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// The schema's name.
    pub schema: Name,
    /// Whether no check failed.
    pub ok: bool,
    /// Checks of the router.
    pub checks: Vec<CheckResult>,
    /// Workers, in the order of the configuration.
    pub workers: Vec<WorkerChecks>,
}

/// One worker's checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerChecks {
    /// Its name.
    pub name: String,
    /// Its address, without secrets.
    pub url: String,
    /// Whether none of its checks failed.
    pub ok: bool,
    /// All of them.
    pub checks: Vec<CheckResult>,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckResult {
    /// Id of the check.
    pub id: Name,
    /// Status of the check.
    pub status: CheckStatus,
    /// The value found, if it is a single value.
    pub found: Option<String>,
    /// The expected value.
    pub expected: Option<String>,
    /// The finding as a sentence.
    pub message: String,
    /// How to fix it.
    pub fix: Option<String>,
}

/// Status of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// Correct.
    Ok,
    /// Works, but deserves attention.
    Warn,
    /// Costs cache hits, or worse.
    Fail,
    /// Not made: it does not apply, or a precondition is missing.
    Skip,
}

impl CheckStatus {
    /// Returns the status as the report writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}
