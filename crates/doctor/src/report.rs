//! The lists of checks, and the report of them.

use api::{CheckResult, CheckStatus, DoctorReport, Problem, WorkerChecks};
use config::Settings;

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
pub(crate) const ROUTER_CHECKS: [&str; 11] = [
    "config",
    "listener_exposed",
    "admin_exposed",
    "key_in_arguments",
    "tenants_salted",
    "redis",
    "nats",
    "replicas",
    "s3",
    "limits_fd",
    "timers",
];

/// Returns the report of a whole run.
pub(crate) fn report(checks: Vec<CheckResult>, workers: Vec<WorkerChecks>) -> DoctorReport {
    let ok = none_failed(&checks) && workers.iter().all(|worker| worker.ok);
    DoctorReport {
        schema: "warmroute.doctor/1".into(),
        ok,
        checks,
        workers,
    }
}

pub(crate) fn none_failed(checks: &[CheckResult]) -> bool {
    checks.iter().all(|check| check.status != CheckStatus::Fail)
}

/// Reduces the checks of workers that the file does not name to their statuses: who chose such an
/// address learns nothing of what answers there.
#[must_use]
pub fn without_answers(mut report: DoctorReport, settings: &Settings) -> DoctorReport {
    let workers = settings.workers.iter().zip(&mut report.workers);
    for (_, checks) in workers.filter(|(worker, _)| worker.found) {
        let WorkerChecks { url, checks, .. } = checks;
        for check in checks {
            reduce(check, url);
        }
    }
    report
}

fn reduce(check: &mut CheckResult, url: &str) {
    let (message, is_problem) = match check.status {
        CheckStatus::Ok => ("correct", false),
        CheckStatus::Skip => ("not made", false),
        CheckStatus::Warn => ("works, but deserves attention", true),
        CheckStatus::Fail => ("failed", true),
    };
    check.message = message.to_owned();
    check.fix = is_problem
        .then(|| format!("run `warmroute doctor -w {url}` on a machine that may connect to it"));
    check.found = None;
    check.expected = None;
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
            id: (*id).into(),
            status,
            found: None,
            expected: None,
            message,
            fix,
        }
    };
    report(ROUTER_CHECKS.iter().map(check).collect(), Vec::new())
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
