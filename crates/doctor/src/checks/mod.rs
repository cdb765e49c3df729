//! Turns observations into check results. Pure: no worker is queried here.
//!
//! Checks run in the order of their dependencies; a check whose precondition failed is skipped, so
//! that one wrong setting is named once.

#[cfg(feature = "nats")]
mod bus;
mod cache;
mod connection;
mod endpoint;
mod events;
mod events_enabled;
mod finding;
mod flags;
mod fleet_wide;
mod prompt;
mod ranks;
mod replay;
mod replicas;
mod router;
mod stream;
mod template;
mod token_difference;

#[cfg(test)]
pub(crate) mod fixture;

use api::{CheckResult, WorkerChecks};
use config::{EventSource, Settings};

use crate::{
    observe::WorkerObservation,
    report::{WORKER_CHECKS, none_failed},
};

pub(crate) use finding::{Finding, Findings};
pub(crate) use router::router;

/// One worker, as configured and as observed.
#[derive(Clone, Copy)]
pub(crate) struct CheckSubject<'a> {
    /// Index of the worker in the configuration.
    pub(crate) at: usize,
    pub(crate) settings: &'a Settings,
    pub(crate) worker: &'a config::WorkerEntry,
    pub(crate) seen: &'a WorkerObservation,
}

impl CheckSubject<'_> {
    /// Returns the path of a key of this worker, as a fix names it.
    pub(crate) fn key(&self, key: &str) -> String {
        format!("workers[{}].{key}", self.at)
    }

    /// Returns whether the configuration follows this worker's events.
    pub(crate) fn wants_events(&self) -> bool {
        self.settings.kv_events.enabled
            && self.settings.routing.overlap_weight != 0.0
            && self.worker.kv_events.source != EventSource::None
    }
}

/// Checks every worker; `observed` is in the order of the configuration.
pub(crate) fn workers(settings: &Settings, observed: &[WorkerObservation]) -> Vec<WorkerChecks> {
    let subjects: Vec<CheckSubject<'_>> = settings
        .workers
        .iter()
        .zip(observed)
        .enumerate()
        .map(|(at, (worker, seen))| CheckSubject {
            at,
            settings,
            worker,
            seen,
        })
        .collect();
    let mut findings: Vec<Findings> = subjects.iter().map(|subject| alone(subject)).collect();
    fleet_wide::check(&subjects, &mut findings);
    subjects
        .iter()
        .zip(findings)
        .map(|(subject, findings)| report(subject, findings))
        .collect()
}

/// Runs the checks of a worker that need no other worker.
fn alone(subject: &CheckSubject<'_>) -> Findings {
    let mut findings = Findings::default();
    if let Some(probe) = connection::check(subject, &mut findings) {
        ranks::count(subject, probe, &mut findings);
        cache::check(subject, probe, &mut findings);
        prompt::check(subject, probe, &mut findings);
        ranks::endpoints(subject, probe, &mut findings);
        events::check(subject, probe, &mut findings);
        stream::check(subject, &mut findings);
    }
    findings
}

fn report(subject: &CheckSubject<'_>, findings: Findings) -> WorkerChecks {
    let checks: Vec<CheckResult> = findings.into_checks(&WORKER_CHECKS);
    let url = subject.worker.url.clone();
    WorkerChecks {
        name: subject.worker.name.clone(),
        url,
        ok: none_failed(&checks),
        checks,
    }
}
