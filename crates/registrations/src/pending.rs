//! A change of one worker that this router still has to write.

use kv_blocks::Moment;

use crate::{Registration, SharedWorker};

/// The change of a key, until the bucket shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PendingChange {
    pub(crate) kind: PendingKind,
    /// Names it among this router's changes.
    pub(crate) number: u64,
    /// When it was written over the present connection, for the revision last seen.
    pub(crate) sent_at: Option<Moment>,
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
    pub(crate) registration: Option<CallField<Option<Registration>>>,
    pub(crate) drained: Option<CallField<bool>>,
}

/// What a call has set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallField<T> {
    pub(crate) value: T,
    /// The number of the change that set it.
    number: u64,
}

impl<T> CallField<T> {
    pub(crate) fn new(value: T, number: u64) -> Self {
        Self { value, number }
    }
}

impl WorkerCall {
    /// Returns the call that sets the registration.
    pub(crate) fn register(registration: Registration, number: u64) -> Self {
        Self {
            registration: Some(CallField::new(Some(registration), number)),
            drained: None,
        }
    }

    /// Returns the call that drains or resumes.
    pub(crate) fn drain(drained: bool, number: u64) -> Self {
        Self {
            registration: None,
            drained: Some(CallField::new(drained, number)),
        }
    }

    /// Returns the call that sets everything.
    pub(crate) fn set(worker: SharedWorker, number: u64) -> Self {
        Self {
            registration: Some(CallField::new(worker.registration, number)),
            drained: Some(CallField::new(worker.drained, number)),
        }
    }

    /// Adds a later call.
    pub(crate) fn merge(&mut self, later: Self) {
        self.registration = later.registration.or(self.registration.take());
        self.drained = later.drained.or(self.drained.take());
    }

    /// Returns what this change and earlier ones did not set; `None`: nothing.
    fn after(mut self, number: u64) -> Option<Self> {
        self.registration.take_if(|field| field.number <= number);
        self.drained.take_if(|field| field.number <= number);
        (self.registration.is_some() || self.drained.is_some()).then_some(self)
    }

    /// Returns the worker after the call.
    pub(crate) fn on(&self, before: &SharedWorker) -> SharedWorker {
        let registration = self.registration.as_ref().map(|field| &field.value);
        let drained = self.drained.as_ref().map(|field| field.value);
        SharedWorker {
            registration: registration.unwrap_or(&before.registration).clone(),
            drained: drained.unwrap_or(before.drained),
        }
    }
}

impl PendingChange {
    /// Returns what is still to be written when the bucket has a new value; `own`: the number of
    /// this router's change that is in it.
    pub(crate) fn after_value(self, own: Option<u64>) -> Option<Self> {
        let PendingKind::Call(call) = self.kind else {
            return None;
        };
        // What the bucket has shown may have been changed by others since: it is not written again.
        let rest = match own {
            Some(number) => call.after(number)?,
            None => call,
        };
        Some(Self {
            kind: PendingKind::Call(rest),
            number: self.number,
            sent_at: None,
        })
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

    /// Returns whether it sets the registration, or renews it.
    pub(crate) fn sets_registration(&self) -> bool {
        match self {
            Self::Call(call) => call.registration.is_some(),
            Self::Restore(_) => true,
            Self::Expiry => false,
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
