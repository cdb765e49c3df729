//! What is observed, and how.

use config::Settings;
use fleet::WorkerProber;
use kv_blocks::WorkerId;

use crate::ProbeMode;

/// The worker to observe, and how.
#[derive(Clone, Copy)]
pub(crate) struct ObservationRequest<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) worker: &'a config::WorkerEntry,
    pub(crate) id: WorkerId,
    pub(crate) prober: &'a WorkerProber,
    pub(crate) probe: ProbeMode,
}
