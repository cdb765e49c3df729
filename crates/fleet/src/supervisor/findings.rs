//! Applies the findings of checks and side requests.

use std::sync::Arc;

use tracing::warn;

use super::{AFTER_STALL, Supervisor};
use crate::{
    EngineLoad, SaltSupport, WorkerProblem,
    probe::{self, CheckPace, ProbeError, Scrape},
    worker_check::{CheckFinding, HealthyReport, WorkerChecker},
    worker_identity::{KnownFacts, WorkerIdentity},
    worker_machine::{
        CheckOutcome, CheckReport, IdentitySource, LoadFigures, LoadReport, ProcessPace,
        SideRequest, WorkerEvent,
    },
};

/// The finding of a side request.
pub(super) enum SideFinding {
    Load(Option<Scrape>),
    Identity(Result<Box<WorkerIdentity>, ProbeError>),
    Salts(Option<SaltSupport>),
}

/// Makes a side request.
pub(super) async fn side_request(
    checker: WorkerChecker,
    request: SideRequest,
    known: KnownFacts,
) -> SideFinding {
    match request {
        SideRequest::Load => {
            let config = &checker.config;
            SideFinding::Load(probe::scrape(&config.client, config.engine).await)
        }
        SideRequest::Identity => {
            let found = checker.identify_worker(&known, CheckPace::Thorough).await;
            SideFinding::Identity(found.map(Box::new))
        }
        SideRequest::SaltProbe => SideFinding::Salts(match &known.view {
            Some(view) => probe::salt_support(&checker.config.client, view).await,
            None => None,
        }),
    }
}

/// Returns whether an engine's metrics contained its load.
pub(super) fn load_figures(scrape: &Scrape) -> LoadFigures {
    if scrape.load == EngineLoad::default() {
        LoadFigures::Absent
    } else {
        LoadFigures::Present
    }
}

impl Supervisor {
    /// Applies the finding of the check.
    pub(super) async fn check_ended(&mut self, found: CheckFinding) {
        let report = match found {
            CheckFinding::ConnectFailed(failure) => CheckReport::ConnectFailed(failure),
            CheckFinding::Checked(Ok(report)) => {
                self.apply_report(report).await;
                self.completed(CheckOutcome::Passed, None)
            }
            CheckFinding::Checked(Err(error)) => self.completed(error.check, Some(error.problem)),
        };
        self.feed(WorkerEvent::CheckEnded(report)).await;
        self.worker_table.checks.send_modify(|checks| *checks += 1);
    }

    async fn apply_report(&mut self, report: HealthyReport) {
        match report {
            HealthyReport::Nothing => {}
            HealthyReport::Loras(loras) => {
                self.worker_table.change(self.id(), |entry| {
                    Arc::make_mut(&mut entry.view).served.loras = loras;
                });
            }
            HealthyReport::Identified(found) => {
                self.apply_identity(*found, IdentitySource::Check).await
            }
        }
    }

    fn completed(&self, outcome: CheckOutcome, problem: Option<WorkerProblem>) -> CheckReport {
        let process = if self.worker_table.clock.resumed_within(AFTER_STALL) {
            ProcessPace::Stalled
        } else {
            ProcessPace::Steady
        };
        CheckReport::Completed {
            outcome,
            problem,
            process,
        }
    }

    /// Logs a figure that cannot be used, once for each worker.
    pub(super) fn report_invalid(&mut self, scrape: &Scrape) {
        if let Some(invalid) = &scrape.invalid
            && !std::mem::replace(&mut self.reported_invalid, true)
        {
            warn!(
                worker = %self.checker.config.name, figure = %invalid.name, value = %invalid.value,
                "the engine reports a load that cannot be used, and it is ignored: expected a share from 0 to 1, or a number of requests"
            );
        }
    }

    /// Logs that the worker gets no requests of tenants, once for each reason.
    fn report_salt_support(&mut self) {
        let support = (self.worker_table).with(self.id(), |entry| entry.machine.salt_support());
        let support = support.unwrap_or_default();
        if support == SaltSupport::Honoured || self.reported_salts == Some(support) {
            return;
        }
        self.reported_salts = Some(support);
        warn!(
            worker = %self.checker.config.name, salt = support.as_str(),
            "it is not shown to keep the caches of tenants apart, and gets no requests while there are several tenants (tenants.isolation: strict): use an engine that honours cache_salt and reports cached tokens"
        );
    }

    /// Applies the finding of the side request.
    pub(super) async fn side_request_ended(&mut self, found: SideFinding) {
        match found {
            SideFinding::Load(Some(scrape)) => {
                let now = self.worker_table.clock.now();
                self.worker_table.record_scrape(self.id(), now, &scrape);
                self.report_invalid(&scrape);
                let report = LoadReport::Read(load_figures(&scrape));
                self.feed(WorkerEvent::LoadRead(report)).await;
            }
            SideFinding::Load(None) => self.feed(WorkerEvent::LoadRead(LoadReport::Failed)).await,
            SideFinding::Identity(Ok(found)) => {
                self.apply_identity(*found, IdentitySource::SideRequest)
                    .await
            }
            // Only the checks decide its health.
            SideFinding::Identity(Err(_)) => self.feed(WorkerEvent::IdentityFailed).await,
            SideFinding::Salts(found) => {
                self.feed(WorkerEvent::SaltProbed(found)).await;
                self.report_salt_support();
            }
        }
    }
}
