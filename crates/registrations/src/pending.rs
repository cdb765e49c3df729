//! A change of one worker that this router still has to write.

use crate::{Registration, SharedWorker};

/// The change of a key, until the bucket shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PendingChange {
    pub(crate) kind: PendingKind,
    /// Names it among this router's changes.
    pub(crate) number: u64,
    /// Whether it was written over the present connection, for the revision last seen.
    pub(crate) is_sent: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PendingKind {
    /// Somebody called this router. It is written whatever the bucket has.
    Call(WorkerCall),
    /// This router knows a worker that the bucket does not know: the bucket is new, or this router
    /// was restarted. It is written unless the bucket knows better.
    Restore(SharedWorker),
    /// The lease ended. The key is removed unless somebody renewed the lease.
    Expiry,
}

/// What calls of the admin API have changed; `None`: nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WorkerCall {
    pub(crate) registration: Option<Option<Registration>>,
    pub(crate) drained: Option<bool>,
}

impl WorkerCall {
    /// Returns the call that sets everything.
    pub(crate) fn set(worker: SharedWorker) -> Self {
        Self {
            registration: Some(worker.registration),
            drained: Some(worker.drained),
        }
    }

    /// Returns the worker after the call.
    pub(crate) fn on(&self, before: &SharedWorker) -> SharedWorker {
        let registration = self.registration.as_ref();
        SharedWorker {
            registration: registration.unwrap_or(&before.registration).clone(),
            drained: self.drained.unwrap_or(before.drained),
        }
    }
}

impl PendingKind {
    /// Returns what is to be in the bucket in place of `before`.
    pub(crate) fn written(&self, before: &SharedWorker) -> SharedWorker {
        match self {
            Self::Call(call) => call.on(before),
            Self::Restore(worker) => worker.clone(),
            Self::Expiry => SharedWorker::default(),
        }
    }

    /// Returns what this router goes by meanwhile.
    pub(crate) fn in_force(&self, before: &SharedWorker) -> SharedWorker {
        match self {
            // Until the bucket has taken it, another router may have renewed the lease.
            Self::Expiry => before.clone(),
            Self::Call(_) | Self::Restore(_) => self.written(before),
        }
    }
}
