//! Whether a worker gets new requests, as operators and the configuration decide.

use kv_blocks::Moment;

/// Admission of new requests to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerAdmission {
    /// Open, while the worker is healthy.
    Open,
    /// Open while no other worker is ready in its place, and until this moment at most: it is no
    /// longer configured.
    UntilReplaced(Moment),
    /// Closed: it finishes running requests.
    Closed,
}

impl WorkerAdmission {
    /// Begins the removal from the configuration; an earlier limit or a drain stays.
    pub(super) fn begin_removal(&mut self, until: Moment) {
        if *self == Self::Open {
            *self = Self::UntilReplaced(until);
        }
    }
}
