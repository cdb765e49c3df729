//! Requests that enter the router's queue, and changes of what they wait for.

use std::sync::Arc;

use kv_blocks::{Moment, Target};

use crate::{
    Candidate, ExcludeReason, ExcludedTarget, Job, QueueLimit, Router, Ticket, WaitReason,
    queue::{
        CandidateSet, OrderTerms, QueueEntry, QueuedJob, RequestWork, TargetAvailability,
        TtftNeeds, WaitTerms, fingerprint, shared,
    },
    state::RouterState,
};

impl Router {
    /// Puts a job into the queue, if a limit does not keep it out.
    pub(crate) fn enqueue(
        &self,
        now: Moment,
        job: &Job<'_>,
        terms: WaitTerms,
    ) -> Result<Ticket, QueueLimit> {
        let settings = self.settings.load();
        let room = terms.room.as_ref();
        let prefill_ms = room.map_or(terms.work.prefill_ms, |room| room.shortage.prefill_ms);
        let longest = settings
            .section
            .longest_room_wait(job.time_left, prefill_ms);
        let room_until = now + longest;
        let until = if terms.room.is_some() {
            room_until
        } else {
            now + terms.budget.limit
        };
        let order_terms = OrderTerms {
            priority: job.overrides.priority,
            // Known when the request has its place in the queue.
            program_start_ms: 0.0,
            since: now - terms.budget.waited,
            until,
            uncached_ms: terms.work.prefill_ms,
            target: job.target_terms(now, &settings, terms.needs),
        };
        let entrant = QueueEntry {
            job: self.queued_job(job),
            terms: order_terms,
            work: terms.work,
            minds_backlog: terms.minds_backlog,
            caller_bytes: terms.budget.bytes,
            winner: terms.winner,
            room: terms.room,
            room_until,
        };
        let state = &mut *self.state.lock();
        state.queue.push(
            now,
            &settings.queue,
            TargetAvailability::new(&state.ledger, &settings.queue),
            entrant,
        )
    }

    /// Returns a job that outlives its caller. Its lists are shared with other queued requests, or
    /// copied, outside the lock.
    fn queued_job(&self, job: &Job<'_>) -> QueuedJob {
        let set = match job.pin {
            None => self.candidate_set(job.targets.candidates, job.targets.excluded),
            Some(pin) => {
                let allowed = |candidate: &&Candidate| pin.allows(candidate.target);
                let all = job.targets.candidates.iter();
                let candidates: Vec<Candidate> = all.clone().filter(allowed).cloned().collect();
                let others = all.filter(|candidate| !allowed(candidate));
                let excluded: Vec<ExcludedTarget> = job
                    .targets
                    .excluded
                    .iter()
                    .cloned()
                    .chain(others.map(|other| ExcludedTarget::of(other, ExcludeReason::NotPinned)))
                    .collect();
                self.candidate_set(&candidates, &excluded)
            }
        };
        let pool = job
            .prefill
            .map(|pool| self.candidate_set(pool.targets.candidates, pool.targets.excluded));
        QueuedJob::new(job, set, pool)
    }

    fn candidate_set(
        &self,
        candidates: &[Candidate],
        excluded: &[ExcludedTarget],
    ) -> Arc<CandidateSet> {
        let hasher = self.state.lock().queue.hasher();
        let fingerprint = fingerprint(&hasher, candidates, excluded);
        let alike = self.state.lock().queue.alike(fingerprint);
        shared(fingerprint, alike, candidates, excluded)
    }

    /// Queues a job that no target can take now, until [`Router::replace_candidates`] gives it one
    /// that can, or it is cancelled.
    ///
    /// # Errors
    ///
    /// The limit that keeps it out of the queue; a job that may not wait has no place there either.
    pub fn enqueue_without_target(&self, now: Moment, job: &Job<'_>) -> Result<Ticket, QueueLimit> {
        let minds_backlog = self.waits_for_backlog(job, self.policy(job.targets.policy));
        let terms = WaitTerms {
            budget: job.wait_budget.ok_or(QueueLimit::Router)?,
            minds_backlog,
            winner: None,
            work: RequestWork::default(),
            needs: TtftNeeds::default(),
            room: None,
        };
        self.enqueue(now, job, terms)
    }

    /// Replaces the candidates of a queued request by those of `job`: it keeps its position and is due
    /// as `job` says. `false`: it is no longer queued.
    pub fn replace_candidates(&self, now: Moment, ticket: Ticket, job: &Job<'_>) -> bool {
        let until = now
            + job
                .wait_budget
                .map_or_else(Default::default, |budget| budget.limit);
        let minds_backlog = self.waits_for_backlog(job, self.policy(job.targets.policy));
        let queued = self.queued_job(job);
        let waiting = self.settings.load().queue;
        let state = &mut *self.state.lock();
        state.queue.replace(
            now,
            TargetAvailability::new(&state.ledger, &waiting),
            ticket,
            (queued, until, minds_backlog),
        )
    }

    /// Returns why a request waits; `None`: it is not queued.
    pub fn wait_reason(&self, ticket: Ticket) -> Option<WaitReason> {
        let state = self.state.lock();
        let request = state.queue.get(ticket)?;
        let job = &request.job;
        let is_above = |target: &Target| {
            job.busy_threshold
                .is_some_and(|threshold| state.ledger.is_above(*target, threshold))
        };
        Some(match job.pool.set.targets.iter().all(is_above) {
            _ if job.pool.set.targets.is_empty() => WaitReason::NoWorker,
            true => WaitReason::Busy,
            false if request.waits_for_room => WaitReason::Room,
            false => WaitReason::Backlog,
        })
    }

    /// Records the share of its cache in use that the engine of `target` reports. Requests sent
    /// there and ended there count from now on, until the next figure.
    pub fn observe_usage(
        &self,
        target: Target,
        now: Moment,
        ratio: f64,
        total_blocks: Option<u32>,
    ) {
        let waiting = self.settings.load().queue;
        let RouterState { queue, ledger, .. } = &mut *self.state.lock();
        if ledger.observe_usage(target, ratio, total_blocks) {
            queue.usage_changed(now, target, TargetAvailability::new(ledger, &waiting));
        }
    }
}
