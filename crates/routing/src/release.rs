//! The router's side of the queue: requests enter it and are released.
//!
//! Requests are released in three steps; the first and the last hold the router's lock: pick a few,
//! look up their overlaps in the index, compute their costs and bind those that can begin. Each
//! step is bounded by a [`ReleaseBudget`]; when there is more to do, [`Router::next_release`]
//! returns the time.
//!
//! [`ReleaseBudget`]: crate::queue::ReleaseBudget

use std::sync::Arc;

use kv_blocks::{Moment, Target};

use crate::{
    Candidate, ExcludedTarget, Job, Policy, ReleasedRequest, ReservationId, Router, Ticket,
    WaitReason,
    choice::Choice,
    pool_split::PoolSplit,
    queue::{
        CandidateSet, OrderKey, OrderTerms, QueueEntry, QueuedJob, QueuedRequest, RELEASE_BUDGET,
        ReleaseCandidate, TargetGate, WaitTerms, fingerprint, shared,
    },
    scored_choice::{ScoredChoice, prefill_ms},
    state::RouterState,
    survey::{BlockCounting, OverlapSurvey},
};

/// A request that left the queue with its load counted.
struct BoundRequest<'a> {
    ticket: Ticket,
    request: QueuedRequest,
    placed: PlacedRequest<'a>,
}

/// A request with a target, and its load counted there.
pub(crate) struct PlacedRequest<'a> {
    pub(crate) split: PoolSplit<'a>,
    pub(crate) scored: ScoredChoice<'a>,
    pub(crate) reservation: ReservationId,
}

/// A request whose costs are being computed.
struct PricedRequest<'a> {
    pick: &'a ReleaseCandidate,
    split: PoolSplit<'a>,
    survey: OverlapSurvey<'a>,
}

impl Router {
    /// Returns whether a target's backlog delays a job: only under `warm`; jobs of the other
    /// policies bind at once. A pinned job is not delayed, and a prompt that another pool computes
    /// does not wait in the queue of the pool that generates.
    pub(crate) fn waits_for_backlog(&self, job: &Job<'_>, ruling: Policy) -> bool {
        let enabled = self.settings.load().queue.enabled;
        enabled && ruling == Policy::Warm && job.pin.is_none() && job.prefill.is_none()
    }

    /// Returns the wait terms of a job that `choice` cannot bind now: the target cannot begin it,
    /// or another request may be first there.
    pub(crate) fn wait_terms(
        &self,
        now: Moment,
        whole: &Job<'_>,
        choice: &Choice<'_>,
        state: &RouterState,
    ) -> Option<WaitTerms> {
        let patience = whole.wait_budget?;
        let minds_backlog = self.waits_for_backlog(whole, choice.ruling);
        if !minds_backlog && whole.busy_threshold.is_none() {
            return None;
        }
        let winner = choice.winner().target();
        let waits =
            (minds_backlog && self.is_backed_up(choice)) || state.queue.is_contended(winner, now);
        waits.then(|| WaitTerms {
            budget: patience,
            minds_backlog,
            winner: Some(winner),
            uncached_ms: prefill_ms(whole, choice),
        })
    }

    fn is_backed_up(&self, choice: &Choice<'_>) -> bool {
        let settings = self.settings.load();
        choice.winner().state.backlog_ms > settings.queue.longest_backlog_ms()
    }

    /// Puts a job into the queue; `None`: the queue is full.
    pub(crate) fn enqueue(&self, now: Moment, job: &Job<'_>, holding: WaitTerms) -> Option<Ticket> {
        let settings = self.settings.load();
        let terms = OrderTerms {
            priority: job.overrides.priority,
            tenant_virtual_ms: 0.0,
            since: now - holding.budget.waited,
            until: now + holding.budget.limit,
            uncached_ms: holding.uncached_ms,
        };
        let entrant = QueueEntry {
            job: self.queued_job(job),
            terms,
            minds_backlog: holding.minds_backlog,
            caller_bytes: holding.budget.bytes,
            winner: holding.winner,
        };
        let state = &mut *self.state.lock();
        state.queue.push(
            now,
            &settings.queue,
            TargetGate::new(&state.ledger, &settings.queue),
            entrant,
        )
    }

    /// Returns a job that outlives its caller. Its lists are shared with other queued requests, or
    /// copied, outside the lock.
    fn queued_job(&self, job: &Job<'_>) -> QueuedJob {
        let set = match job.pin {
            None => self.candidate_set(job.candidates, job.excluded),
            Some(pin) => {
                let allowed = |candidate: &&Candidate| pin.allows(candidate.target);
                let candidates: Vec<Candidate> =
                    job.candidates.iter().filter(allowed).cloned().collect();
                let others = job
                    .candidates
                    .iter()
                    .filter(|candidate| !allowed(candidate));
                let excluded: Vec<ExcludedTarget> = job
                    .excluded
                    .iter()
                    .cloned()
                    .chain(others.map(ExcludedTarget::not_pinned))
                    .collect();
                self.candidate_set(&candidates, &excluded)
            }
        };
        let pool = job
            .prefill
            .map(|pool| self.candidate_set(pool.candidates, pool.excluded));
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
    /// that can, or it is cancelled. `None`: the queue is full, or the job may not wait.
    pub fn enqueue_unplaced(&self, now: Moment, job: &Job<'_>) -> Option<Ticket> {
        let minds_backlog = self.waits_for_backlog(job, self.policy(job.policy));
        let holding = WaitTerms {
            budget: job.wait_budget?,
            minds_backlog,
            winner: None,
            uncached_ms: 0.0,
        };
        self.enqueue(now, job, holding)
    }

    /// Replaces the candidates of a queued request by those of `job`: it keeps its place and is due
    /// as `job` says. `false`: it is no longer queued.
    pub fn replace_candidates(&self, now: Moment, ticket: Ticket, job: &Job<'_>) -> bool {
        let until = now
            + job
                .wait_budget
                .map_or_else(Default::default, |patience| patience.limit);
        let minds_backlog = self.waits_for_backlog(job, self.policy(job.policy));
        let queued = self.queued_job(job);
        let waiting = self.settings.load().queue;
        let state = &mut *self.state.lock();
        state.queue.replace(
            now,
            TargetGate::new(&state.ledger, &waiting),
            ticket,
            (queued, until, minds_backlog),
        )
    }

    /// Returns why a request waits; `None`: it is not queued.
    pub fn wait_reason(&self, ticket: Ticket) -> Option<WaitReason> {
        let state = self.state.lock();
        let job = &state.queue.get(ticket)?.job;
        let is_above = |target: &Target| {
            job.busy_threshold
                .is_some_and(|threshold| state.ledger.is_above(*target, threshold))
        };
        Some(match job.set.targets.iter().all(is_above) {
            _ if job.set.targets.is_empty() => WaitReason::NoWorker,
            true => WaitReason::Busy,
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
            queue.usage_changed(now, target, TargetGate::new(ledger, &waiting));
        }
    }

    /// Takes some of the requests that may start now out of the queue, and counts their load.
    /// [`Router::next_release`] tells whether there are more.
    pub(crate) fn release(&self, now: Moment) -> Vec<ReleasedRequest> {
        let picks = {
            let waiting = self.settings.load().queue;
            let RouterState { queue, ledger, .. } = &mut *self.state.lock();
            if queue.next_work().is_none_or(|then| then > now) {
                return Vec::new();
            }
            queue.pick(now, TargetGate::new(ledger, &waiting), RELEASE_BUDGET)
        };
        let price = |pick| {
            let split = PoolSplit::of(&ReleaseCandidate::job(pick));
            PricedRequest {
                pick,
                split,
                survey: self.survey(now, &split.decode, BlockCounting::Counted),
            }
        };
        let priced: Vec<PricedRequest<'_>> = picks.iter().map(price).collect();
        let bound = self.bind(now, priced);
        bound
            .into_iter()
            .map(|bound| self.released_plan(now, bound))
            .collect()
    }

    /// Computes costs and binds the requests that can begin, in their order: first the overdue
    /// ones, in the order in which they were picked, then the others.
    fn bind<'a>(&self, now: Moment, priced: Vec<PricedRequest<'a>>) -> Vec<BoundRequest<'a>> {
        let mut able = Vec::with_capacity(priced.len());
        let mut bound = Vec::with_capacity(RELEASE_BUDGET.releases);
        let settings = self.settings.load();
        let state = &mut *self.state.lock();
        for priced in priced {
            let ReleaseCandidate {
                ticket,
                job,
                may_go,
            } = priced.pick;
            let known = state
                .queue
                .get(*ticket)
                .filter(|request| Arc::ptr_eq(&request.job, job));
            let Some(terms) = known.map(|request| request.terms) else {
                continue;
            };
            let ageing = settings.queue.ageing;
            let overdue = matches!(terms.key(now, ageing), OrderKey::Overdue(_));
            match self.rescore(now, state, &priced) {
                None if overdue => state.queue.cannot_be_bound(*ticket),
                None => {}
                Some(weighed) if overdue && *may_go => {
                    bound.extend(self.take_out(now, state, &priced, weighed));
                }
                Some(weighed) => {
                    let uncached_ms = prefill_ms(&priced.split.decode, &weighed.choice);
                    state.queue.refresh(*ticket, uncached_ms, &settings.queue);
                    if *may_go && self.can_begin(&priced, &weighed.choice) {
                        let terms = OrderTerms {
                            uncached_ms,
                            ..terms
                        };
                        able.push((terms.key(now, ageing), priced, Some(weighed)));
                    }
                }
            }
        }
        able.sort_by_key(|(key, priced, _)| (*key, priced.pick.ticket));
        let before = bound.len();
        for (_, priced, weighed) in &mut able {
            // A request before this one may have taken the target.
            let first = weighed.take().filter(|_| bound.len() == before);
            let weighed = first
                .or_else(|| self.rescore(now, state, priced))
                .filter(|weighed| self.can_begin(priced, &weighed.choice));
            let Some(weighed) = weighed else {
                continue;
            };
            if bound.len() >= RELEASE_BUDGET.releases {
                state
                    .queue
                    .offer_again(now, priced.pick.ticket, weighed.choice.winner().target());
                break;
            }
            bound.extend(self.take_out(now, state, priced, weighed));
        }
        bound
    }

    /// Takes a request out of the queue and counts its load; `None`: it is no longer queued.
    fn take_out<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        &PricedRequest { pick, split, .. }: &PricedRequest<'a>,
        weighed: ScoredChoice<'a>,
    ) -> Option<BoundRequest<'a>> {
        let request = state.queue.remove(pick.ticket)?;
        let prompt = split.prompt(weighed.choice.winner());
        let queue = &self.settings.load().queue;
        let reservation = state.reserve(now, &split.decode, &weighed.choice, prompt, queue);
        Some(BoundRequest {
            ticket: pick.ticket,
            request,
            placed: PlacedRequest {
                split,
                scored: weighed,
                reservation,
            },
        })
    }

    /// Returns whether a request can be bound by `choice` before its wait budget is used up.
    fn can_begin(&self, priced: &PricedRequest<'_>, choice: &Choice<'_>) -> bool {
        !self.waits_for_backlog(&priced.pick.job(), choice.ruling) || !self.is_backed_up(choice)
    }

    /// Returns the choice at this moment; `None`: every target is above the busy threshold. Targets
    /// that were excluded when the job arrived stay excluded: the caller replaces the candidates
    /// when that changes.
    fn rescore<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        priced: &PricedRequest<'a>,
    ) -> Option<ScoredChoice<'a>> {
        let job = &priced.split.decode;
        let mut excluded = job.excluded.to_vec();
        let survey =
            priced
                .survey
                .clone()
                .exclude_busy(job.busy_threshold, &state.ledger, &mut excluded)?;
        let policy = self.policy(job.policy);
        let choice = state.choose(now, job, policy, &self.settings.load(), survey);
        Some(ScoredChoice {
            choice,
            excluded,
            started_us: 0.0,
            hash_us: 0.0,
            lookup_us: 0.0,
        })
    }

    /// Plans a released request, outside the lock under which it was bound.
    fn released_plan(&self, now: Moment, bound: BoundRequest<'_>) -> ReleasedRequest {
        let BoundRequest {
            ticket,
            request,
            placed,
        } = bound;
        let since = request.terms.since;
        let plan = self.plan(now, since, placed);
        ReleasedRequest {
            ticket,
            waited: now.since(since),
            plan: Box::new(plan),
        }
    }
}

impl ReleaseCandidate {
    fn job(&self) -> Job<'_> {
        self.job.job()
    }
}
