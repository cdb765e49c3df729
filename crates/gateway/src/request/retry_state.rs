//! The attempts of one request, and whether another follows.

use dialect::ApiError;
use fleet::{FailureKind, ModelView};
use kv_blocks::{Moment, WorkerId};
use routing::{Pin, receipt::AttemptClass};

use super::{
    attempt_failure::{AttemptFailure, FinalError},
    queue_wait::{QueueStage, WaitRecord},
    retry_step::{FailedStep, PermitUse, RetryStep, UntriedWorkers},
};
use crate::retry::{Retries, RetryPermit};

/// Most attempts of one request that may end with a local failure: the fault affects every worker
/// alike.
const LOCAL_ATTEMPTS: u32 = 3;

/// The attempts of one request.
#[derive(Debug, Default)]
pub(super) struct RetryState {
    /// Workers that failed the request, with all their ranks: a failure is the process's, not the
    /// rank's.
    pub(super) excluded: Vec<Pin>,
    /// Attempts that sent something.
    sends: u32,
    /// Retries at a worker that had failed the request.
    again_there: u32,
    /// Attempts that failed for a reason local to this process.
    local: u32,
    /// When the first attempt failed.
    failed_at: Option<Moment>,
    /// No untried worker is left: the request waits like one that found no worker at all.
    pub(super) waits_for_anybody: bool,
    /// The retry permit, held while the retry that needed it runs.
    permit: Option<RetryPermit>,
    pub(super) last: Option<AttemptFailure>,
}

impl RetryState {
    /// Returns the client's reply when no further attempt follows: the last failure's, else
    /// `error`.
    pub(super) fn final_error(&mut self, error: ApiError) -> FinalError {
        self.last
            .take()
            .map_or(FinalError::Error(error), |failure| failure.reply)
    }

    /// Records a failed hedge.
    pub(super) fn record_hedge_failure(&mut self, other: Pin) {
        self.excluded.push(other);
        self.sends += 1;
    }

    /// Called when the workers that were left at the failure are gone by now. Returns whether the
    /// request waits like one that found no worker at all.
    pub(super) fn may_wait_for_worker(&mut self, queue: &QueueStage) -> bool {
        let class = self.last.as_ref().and_then(|failure| failure.class);
        let nothing_came = matches!(class, Some(AttemptClass::C0 | AttemptClass::C1));
        let now = queue.clock.now();
        let in_time = self
            .failed_at
            .is_some_and(|failed_at| now.since(failed_at) < queue.limits.engine_wait_timeout);
        if self.waits_for_anybody || !nothing_came || !in_time {
            return false;
        }
        self.waits_for_anybody = true;
        self.excluded.clear();
        true
    }

    /// Returns whether another attempt follows, after the pause that it needs. [`crate::retry`] has
    /// the rules.
    pub(super) async fn next_attempt(
        &mut self,
        stage: RetryStage<'_>,
        failed: FailedAttempt,
        wait: &mut WaitRecord,
    ) -> bool {
        let RetryStage { retries, queue, .. } = stage;
        let (worker, pinned, class) = (failed.worker, failed.pinned, failed.failure.class);
        let failed_at = *self.failed_at.get_or_insert(queue.clock.now());
        (self.permit, self.waits_for_anybody) = (None, false);
        let AttemptFailure { status, kind, .. } = *self.keep_for_client(failed.failure);
        let Some(class) = class else { return false };
        if kind == Some(FailureKind::Local) {
            self.local += 1;
            return self.local < LOCAL_ATTEMPTS
                && stage.pause(self.local - 1, wait.deadline()).await;
        }
        if class != AttemptClass::C0 {
            self.sends += 1;
            if self.sends >= retries.rules.max_attempts.get() {
                return false;
            }
        }
        self.excluded.push(Pin { worker, rank: None });
        let may_wait = queue.clock.now().since(failed_at) < queue.limits.engine_wait_timeout;
        let failed = FailedStep {
            class,
            status,
            pinned,
            untried: self.untried(stage),
            only_worker: stage.workers().all(|other| other == worker),
            may_wait,
        };
        match failed.next() {
            RetryStep::GiveUp => false,
            RetryStep::Elsewhere(PermitUse::Free) => true,
            RetryStep::Elsewhere(_) => {
                self.permit = retries.permit();
                self.permit.is_some()
            }
            RetryStep::WaitForWorker => {
                self.waits_for_anybody = true;
                self.excluded.clear();
                true
            }
            RetryStep::Again(permit) => {
                let repeats = self.prepare_repeat(stage, permit, wait).await;
                if repeats {
                    // Meanwhile the worker may turn out to be gone.
                    self.waits_for_anybody = may_wait;
                    self.excluded.clear();
                }
                repeats
            }
        }
    }

    /// Keeps the failure that the client gets if no further attempt follows: of several 503s the
    /// one with the longest `Retry-After`.
    fn keep_for_client(&mut self, failure: AttemptFailure) -> &AttemptFailure {
        let longest = self.last.take().filter(|before| {
            before.status == failure.status && before.retry_after() > failure.retry_after()
        });
        self.last.insert(longest.unwrap_or(failure))
    }

    /// Gets the permit of a retry at a worker that has failed the request, and pauses before it.
    async fn prepare_repeat(
        &mut self,
        stage: RetryStage<'_>,
        permit: PermitUse,
        wait: &mut WaitRecord,
    ) -> bool {
        let RetryStage {
            retries,
            queue,
            model,
        } = stage;
        self.permit = retries.permit();
        if self.permit.is_none() {
            if permit != PermitUse::WaitedFor {
                return false;
            }
            match queue.wait_until_retriable(retries, &model.id, wait).await {
                Ok(permit) => self.permit = permit,
                Err(_) => return false,
            }
        }
        self.again_there += 1;
        stage.pause(self.again_there - 1, wait.deadline()).await
    }

    fn untried(&self, stage: RetryStage<'_>) -> UntriedWorkers {
        let tried = |worker| self.excluded.iter().any(|pin| pin.worker == worker);
        let mut untried = stage.workers().filter(|worker| !tried(*worker)).peekable();
        if untried.peek().is_none() {
            UntriedWorkers::None
        } else if untried.any(|worker| !stage.queue.fleet.failed_lately(worker)) {
            UntriedWorkers::SomeHealthy
        } else {
            UntriedWorkers::AllFailedLately
        }
    }
}

/// The parts that decide about a retry.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryStage<'a> {
    pub(super) retries: &'a Retries,
    pub(super) queue: &'a QueueStage,
    pub(super) model: &'a ModelView,
}

/// An attempt that failed.
#[derive(Debug)]
pub(super) struct FailedAttempt {
    pub(super) worker: WorkerId,
    /// Whether the request names this worker.
    pub(super) pinned: bool,
    pub(super) failure: AttemptFailure,
}

impl RetryStage<'_> {
    /// Returns the model's workers, one item for each rank.
    fn workers(&self) -> impl Iterator<Item = WorkerId> {
        self.model
            .candidates
            .iter()
            .map(|candidate| candidate.target.worker)
    }

    /// Waits before retry `n` (from 0) at the worker that failed; `false`: the time left is too
    /// short.
    async fn pause(self, n: u32, deadline: Moment) -> bool {
        let pause = self.retries.delay(n);
        if self.queue.clock.now() + pause >= deadline {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }
}

#[cfg(test)]
mod tests;
