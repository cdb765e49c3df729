//! One worker in the table.

use std::time::Duration;

use kv_blocks::Moment;

use crate::{
    Refusal, Registration, SharedWorker, WorkerChange,
    pending::{PendingChange, PendingKind, WorkerCall},
    shared_worker::is_same,
    table::KeyWrite,
    value::WorkerValue,
};

/// Time after which a write that the bucket does not show counts as lost.
const LONGEST_WRITE: Duration = Duration::from_secs(10);

/// A value of the bucket with its revision.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenValue {
    pub(super) revision: u64,
    pub(super) worker: SharedWorker,
    /// The number of registrations and renewals so far.
    pub(super) renewal: u64,
}

/// A registration that this router cannot use.
#[derive(Clone, Debug)]
struct RefusedRegistration {
    registration: Option<Registration>,
    reason: Refusal,
    /// Whether it is to be tried again.
    retry: bool,
}

/// One worker: what the bucket has, what is to be written, and what this router has.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    pub(super) name: String,
    /// The value last seen; `None`: the key has none.
    pub(super) seen: Option<SeenValue>,
    pub(super) pending: Option<PendingChange>,
    /// What this router's own list of workers has.
    pub(super) present: SharedWorker,
    /// End of the lease, as this router counts.
    pub(super) until: Option<Moment>,
    /// Whether the key was reported since the bucket is being read.
    pub(super) is_reported: bool,
    /// Whether the bucket may have more of this router's changes than it has shown.
    pub(super) has_unseen_write: bool,
    refused: Option<RefusedRegistration>,
}

impl Record {
    fn seen_worker(&self) -> SharedWorker {
        let seen = self.seen.as_ref();
        seen.map(|seen| seen.worker.clone()).unwrap_or_default()
    }

    /// Returns what this router goes by.
    pub(super) fn in_force(&self) -> SharedWorker {
        let seen = self.seen_worker();
        match &self.pending {
            Some(pending) => pending.kind.in_force(&seen),
            None => seen,
        }
    }

    /// Adds a call of this router's admin API, which has changed this router already.
    pub(super) fn call(&mut self, call: WorkerCall, number: u64) {
        let mut merged = match self.pending.take() {
            Some(pending) => match pending.kind {
                PendingKind::Call(earlier) => earlier,
                PendingKind::Restore(worker) => WorkerCall::set(worker, pending.number),
                PendingKind::Expiry => WorkerCall::default(),
            },
            None => WorkerCall::default(),
        };
        merged.merge(call);
        self.set_pending(PendingKind::Call(merged), number);
        self.present = self.in_force();
        self.refused = None;
    }

    pub(super) fn set_pending(&mut self, kind: PendingKind, number: u64) {
        self.pending = Some(PendingChange {
            kind,
            number,
            sent_at: None,
        });
    }

    /// Starts the lease anew.
    pub(super) fn begin_lease(&mut self, now: Moment) {
        self.until = self.in_force().lease().map(|lease| now + lease);
    }

    pub(super) fn is_over(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Returns whether the bucket does not show a change that was written long ago.
    pub(super) fn is_overdue(&self, now: Moment) -> bool {
        let sent_at = self.pending.as_ref().and_then(|pending| pending.sent_at);
        sent_at.is_some_and(|sent_at| sent_at + LONGEST_WRITE <= now)
    }

    /// Takes a value that the bucket has now.
    pub(super) fn observe(&mut self, now: Moment, value: WorkerValue, seen: (u64, &str)) {
        let (revision, replica) = seen;
        let is_renewed = !self.is_reported
            || self.seen.as_ref().is_none_or(|seen| {
                seen.renewal != value.renewal
                    || seen.worker.registration != value.worker.registration
            });
        self.is_reported = true;
        self.has_unseen_write = false;
        self.name = value.name;
        self.seen = Some(SeenValue {
            revision,
            worker: value.worker,
            renewal: value.renewal,
        });
        let own = (value.writer == replica).then_some(value.change);
        let pending = self.pending.take();
        self.pending = pending.and_then(|pending| pending.after_value(own));
        // A drain is no renewal.
        if is_renewed {
            self.begin_lease(now);
        }
    }

    /// Takes the deletion of the key.
    pub(super) fn observe_deletion(&mut self) {
        self.is_reported = true;
        self.has_unseen_write = false;
        let was_registered = self.seen_worker().registration.is_some();
        self.seen = None;
        if let Some(mut pending) = self.pending.take() {
            let remains = match &pending.kind {
                // A drain ends with its worker.
                PendingKind::Call(call) => match &call.registration {
                    None => !was_registered,
                    Some(registration) => registration.value.is_some(),
                },
                PendingKind::Restore(_) | PendingKind::Expiry => false,
            };
            if remains {
                pending.sent_at = None;
                self.pending = Some(pending);
            }
        }
        if self.pending.is_none() {
            self.until = None;
        }
    }

    /// Takes note that the bucket has neither a value nor a deletion of the key: it is another
    /// bucket than before.
    pub(super) fn observe_absence(&mut self, number: u64) {
        self.has_unseen_write = false;
        let Some(SeenValue { worker, .. }) = self.seen.take() else {
            return;
        };
        match self.pending.take().map(|pending| pending.kind) {
            None if worker.is_empty() => {}
            None => self.set_pending(PendingKind::Restore(worker), number),
            Some(PendingKind::Call(call)) => {
                let call = WorkerCall::set(call.on(&worker), number);
                self.set_pending(PendingKind::Call(call), number);
            }
            Some(PendingKind::Restore(_) | PendingKind::Expiry) => {}
        }
    }

    /// Ends a lease whose time is up, where this router can.
    pub(super) fn end_lease(&mut self, number: u64, is_current: bool) {
        match &self.pending {
            // Nobody but this router knows the worker.
            Some(pending) if self.seen.is_none() && pending.sent_at.is_none() => {
                self.pending = None;
                self.until = None;
            }
            Some(_) => {}
            // While the bucket is away, the worker may renew its lease at another router.
            None if is_current => self.set_pending(PendingKind::Expiry, number),
            None => {}
        }
    }

    /// Returns the write that the pending change needs now. The change ends if it needs none.
    pub(super) fn write(&mut self, now: Moment, key: &str, replica: &str) -> Option<KeyWrite> {
        let before = self.seen_worker();
        let seen = self.seen.as_ref().map(|seen| (seen.revision, seen.renewal));
        let pending = self.pending.as_mut().filter(|it| it.sent_at.is_none())?;
        let worker = pending.kind.written(&before);
        let sets_registration = pending.kind.sets_registration();
        let is_call = matches!(pending.kind, PendingKind::Call(_));
        let renews = is_call && sets_registration && worker.lease().is_some();
        // What is unseen may differ from `before`, as after a drain and a resume at once.
        if worker == before && !renews && !self.has_unseen_write {
            self.pending = None;
            return None;
        }
        pending.sent_at = Some(now);
        self.has_unseen_write = true;
        let key = key.to_owned();
        let (revision, renewal) = seen.unzip();
        Some(match revision {
            Some(revision) if worker.is_empty() => KeyWrite::Delete { key, revision },
            // There is nothing to delete until the bucket shows what is on its way.
            None if worker.is_empty() => return None,
            _ => KeyWrite::Put {
                key,
                revision,
                value: WorkerValue {
                    name: self.name.clone(),
                    worker,
                    // The number comes from outside, so it may be any.
                    renewal: renewal
                        .unwrap_or_default()
                        .wrapping_add(u64::from(sets_registration)),
                    writer: replica.to_owned(),
                    change: pending.number,
                }
                .encode(),
            },
        })
    }

    /// Returns what this router has to change, if anything.
    pub(super) fn change(&self, key: &str) -> Option<WorkerChange> {
        let wanted = self.in_force();
        let registration = wanted.registration.as_ref();
        let is_refused = self.refused.as_ref().is_some_and(|refused| {
            !refused.retry && is_same(refused.registration.as_ref(), registration)
        });
        let differs = !is_same(registration, self.present.registration.as_ref()) && !is_refused;
        let drain_differs = wanted.drained != self.present.drained;
        (differs || drain_differs).then(|| WorkerChange {
            key: key.to_owned(),
            name: self.name.clone(),
            is_new_registration: differs,
            was_drained: self.present.drained,
            wanted,
        })
    }

    /// Records what this router made of a change; returns whether a refusal is a new one.
    pub(super) fn applied(&mut self, change: WorkerChange, outcome: Result<(), Refusal>) -> bool {
        self.present.drained = change.wanted.drained;
        if !change.is_new_registration {
            return false;
        }
        match outcome {
            Ok(()) => {
                self.present.registration = change.wanted.registration;
                self.refused = None;
                false
            }
            Err(reason) => {
                let known = self.refused.replace(RefusedRegistration {
                    registration: change.wanted.registration,
                    reason,
                    retry: false,
                });
                known.is_none_or(|known| !known.retry || known.reason != reason)
            }
        }
    }

    /// Has a registration or removal tried again whose refusal may be over; returns whether there
    /// is one.
    pub(super) fn retry_refused(&mut self) -> bool {
        let wanted = self.in_force().registration;
        if is_same(wanted.as_ref(), self.present.registration.as_ref()) {
            // The refused change was taken back.
            self.refused = None;
        }
        let Some(refused) = &mut self.refused else {
            return false;
        };
        // An address stays forbidden; what else is wrong may be corrected in this router's file.
        refused.retry = refused.reason != Refusal::Forbidden;
        refused.retry
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Returns whether there is nothing to remember.
    pub(super) fn is_idle(&self) -> bool {
        self.seen.is_none() && self.pending.is_none() && self.present.is_empty()
    }
}
