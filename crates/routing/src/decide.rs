//! Decisions: the choice of a target for a job, its reservation and its plan.

use std::time::Duration;

use kv_blocks::Moment;
use kv_index::SpeculationId;

use crate::{
    CacheSource, Dispatch, Job, Leg, Plan, Policy, Refusal, ReservationId, RoomWait, Router,
    SloNote,
    admission::{Footprint, LentShare, RoomRule, RoomShortage},
    choice::{Choice, PlacementError},
    ledger::{Ledger, SequenceBlocks},
    policy::rule::PolicyCandidate,
    pool_split::{PoolSplit, PromptLocation},
    queue::{EnginePriority, QueueLimit, RequestWork, RoomTerms, TtftNeeds, WaitTerms},
    state::RouterState,
    survey::{BlockCounting, OverlapSurvey, survey},
};

/// A request with a target, and its load counted there.
pub(crate) struct ReservedChoice<'a> {
    pub(crate) split: PoolSplit<'a>,
    pub(crate) choice: Choice<'a>,
    pub(crate) reservation: ReservationId,
    /// Its latency targets, if it has any, and what is expected.
    pub(crate) slo: Option<SloNote>,
}

/// What becomes of a job for which a target was chosen.
enum PlacementStep {
    /// Its load is counted.
    Reserved(ReservationId, Option<SloNote>),
    /// It waits, if a limit does not keep it out of the queue.
    Waits(Result<WaitTerms, QueueLimit>),
    /// It would miss its target on every candidate.
    Misses(SloNote),
}

/// Whether a choice is made for a request that has just arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It has: the request may continue one that ended lately, which counts once.
    New,
    /// It is not: a preview, or the second leg of a request.
    None,
}

/// How a choice is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoreRules {
    pub(crate) blocks: BlockCounting,
    pub(crate) room: RoomRule,
    pub(crate) arrival: Arrival,
}

impl ScoreRules {
    /// A preview does not wait, so it shows the target that the request would have without a wait for
    /// room.
    pub(crate) const PREVIEW: Self = Self {
        blocks: BlockCounting::Counted,
        room: RoomRule::Ignored,
        arrival: Arrival::None,
    };
    /// The prefill leg of a request that has arrived, or of its preview.
    pub(crate) const PREFILL_LEG: Self = Self {
        blocks: BlockCounting::Ignored,
        ..Self::PREVIEW
    };
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
        // A request that may not wait is placed wherever it has no room.
        let room = match job.wait_budget {
            Some(_) => self.room_rule(job),
            None => RoomRule::Ignored,
        };
        let outcome = self.score(
            now,
            &split.decode,
            ScoreRules {
                blocks: BlockCounting::Counted,
                room,
                arrival: Arrival::New,
            },
            |state, choice| {
                if let Some(miss) = state.certain_miss(now, job, &settings, choice) {
                    return PlacementStep::Misses(miss);
                }
                if let Some(terms) = self.wait_terms(now, job, choice, state) {
                    let bytes = terms.budget.bytes;
                    let fits = state.has_capacity_for(now, (job, choice), bytes, &settings.queue);
                    return PlacementStep::Waits(fits.map(|()| terms));
                }
                let begins_early = self.begins_early(job, choice, state);
                let prompt = split.prompt(choice.winner());
                let (targets, spent) = (settings.slo_of(job), job.reply.slo.spent);
                let slo = state.slo_note(targets, spent, (choice, prompt));
                let id = state.reserve(now, &split.decode, choice, prompt, &settings.queue);
                let work = choice.work(job.prompt.tokens, prompt);
                let (tenant, target) = (job.tenant(), choice.winner().target());
                if begins_early {
                    let of = (&tenant, job.overrides.priority);
                    state.queue.charge_early(id, of, target, work);
                } else {
                    state.queue.charge(id, (&tenant, None), work);
                }
                PlacementStep::Reserved(id, slo)
            },
        );
        let (terms, policy, excluded) = match outcome {
            Ok((choice, PlacementStep::Reserved(reservation, slo))) => {
                let reserved = ReservedChoice {
                    split,
                    choice,
                    reservation,
                    slo,
                };
                return Dispatch::Plan(Box::new(self.plan(now, now, reserved)));
            }
            Ok((choice, PlacementStep::Waits(terms))) => (terms, choice.policy, choice.excluded),
            Ok((choice, PlacementStep::Misses(miss))) => {
                return Dispatch::Refused(Refusal {
                    policy: choice.policy,
                    excluded: choice.excluded,
                    queue_full: None,
                    no_room: None,
                    slo_miss: Some(Box::new(miss)),
                });
            }
            Err(PlacementError::Nobody(refusal)) => return Dispatch::Refused(refusal),
            Err(PlacementError::AllBusy(refusal)) => match job.wait_budget {
                None => return Dispatch::Refused(refusal),
                Some(budget) => {
                    let terms = WaitTerms {
                        budget,
                        minds_backlog: self.waits_for_backlog(job, refusal.policy),
                        winner: None,
                        work: RequestWork::default(),
                        needs: TtftNeeds::default(),
                        room: None,
                    };
                    (Ok(terms), refusal.policy, refusal.excluded)
                }
            },
            Err(PlacementError::NoRoom(refusal, shortage)) => {
                match self.room_terms(now, job, &shortage) {
                    Ok(terms) => (terms, refusal.policy, refusal.excluded),
                    Err(wait) => {
                        return Dispatch::Refused(Refusal {
                            no_room: Some(Box::new(wait)),
                            ..refusal
                        });
                    }
                }
            }
        };
        // A target that becomes free meanwhile is seen when the request enters the queue.
        match terms.and_then(|terms| self.enqueue(now, job, terms)) {
            Ok(ticket) => Dispatch::Queued(ticket),
            Err(limit) => Dispatch::Refused(Refusal {
                policy,
                excluded,
                queue_full: Some(limit),
                no_room: None,
                slo_miss: None,
            }),
        }
    }

    /// Returns the wait terms of a job that has no room.
    ///
    /// # Errors
    ///
    /// Its least wait, if that is longer than the job may wait, or it has no time to wait. A job that
    /// waits is let in before its time is over.
    fn room_terms(
        &self,
        now: Moment,
        job: &Job<'_>,
        shortage: &RoomShortage,
    ) -> Result<Result<WaitTerms, QueueLimit>, RoomWait> {
        // Only a job with a budget is tested for room.
        let Some(budget) = job.wait_budget else {
            return Ok(Err(QueueLimit::Router));
        };
        let settings = self.settings.load();
        let targets = || job.targets.candidates.iter().map(|known| known.target);
        let state = &mut *self.state.lock();
        if let Some(time_left) = job.time_left {
            let terms = (targets(), LentShare::Most);
            let least = state.new_room_wait(now, &settings, (job, shortage), terms);
            let limit = (time_left, shortage.prefill_ms);
            let section = &settings.section;
            if section.is_too_late_for_room(least.expected, limit) {
                state.admission.refused += 1;
                return Err(least);
            }
        }
        let terms = (targets(), LentShare::Wanted);
        let wait = state.new_room_wait(now, &settings, (job, shortage), terms);
        Ok(Ok(WaitTerms {
            budget,
            minds_backlog: true,
            winner: None,
            work: RequestWork {
                prefill_ms: shortage.prefill_ms,
                decode_ms: 0.0,
            },
            needs: TtftNeeds::exactly(shortage.prefill_ms),
            room: Some(Box::new(RoomTerms {
                shortage: *shortage,
                wait: Some(wait),
            })),
        }))
    }

    /// Returns whether a job that may wait goes only where it is warm or has room: only under `warm`,
    /// where requests wait for backlogs too.
    pub(crate) fn room_rule(&self, job: &Job<'_>) -> RoomRule {
        let settings = self.settings.load();
        let is_tested = settings.section.admission.is_on()
            && settings.policy_of(job) == Policy::Warm
            && self.waits_for_backlog(job, Policy::Warm);
        if is_tested {
            RoomRule::Required
        } else {
            RoomRule::Ignored
        }
    }

    /// Looks up overlaps, computes costs and chooses. `act` is called under the same lock as the
    /// choice, so that of two concurrent requests the second sees the first; a step that `act`
    /// omits does not happen.
    pub(crate) fn score<'a, T>(
        &self,
        now: Moment,
        job: &Job<'a>,
        rules: ScoreRules,
        act: impl FnOnce(&mut RouterState, &Choice<'a>) -> T,
    ) -> Result<(Choice<'a>, T), PlacementError> {
        let survey = self.survey(now, job, rules.blocks);
        let footprint = (survey.prompts.first())
            .filter(|_| rules.arrival == Arrival::New)
            .and_then(|prompt| prompt.footprint.clone());
        let state = &mut *self.state.lock();
        if let Some(footprint) = footprint {
            state.ledger.live.arrived(now, &footprint);
        }
        let settings = self.settings.load();
        if job.busy_threshold.is_some() && !survey.candidates.is_empty() {
            state.observe_usage(now, job.targets.candidates, &settings.queue);
        }
        let place = state.queue.place_of_new(&job.tenant());
        let choice = state.choose(now, (job, place), &settings, survey, rules.room)?;
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
        let is_on = self.settings.load().section.follows_live_blocks();
        if is_on && blocks == BlockCounting::Counted {
            for prompt in &mut survey.prompts {
                prompt.footprint = Some(Footprint::of(&prompt.blocks, job.prompt.tokens));
            }
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
            needs: state.ttft_needs(choice),
            room: None,
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
            slo,
        } = reserved;
        let prefill = self.prefill(now, &split, &choice);
        self.speculate(now, &choice, prefill.wait_ms, reservation);
        let settings = self.settings.load();
        let decode = Leg {
            target: choice.winner().target(),
        };
        let engine_priority = EnginePriority::new(
            split.decode.overrides.priority,
            since,
            settings.queue.ageing,
            choice.winner().prefill_ms(),
        );
        let mut decision = choice.decision(&split, prefill.note, settings.kept_candidates);
        decision.winner.slo = slo;
        Plan {
            reservation,
            prefill: prefill.leg,
            decode,
            engine_priority,
            decision,
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
    /// of the target's queue and of a read, or a burst behind a long queue would find nothing.
    /// `wait_ms` is how long another target computes the prompt first.
    fn expect_blocks(
        &self,
        now: Moment,
        choice: &Choice<'_>,
        wait_ms: f64,
    ) -> Option<SpeculationId> {
        let PolicyCandidate {
            overlap: surveyed,
            state,
            fetch,
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
                let fetch_ms = fetch.map_or(0.0, |fetch| fetch.ms);
                let begins_ms = state.backlog_ms + wait_ms + fetch_ms;
                let ttl = self.settings.load().section.speculative_ttl
                    + Duration::from_secs_f64(begins_ms / 1e3);
                Some(self.index.speculate(target, namespace, chain, now, ttl))
            }
            CacheSource::Events => None,
        }
    }
}
