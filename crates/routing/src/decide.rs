//! Decisions: the choice of a target for a job, its reservation and its plan.

use kv_blocks::Moment;

use crate::{
    Candidate, Decision, Dispatch, ExcludedTarget, Job, Leg, Plan, PotentialLoad, Refusal, Router,
    choice::Choice,
    ledger::SequenceBlocks,
    plan::PlacementError,
    pool_split::PoolSplit,
    queue::{WaitTerms, engine_priority},
    release::PlacedRequest,
    scored_choice::{ScoredChoice, prefill_ms},
    state::RouterState,
    survey::{BlockCounting, OverlapSurvey, survey},
};

impl Router {
    /// Chooses a target for `job` and counts its load there, or queues the job until a target can
    /// begin it; where another pool computes prompts, chooses one target of each.
    ///
    /// Refuses when no target is eligible, and when the job would have to wait and the queue is
    /// full.
    pub fn decide(&self, now: Moment, job: &Job<'_>) -> Dispatch {
        let split = PoolSplit::of(job);
        let settings = self.settings.load();
        let settled = self.score(
            now,
            &split.decode,
            BlockCounting::Counted,
            |state, choice| match self.wait_terms(now, job, choice, state) {
                Some(holding) => Err(state
                    .has_room_for(now, choice, holding.budget.bytes, &settings.queue)
                    .then_some(holding)),
                None => {
                    let prompt = split.prompt(choice.winner());
                    Ok(state.reserve(now, &split.decode, choice, prompt, &settings.queue))
                }
            },
        );
        let (holding, policy, excluded) = match settled {
            Ok((weighed, Ok(reservation))) => {
                let placed = PlacedRequest {
                    split,
                    scored: weighed,
                    reservation,
                };
                return Dispatch::Plan(Box::new(self.plan(now, now, placed)));
            }
            Ok((
                ScoredChoice {
                    choice, excluded, ..
                },
                Err(holding),
            )) => (holding, choice.policy, excluded),
            Err(PlacementError::Nobody(refusal)) => return Dispatch::Refused(refusal),
            Err(PlacementError::AllBusy(refusal)) => match job.wait_budget {
                None => return Dispatch::Refused(refusal),
                Some(patience) => {
                    let minds_backlog = self.waits_for_backlog(job, refusal.policy);
                    let holding = WaitTerms {
                        budget: patience,
                        minds_backlog,
                        winner: None,
                        uncached_ms: 0.0,
                    };
                    (Some(holding), refusal.policy, refusal.excluded)
                }
            },
        };
        // A target that becomes free meanwhile is seen when the request enters the queue.
        match holding.and_then(|holding| self.enqueue(now, job, holding)) {
            Some(ticket) => Dispatch::Held(ticket),
            None => Dispatch::Refused(Refusal {
                policy,
                excluded,
                queue_full: true,
            }),
        }
    }

    /// Returns the answer to a job that arrived at `since`. Chooses the prefill target where
    /// another pool computes the prompt, and tells the index the expected blocks.
    pub(crate) fn plan(&self, now: Moment, since: Moment, placed: PlacedRequest<'_>) -> Plan {
        let PlacedRequest {
            split,
            scored: weighed,
            reservation,
        } = placed;
        let prefill = self.prefill(now, &split, &weighed.choice);
        self.speculate(now, &weighed.choice, prefill.wait_ms, reservation);
        Plan {
            reservation,
            prefill: prefill.leg,
            decode: Leg {
                target: weighed.choice.winner().target(),
            },
            engine_priority: engine_priority(
                split.decode.overrides.priority,
                since,
                self.settings.load().queue.ageing,
                prefill_ms(&split.decode, &weighed.choice),
            ),
            decision: weighed.decision(&split, prefill.note, self.settings.load().kept_candidates),
        }
    }

    /// Returns what [`Router::decide`] would decide now and changes nothing: no load, no entry in
    /// the index, no turn used up.
    ///
    /// # Errors
    ///
    /// Returns the refusal that `decide` would return.
    pub fn preview(&self, now: Moment, job: &Job<'_>) -> Result<Decision, Refusal> {
        let split = PoolSplit::of(job);
        let (weighed, ()) = self
            .score(now, &split.decode, BlockCounting::Counted, |_, _| ())
            .map_err(PlacementError::refusal)?;
        let note = self.prefill_preview(now, &split, &weighed.choice);
        Ok(weighed.decision(&split, note, self.settings.load().kept_candidates))
    }

    /// Returns what every eligible target, of both pools where there are two, would have to compute
    /// and to hold if `job` went there, in the order of the targets; changes nothing.
    ///
    /// # Errors
    ///
    /// Returns the refusal that `decide` would return.
    pub fn potential_loads(
        &self,
        now: Moment,
        job: &Job<'_>,
    ) -> Result<Vec<PotentialLoad>, Refusal> {
        let split = PoolSplit::of(job);
        let (weighed, ()) = self
            .score(now, &split.decode, BlockCounting::Counted, |_, _| ())
            .map_err(PlacementError::refusal)?;
        let mut loads = weighed
            .choice
            .potential_loads(|contender| split.prompt(contender));
        loads.extend(self.prefill_loads(now, &split));
        loads.sort_unstable_by_key(|load| load.target);
        Ok(loads)
    }

    /// Looks up overlaps, computes costs and chooses. `settle` is called under the same lock as the
    /// choice, so that of two concurrent requests the second sees the first; a step that `settle`
    /// omits does not happen.
    pub(crate) fn score<'a, T>(
        &self,
        now: Moment,
        job: &Job<'a>,
        blocks: BlockCounting,
        settle: impl FnOnce(&mut RouterState, &Choice<'a>) -> T,
    ) -> Result<(ScoredChoice<'a>, T), PlacementError> {
        let started_us = job.stopwatch.elapsed_us();
        let policy = self.policy(job.targets.policy);
        let allowed =
            |candidate: &Candidate| job.pin.is_none_or(|pin| pin.allows(candidate.target));
        let mut excluded = job.targets.excluded.to_vec();
        excluded.extend(
            job.targets
                .candidates
                .iter()
                .filter(|candidate| !allowed(candidate))
                .map(ExcludedTarget::not_pinned),
        );
        if !job.targets.candidates.iter().any(allowed) {
            return Err(PlacementError::Nobody(Refusal {
                policy,
                excluded,
                queue_full: false,
            }));
        }

        let asked_us = job.stopwatch.elapsed_us();
        let survey = self.survey(now, job, blocks);
        let hash_us = survey.hash_us;
        let lookup_us = job.stopwatch.elapsed_us() - asked_us - hash_us;

        let state = &mut *self.state.lock();
        if job.busy_threshold.is_some() {
            state.observe_usage(now, job.targets.candidates, &self.settings.load().queue);
        }
        let Some(survey) = survey.exclude_busy(job.busy_threshold, &state.ledger, &mut excluded)
        else {
            return Err(PlacementError::AllBusy(Refusal {
                policy,
                excluded,
                queue_full: false,
            }));
        };
        let choice = state.choose(now, job, &self.settings.load(), survey);
        let settled = settle(state, &choice);
        Ok((
            ScoredChoice {
                choice,
                excluded,
                started_us,
                hash_us,
                lookup_us,
            },
            settled,
        ))
    }

    /// Looks up the overlap of the candidates that the job allows.
    pub(crate) fn survey<'a>(
        &self,
        now: Moment,
        job: &Job<'a>,
        blocks: BlockCounting,
    ) -> OverlapSurvey<'a> {
        let allowed =
            |candidate: &&Candidate| job.pin.is_none_or(|pin| pin.allows(candidate.target));
        let candidates = job.targets.candidates.iter().filter(allowed);
        let mut survey = survey(&self.index, now, job, candidates);
        if !self.settings.load().section.track_active_blocks || blocks == BlockCounting::Ignored {
            survey
                .prompts
                .iter_mut()
                .for_each(|prompt| prompt.blocks = SequenceBlocks::default());
        }
        survey
    }
}
