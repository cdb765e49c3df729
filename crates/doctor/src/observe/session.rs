//! One probed worker, and the limits of its further observation.

use fleet::WorkerProbe;
use net::{Clock, Destinations};

use super::Budget;

/// A probed worker, and the time left to observe it.
#[derive(Clone, Copy)]
pub(crate) struct ProbeSession<'a> {
    pub(crate) worker_probe: &'a WorkerProbe,
    /// Addresses at which its sockets of events may be.
    pub(crate) destinations: &'a Destinations,
    pub(crate) budget: Budget,
    pub(crate) clock: Clock,
}
