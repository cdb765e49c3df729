//! The report's format, `warmroute.doctor/1`, and the lists of checks.

use config::Problem;
use serde::Serialize;

/// Checks of a worker, in the order of the report.
pub(crate) const WORKER_CHECKS: [&str; 27] = [
    "reachable",
    "model_listed",
    "engine_version",
    "model_agrees",
    "block_size",
    "prefix_caching",
    "tokenizer",
    "chat_template",
    "special_tokens",
    "usage_details",
    "events_enabled",
    "events_endpoint",
    "events_arriving",
    "events_age",
    "replay",
    "sequence",
    "dp_ranks",
    "dp_offset",
    "identity_unique",
    "hash_alias",
    "lora",
    "salt_honoured",
    "medium_known",
    "hybrid_groups",
    "role_pairing",
    "health_endpoint",
    "clock",
];

/// Checks of the router, in the order of the report.
pub(crate) const ROUTER_CHECKS: [&str; 9] = [
    "config",
    "listener_exposed",
    "admin_exposed",
    "tenants_salted",
    "redis",
    "nats",
    "s3",
    "limits_fd",
    "timers",
];

/// Report of a whole run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    /// The schema's name.
    pub schema: &'static str,
    /// Whether no check failed.
    pub ok: bool,
    /// Checks of the router.
    pub checks: Vec<CheckResult>,
    /// Workers, in the order of the configuration.
    pub workers: Vec<WorkerChecks>,
}

/// One worker's checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    /// Id of the check.
    pub id: &'static str,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

impl DoctorReport {
    pub(crate) fn new(checks: Vec<CheckResult>, workers: Vec<WorkerChecks>) -> Self {
        let ok = none_failed(&checks) && workers.iter().all(|worker| worker.ok);
        Self {
            schema: "warmroute.doctor/1",
            ok,
            checks,
            workers,
        }
    }
}

pub(crate) fn none_failed(checks: &[CheckResult]) -> bool {
    checks.iter().all(|check| check.status != CheckStatus::Fail)
}

/// Builds the report of a configuration that cannot be used: no worker is queried.
pub fn bad_configuration(problems: &[Problem]) -> DoctorReport {
    let all =
        |text: fn(&Problem) -> String| problems.iter().map(text).collect::<Vec<_>>().join("; ");
    let check = |id: &&'static str| {
        let (status, message, fix) = if *id == "config" {
            (
                CheckStatus::Fail,
                all(Problem::to_string),
                Some(all(correction)),
            )
        } else {
            (
                CheckStatus::Skip,
                "the configuration cannot be used".to_owned(),
                None,
            )
        };
        CheckResult {
            id,
            status,
            found: None,
            expected: None,
            message,
            fix,
        }
    };
    DoctorReport::new(ROUTER_CHECKS.iter().map(check).collect(), Vec::new())
}

/// Returns the correction for a problem.
fn correction(problem: &Problem) -> String {
    let Problem {
        path,
        nearest,
        expected,
        ..
    } = problem;
    match (nearest, expected) {
        _ if path.is_empty() => "correct the file, see `warmroute config check`".to_owned(),
        (Some(nearest), _) => format!("at {path} write {nearest}"),
        (None, Some(expected)) => format!("set {path} to {expected}"),
        (None, None) => format!("correct {path}"),
    }
}
