//! Decisions: the choice of a target for a job, its reservation and its plan.

use std::time::Duration;

use kv_blocks::Moment;
use kv_index::SpeculationId;

use crate::{
    CacheSource, Dispatch, Job, Leg, Plan, Policy, Refusal, ReservationId, Router,
    choice::{Choice, PlacementError},
    ledger::{Ledger, SequenceBlocks},
    policy::rule::PolicyCandidate,
    pool_split::{PoolSplit, PromptLocation},
    queue::{RequestWork, WaitTerms, engine_priority},
    state::RouterState,
    survey::{BlockCounting, OverlapSurvey, survey},
};

/// A request with a target, and its load counted there.
pub(crate) struct ReservedChoice<'a> {
    pub(crate) split: PoolSplit<'a>,
    pub(crate) choice: Choice<'a>,
    pub(crate) reservation: ReservationId,
}

impl Router {
    /// Chooses a target for `job` and counts its load there, or queues the job until a target can
    /// begin it; where another pool computes prompts, chooses one target of each.
    ///
    /// Refuses when no target is eligible, and when the job would have to wait and the queue is
    /// full.
    pub fn decide(&self, now: Moment, job: &Job<'_>) -> Dispatch {
        let split = PoolSplit::of(job);
        let settings = self.settings.load();
        let outcome = self.score(
            now,
            &split.decode,
            BlockCounting::Counted,
            |state, choice| match self.wait_terms(now, job, choice, state) {
                Some(terms) => Err(state
                    .has_capacity_for(now, (job, choice), terms.budget.bytes, &settings.queue)
                    .map(|()| terms)),
                None => {
                    let begins_early = self.begins_early(job, choice, state);
                    let prompt = split.prompt(choice.winner());
                    let id = state.reserve(now, &split.decode, choice, prompt, &settings.queue);
                    let work = choice.work(job.prompt.tokens, prompt);
                    let (tenant, target) = (job.tenant(), choice.winner().target());
                    if begins_early {
                        let of = (&tenant, job.overrides.priority);
                        state.queue.charge_early(id, of, target, work);
                    } else {
                        state.queue.charge(id, (&tenant, None), work);
                    }
                    Ok(id)
                }
            },
        );
        let (terms, policy, excluded) = match outcome {
            Ok((choice, Ok(reservation))) => {
                let reserved = ReservedChoice {
                    split,
                    choice,
                    reservation,
                };
                return Dispatch::Plan(Box::new(self.plan(now, now, reserved)));
            }
            Ok((choice, Err(terms))) => (terms, choice.policy, choice.excluded),
            Err(PlacementError::Nobody(refusal)) => return Dispatch::Refused(refusal),
            Err(PlacementError::AllBusy(refusal)) => match job.wait_budget {
                None => return Dispatch::Refused(refusal),
                Some(budget) => {
                    let terms = WaitTerms {
                        budget,
                        minds_backlog: self.waits_for_backlog(job, refusal.policy),
                        winner: None,
                        work: RequestWork::default(),
                    };
                    (Ok(terms), refusal.policy, refusal.excluded)
                }
            },
        };
        // A target that becomes free meanwhile is seen when the request enters the queue.
        match terms.and_then(|terms| self.enqueue(now, job, terms)) {
            Ok(ticket) => Dispatch::Queued(ticket),
            Err(limit) => Dispatch::Refused(Refusal {
                policy,
                excluded,
                queue_full: Some(limit),
            }),
        }
    }

    /// Looks up overlaps, computes costs and chooses. `act` is called under the same lock as the
    /// choice, so that of two concurrent requests the second sees the first; a step that `act`
    /// omits does not happen.
    pub(crate) fn score<'a, T>(
        &self,
        now: Moment,
        job: &Job<'a>,
        blocks: BlockCounting,
        act: impl FnOnce(&mut RouterState, &Choice<'a>) -> T,
    ) -> Result<(Choice<'a>, T), PlacementError> {
        let survey = self.survey(now, job, blocks);
        let state = &mut *self.state.lock();
        let settings = self.settings.load();
        if job.busy_threshold.is_some() && !survey.candidates.is_empty() {
            state.observe_usage(now, job.targets.candidates, &settings.queue);
        }
        let choice = state.choose(now, job, &settings, survey)?;
        let outcome = act(state, &choice);
        Ok((choice, outcome))
    }

    /// Looks up the overlap of the candidates that the job allows.
    pub(crate) fn survey<'a>(
        &self,
        now: Moment,
        job: &Job<'a>,
        blocks: BlockCounting,
    ) -> OverlapSurvey<'a> {
        let mut survey = survey(&self.index, now, job);
        if !self.settings.load().section.track_active_blocks || blocks == BlockCounting::Ignored {
            survey
                .prompts
                .iter_mut()
                .for_each(|prompt| prompt.blocks = SequenceBlocks::default());
        }
        survey
    }

    /// Returns whether a target's backlog delays a job: only under `warm`; jobs of the other
    /// policies bind at once. A pinned job is not delayed, and a prompt that another pool computes
    /// does not wait in the queue of the pool that generates.
    pub(crate) fn waits_for_backlog(&self, job: &Job<'_>, deciding_policy: Policy) -> bool {
        let enabled = self.settings.load().queue.enabled;
        enabled && deciding_policy == Policy::Warm && job.pin.is_none() && job.prefill.is_none()
    }

    /// Returns the wait terms of a job that `choice` cannot bind now: the target cannot begin it,
    /// or another request may be first there.
    fn wait_terms(
        &self,
        now: Moment,
        whole: &Job<'_>,
        choice: &Choice<'_>,
        state: &RouterState,
    ) -> Option<WaitTerms> {
        let budget = whole.wait_budget?;
        let minds_backlog = self.waits_for_backlog(whole, choice.deciding_policy);
        if !minds_backlog && whole.busy_threshold.is_none() {
            return None;
        }
        let winner = choice.winner().target();
        let waits_for_backlog = minds_backlog
            && self.is_backed_up(choice, &state.ledger)
            && !self.begins_early(whole, choice, state);
        let waits = waits_for_backlog || state.queue.is_contended(winner, now);
        waits.then(|| WaitTerms {
            budget,
            minds_backlog,
            winner: Some(winner),
            work: choice.work(whole.prompt.tokens, PromptLocation::Here),
        })
    }

    /// Returns whether a job that may wait begins although its target's backlog is long, because it is
    /// of a tenant far below its share and only one far above waits.
    fn begins_early(&self, job: &Job<'_>, choice: &Choice<'_>, state: &RouterState) -> bool {
        let is_held = job.wait_budget.is_some()
            && self.waits_for_backlog(job, choice.deciding_policy)
            && self.is_backed_up(choice, &state.ledger);
        if !is_held {
            return false;
        }
        let queue = self.settings.load().queue;
        let most = queue.longest_early_backlog(state.ledger.replicas());
        let (tenant, winner) = (job.tenant(), choice.winner());
        winner.state.backlog_ms <= most.as_secs_f64() * 1e3
            && state
                .queue
                .may_begin_early(&tenant, job.overrides.priority, winner.target())
    }

    pub(crate) fn is_backed_up(&self, choice: &Choice<'_>, ledger: &Ledger) -> bool {
        let most = self
            .settings
            .load()
            .queue
            .longest_backlog(ledger.replicas());
        choice.winner().state.backlog_ms > most.as_secs_f64() * 1e3
    }

    /// Returns the answer to a job that arrived at `since`. Chooses the prefill target where
    /// another pool computes the prompt, and announces the expected blocks to the index.
    pub(crate) fn plan(&self, now: Moment, since: Moment, reserved: ReservedChoice<'_>) -> Plan {
        let ReservedChoice {
            split,
            choice,
            reservation,
        } = reserved;
        let prefill = self.prefill(now, &split, &choice);
        self.speculate(now, &choice, prefill.wait_ms, reservation);
        let settings = self.settings.load();
        Plan {
            reservation,
            prefill: prefill.leg,
            decode: Leg {
                target: choice.winner().target(),
            },
            engine_priority: engine_priority(
                split.decode.overrides.priority,
                since,
                settings.queue.ageing,
                choice.winner().prefill_ms(),
            ),
            decision: choice.decision(&split, prefill.note, settings.kept_candidates),
        }
    }

    /// Announces to the index the blocks that the winner will hold, and stores the speculation with
    /// the reservation.
    pub(crate) fn speculate(
        &self,
        now: Moment,
        choice: &Choice<'_>,
        wait_ms: f64,
        reservation: ReservationId,
    ) {
        if let Some(speculation) = self.expect_blocks(now, choice, wait_ms) {
            self.state
                .lock()
                .ledger
                .set_speculation(reservation, speculation);
        }
    }

    /// Announces to the index the blocks that the winner will hold.
    ///
    /// For a target without events the index learns nothing else. For one with events the entry
    /// bridges the time until the engine announces the blocks: its time to live counts from the end
    /// of the target's queue, or a burst behind a long queue would find nothing. `wait_ms` is how
    /// long another target computes the prompt first.
    fn expect_blocks(
        &self,
        now: Moment,
        choice: &Choice<'_>,
        wait_ms: f64,
    ) -> Option<SpeculationId> {
        let PolicyCandidate {
            overlap: surveyed,
            state,
        } = choice.winner();
        let candidate = surveyed.candidate;
        let (target, namespace) = (candidate.target, &candidate.namespace);
        let chain = choice.input.prompts[surveyed.prompt]
            .chain
            .as_deref()
            .filter(|chain| !chain.is_empty())?;
        match candidate.cache {
            CacheSource::Predicted => Some(self.index.predict(
                target,
                namespace,
                chain,
                now,
                self.settings.load().prediction_ttl,
            )),
            CacheSource::Events if self.settings.load().section.speculative => {
                let ttl = self.settings.load().section.speculative_ttl
                    + Duration::from_secs_f64((state.backlog_ms + wait_ms) / 1e3);
                Some(self.index.speculate(target, namespace, chain, now, ttl))
            }
            CacheSource::Events => None,
        }
    }
}
