//! What was tried for one request, and whether it is tried again.

use fleet::ModelView;
use kv_blocks::{Moment, WorkerId};
use routing::{Pin, receipt::AttemptClass};

use super::dispatch::Failure;
use crate::{Gateway, retry::RetryPermit};

/// What was tried for one request.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// Workers that failed it, all their ranks with them: what failed is a process, not a rank.
    pub(super) excluded: Vec<Pin>,
    /// Attempts that sent something.
    sends: u32,
    /// Times the only worker was tried again.
    again_there: u32,
    /// When the first attempt failed.
    failed_at: Option<Moment>,
    /// Nobody was left who could have taken it: it waits as one that found nobody in the first place.
    pub(super) waits_for_anybody: bool,
    /// Room in the budget, held while the retry that needed it runs.
    permit: Option<RetryPermit>,
    pub(super) last: Option<Failure>,
}

impl Tries {
    /// This one was asked beside, and failed too.
    pub(super) fn also(&mut self, other: Pin) {
        self.excluded.push(other);
        self.sends += 1;
    }

    /// Others could have taken it when it failed, and are gone by now: whether it waits as one that found nobody.
    pub(super) fn waits_after_all(&mut self, gateway: &Gateway) -> bool {
        let class = self.last.as_ref().and_then(|failure| failure.class);
        let nothing_came = matches!(class, Some(AttemptClass::C0 | AttemptClass::C1));
        let now = gateway.clock.now();
        let in_time = self.failed_at.is_some_and(|failed_at| now.since(failed_at) < gateway.lobby.rules().nobody);
        if self.waits_for_anybody || !nothing_came || !in_time {
            return false;
        }
        self.waits_for_anybody = true;
        self.excluded.clear();
        true
    }

    /// Whether another attempt may follow, after the pause that it needs. The rule is the table in [`crate::retry`].
    pub(super) async fn again(
        &mut self,
        gateway: &Gateway,
        model: &ModelView,
        worker: WorkerId,
        pinned: bool,
        failure: Failure,
        deadline: Moment,
    ) -> bool {
        let class = failure.class;
        let failed_at = *self.failed_at.get_or_insert(gateway.clock.now());
        (self.permit, self.waits_for_anybody) = (None, false);
        // Of several 503s the longest wait is what the client is told.
        let failure = match self.last.take() {
            Some(before) if before.retry_after() > failure.retry_after() && before.status == failure.status => before,
            _ => failure,
        };
        let status = failure.status;
        self.last = Some(failure);
        let Some(class) = class else { return false };
        if class != AttemptClass::C0 {
            self.sends += 1;
            if self.sends >= gateway.rules.retry.sends {
                return false;
            }
        }
        self.excluded.push(Pin { worker, rank: None });
        let workers = || model.candidates.iter().map(|candidate| candidate.target.worker);
        if !pinned && workers().any(|worker| !self.excluded.iter().any(|tried| tried.worker == worker)) {
            if class == AttemptClass::C2 {
                self.permit = gateway.retry_permit();
                return self.permit.is_some();
            }
            return true;
        }
        // What was not even sent is as if it came now: also to wait, where that is allowed, for whoever comes (back).
        let may_wait = gateway.clock.now().since(failed_at) < gateway.lobby.rules().nobody;
        if class == AttemptClass::C0 && may_wait {
            self.waits_for_anybody = true;
            self.excluded.clear();
            return true;
        }
        let alone = pinned || workers().all(|other| other == worker);
        if !alone || !(class == AttemptClass::C1 || status == Some(503)) {
            return false;
        }
        self.permit = gateway.retry_permit();
        if self.permit.is_none() {
            return false;
        }
        let pause = gateway.rules.retry.delay(self.again_there, gateway.ids.draw());
        self.again_there += 1;
        if gateway.clock.now() + pause >= deadline {
            return false;
        }
        tokio::time::sleep(pause).await;
        // By now it may be known that it is gone.
        self.waits_for_anybody = may_wait;
        self.excluded.clear();
        true
    }
}
