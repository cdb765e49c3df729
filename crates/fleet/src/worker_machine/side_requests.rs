//! When a ready worker is queried for its load and for facts that are still missing.

use std::time::Duration;

use kv_blocks::Moment;

use super::{
    event::{IdentityReport, IdentitySource, LoadFigures, LoadReport, SideRequest},
    salt_probes::SaltProbes,
};

/// Interval between reads of an engine's own load: a busy threshold uses figures that are at most
/// 10 s old, however long a read takes.
const READ_LOAD_EVERY: Duration = Duration::from_secs(5);
/// Consecutive failed reads of the load before the last figures are discarded.
const STALE_READS: u32 = 2;
/// Pause before unanswered requests to a ready worker are repeated.
const IDENTIFY_AGAIN: Duration = Duration::from_secs(10);

/// The side requests of one worker, one at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SideRequests {
    running: bool,
    /// Whether engines of its kind report their load.
    reports_load: bool,
    /// Whether its load is known.
    has_load: bool,
    last_load_read: Moment,
    /// Consecutive failed reads of the load.
    failed_load_reads: u32,
    /// When unanswered requests for facts are repeated.
    identity_due: Option<Moment>,
    pub(super) salt_probes: SaltProbes,
}

impl SideRequests {
    pub(super) fn new(probes_salts: bool) -> Self {
        Self {
            salt_probes: SaltProbes::new(probes_salts),
            ..Self::default()
        }
    }

    /// Returns when the next side request to a ready worker is due; `None`: never, or one runs.
    pub(super) fn due(&self) -> Option<Moment> {
        if self.running {
            return None;
        }
        [self.identity_due, self.salt_probes.due(), self.load_due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn load_due(&self) -> Option<Moment> {
        let has_load_source = self.reports_load || self.has_load || self.failed_load_reads > 0;
        has_load_source.then(|| self.last_load_read + READ_LOAD_EVERY)
    }

    /// Begins the side request that is due.
    pub(super) fn begin(&mut self, now: Moment) -> SideRequest {
        self.running = true;
        let is_due = |due: Option<Moment>| due.is_some_and(|due| due <= now);
        if is_due(self.identity_due) {
            self.identity_due = None;
            SideRequest::Identity
        } else if is_due(self.salt_probes.due()) {
            self.salt_probes.begin();
            SideRequest::SaltProbe
        } else {
            self.last_load_read = now;
            SideRequest::Load
        }
    }

    /// Ends the running side request; returns whether there was one.
    pub(super) fn end(&mut self) -> bool {
        std::mem::take(&mut self.running)
    }

    /// Records an identity. Facts that are missing after a check are requested as soon as the
    /// worker is in use: the short time limit of the check only served a quick return.
    pub(super) fn record_identity(&mut self, now: Moment, report: IdentityReport) {
        self.reports_load = report.reports_load;
        if let Some(figures) = report.load {
            self.record_load(figures);
            self.last_load_read = now;
        }
        self.identity_due = match report.source {
            _ if report.complete => None,
            IdentitySource::Check => Some(now),
            IdentitySource::SideRequest => Some(now + IDENTIFY_AGAIN),
        };
    }

    /// Records that the request for missing facts failed. Only checks decide about the health.
    pub(super) fn record_failed_identity(&mut self, now: Moment) {
        self.identity_due = Some(now + IDENTIFY_AGAIN);
    }

    /// Records a read of the load. Returns whether the known figures are outdated.
    pub(super) fn record_read(&mut self, report: LoadReport) -> bool {
        match report {
            LoadReport::Read(figures) => {
                self.record_load(figures);
                false
            }
            LoadReport::Failed => {
                self.failed_load_reads = self.failed_load_reads.saturating_add(1);
                self.failed_load_reads >= STALE_READS && std::mem::take(&mut self.has_load)
            }
        }
    }

    fn record_load(&mut self, figures: LoadFigures) {
        self.failed_load_reads = 0;
        self.has_load = figures == LoadFigures::Present;
    }
}
