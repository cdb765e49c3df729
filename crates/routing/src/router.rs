//! The decision state machine.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use kv_blocks::{Moment, Target, WorkerId};
use kv_index::{KvIndex, SpeculationId};

use crate::{
    CacheSource, Candidate, Decision, Dispatch, ExcludedTarget, Job, Leg, Plan, Policy,
    PotentialLoad, Rates, Refusal, ReleasedRequest, ReservationId, RoutingSettings, SessionMode,
    TargetLoad, Ticket,
    choice::Choice,
    ledger::SequenceBlocks,
    plan::PlacementError,
    policy::{PolicyCandidate, PolicyRules},
    pool_split::PoolSplit,
    queue::{WaitTerms, engine_priority},
    release::PlacedRequest,
    scored_choice::{ScoredChoice, prefill_ms},
    state::RouterState,
    state_lock::StateLock,
    survey::{BlockCounting, OverlapSurvey, survey},
};

/// The decision state machine, shared by all requests. It has one lock; every call holds it
/// briefly.
///
/// ```
/// use std::sync::Arc;
///
/// use kv_blocks::{BlockSize, DpRank, Moment, Namespace, PromptIdentity, Target, WorkerId};
/// use kv_index::{IndexSettings, KvIndex};
/// use routing::{
///     Affinity, CacheSource, Candidate, Dispatch, Job, LmcacheFacts, NoStopwatch, Overrides,
///     ReplyMode, Router, RoutingSettings, Tiers,
/// };
///
/// let index = Arc::new(KvIndex::new(IndexSettings::default()));
/// let router = Router::new(RoutingSettings::default(), index);
/// let candidate = Candidate {
///     target: Target { worker: WorkerId(1), rank: DpRank(0) },
///     name: "w1".into(),
///     namespace: Namespace {
///         model: "qwen".into(),
///         lora: None,
///         salt: None,
///         block_size: BlockSize::new(16).unwrap(),
///         identity: PromptIdentity::Tokens,
///     },
///     weight: 1.0,
///     cache: CacheSource::Events,
///     total_blocks: None,
///     tiers: Tiers::default(),
///     stream_state: Some("live"),
///     health: "ready",
///     lmcache: LmcacheFacts::default(),
///     usage: None,
/// };
/// let job = Job {
///     policy: None,
///     pin: None,
///     blocks: None,
///     affinity: Affinity::default(),
///     session: None,
///     prefix_holders: None,
///     prompt_tokens: 100,
///     expected_output_tokens: None,
///     answer: ReplyMode::Streamed,
///     wait_budget: None,
///     busy_threshold: None,
///     candidates: &[candidate],
///     excluded: &[],
///     prefill: None,
///     random: 7,
///     overrides: Overrides::default(),
///     stopwatch: &NoStopwatch,
/// };
/// let Dispatch::Plan(plan) = router.decide(Moment::START, &job) else {
///     panic!("one worker is free")
/// };
/// assert_eq!(router.load(plan.decode.target).in_flight, 1);
/// router.done(Moment::START, plan.reservation);
/// assert_eq!(router.open_reservations(), 0);
/// ```
#[derive(Debug)]
pub struct Router {
    pub(crate) settings: ArcSwap<RoutingSettings>,
    pub(crate) index: Arc<KvIndex>,
    pub(crate) state: StateLock,
}

impl Router {
    /// Creates a router without load that looks blocks up in `index`.
    pub fn new(settings: RoutingSettings, index: Arc<KvIndex>) -> Self {
        Self {
            state: StateLock::new(RouterState::new(&settings)),
            settings: ArcSwap::from_pointee(settings),
            index,
        }
    }

    /// Replaces the settings. Load, learned rates and sessions stay; the turns of the policies
    /// start over.
    pub fn reconfigure(&self, settings: RoutingSettings) {
        let state = &mut *self.state.lock();
        if **self.settings.load() != settings {
            state.rules = PolicyRules::new(&settings);
            self.settings.store(Arc::new(settings));
        }
    }

    /// Returns the policy of a request that names this one, or none.
    pub fn policy(&self, asked: Option<Policy>) -> Policy {
        asked.unwrap_or(self.settings.load().policy)
    }

    /// Returns the effect of [`Job::session`] under this policy; [`SessionMode::Off`]: it is
    /// ignored.
    pub fn session_mode(&self, policy: Policy) -> SessionMode {
        self.settings.load().session.effective_under(policy)
    }

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
        let policy = self.policy(job.policy);
        let allowed =
            |candidate: &Candidate| job.pin.is_none_or(|pin| pin.allows(candidate.target));
        let mut excluded = job.excluded.to_vec();
        excluded.extend(
            job.candidates
                .iter()
                .filter(|candidate| !allowed(candidate))
                .map(ExcludedTarget::not_pinned),
        );
        if !job.candidates.iter().any(allowed) {
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
            state.observe_usage(now, job.candidates, &self.settings.load().queue);
        }
        let Some(survey) = survey.exclude_busy(job.busy_threshold, &state.ledger, &mut excluded)
        else {
            return Err(PlacementError::AllBusy(Refusal {
                policy,
                excluded,
                queue_full: false,
            }));
        };
        let choice = state.choose(now, job, policy, &self.settings.load(), survey);
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

    /// Records the first token of a reservation: its prompt is computed. Returns queued requests
    /// that may start now.
    pub fn first_token(&self, now: Moment, id: ReservationId) -> Vec<ReleasedRequest> {
        {
            let state = &mut *self.state.lock();
            let Some(target) = state.ledger.target(id) else {
                return Vec::new();
            };
            let seen = state.ledger.first_token(now, id);
            if let Some(seen) = seen {
                state.latencies.observe(now, seen.worker, seen.ms);
                match seen.alone {
                    Some(alone) => state.rates.observe(now, seen.worker, alone),
                    None => state.rates.record_activity(now, seen.worker),
                }
            }
            state.target_changed(now, target, &self.settings.load().queue);
        }
        self.release(now)
    }

    /// Ends an attempt that failed: the worker refused it or could not be reached. Frees its load
    /// as [`Router::done`] does, and withdraws the blocks expected of the worker because of it;
    /// otherwise equal prompts would be routed to exactly the worker that refuses them. Blocks that
    /// the engine confirmed meanwhile, or that another request renewed, stay. Unknown and repeated
    /// ids are ignored. Returns queued requests that may start now.
    pub fn failed(&self, now: Moment, id: ReservationId) -> Vec<ReleasedRequest> {
        self.end(
            now,
            id,
            |state| state.close(now, id, false),
            |promised| self.index.retract(promised),
        )
    }

    /// Ends a reservation whose prompt the worker received. Unknown and repeated ids are ignored.
    /// Returns queued requests that may start now.
    pub fn done(&self, now: Moment, id: ReservationId) -> Vec<ReleasedRequest> {
        self.end(now, id, |state| state.close(now, id, true), drop)
    }

    /// Closes a reservation. The index is updated outside the lock.
    pub(crate) fn end(
        &self,
        now: Moment,
        id: ReservationId,
        close: impl FnOnce(&mut RouterState) -> Option<SpeculationId>,
        tell: impl FnOnce(SpeculationId),
    ) -> Vec<ReleasedRequest> {
        let promised = {
            let state = &mut *self.state.lock();
            let Some(target) = state.ledger.target(id) else {
                return Vec::new();
            };
            let Some(promised) = close(state) else {
                return Vec::new();
            };
            state.target_changed(now, target, &self.settings.load().queue);
            promised
        };
        tell(promised);
        self.release(now)
    }

    /// Records the length of a complete reply, for the expected length of later ones.
    pub fn record_reply_length(&self, output_tokens: u32) {
        self.state.lock().output.observe(output_tokens);
    }

    /// Returns queued requests that may start now; also frees what has expired in the index. Call
    /// it about once a second.
    pub fn tick(&self, now: Moment) -> Vec<ReleasedRequest> {
        self.index.expire(now);
        self.state.lock().ledger.expire_prefills(now);
        self.release(now)
    }

    /// Returns some of the queued requests that may start now, however many there are:
    /// [`Router::next_release`] tells when to continue. Call it after another request is queued: it
    /// may start at once.
    pub fn take_released(&self, now: Moment) -> Vec<ReleasedRequest> {
        self.release(now)
    }

    /// Returns when queued requests may start without any further call; [`Router::take_released`]
    /// should be called then, at once if that is not after `now`. `None`: not before a further
    /// call.
    pub fn next_release(&self, now: Moment) -> Option<Moment> {
        self.state
            .lock()
            .queue
            .next_work()
            .map(|then| then.max(now))
    }

    /// Takes a request out of the queue; `false`: it is not there, because it was released or
    /// cancelled before.
    pub fn cancel(&self, ticket: Ticket) -> bool {
        self.state.lock().queue.remove(ticket).is_some()
    }

    /// Returns the number of queued requests.
    pub fn queued_requests(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Returns a target's load.
    pub fn load(&self, target: Target) -> TargetLoad {
        self.state.lock().ledger.load(target)
    }

    /// Returns the estimated speed of a worker.
    pub fn rates(&self, worker: WorkerId) -> Rates {
        self.state.lock().rates.of(worker)
    }

    /// Drops the learned state of a removed worker. Its requests in flight stay counted until they
    /// are done.
    pub fn forget(&self, worker: WorkerId) {
        let state = &mut *self.state.lock();
        state.ledger.forget(worker);
        state.rates.forget(worker);
        state.latencies.forget(worker);
        state.health.forget(worker);
        state.rules.forget(worker);
        state.sessions.forget(worker);
    }

    /// Returns the number of keys by which sessions are remembered.
    pub fn session_keys(&self) -> usize {
        self.state.lock().sessions.len()
    }

    /// Returns the number of open reservations.
    pub fn open_reservations(&self) -> usize {
        self.state.lock().ledger.open_reservations()
    }

    pub(crate) fn survey<'a>(
        &self,
        now: Moment,
        job: &Job<'a>,
        blocks: BlockCounting,
    ) -> OverlapSurvey<'a> {
        let allowed =
            |candidate: &&Candidate| job.pin.is_none_or(|pin| pin.allows(candidate.target));
        let mut survey = survey(&self.index, now, job, job.candidates.iter().filter(allowed));
        if !self.settings.load().track_active_blocks || blocks == BlockCounting::Ignored {
            survey
                .prompts
                .iter_mut()
                .for_each(|prompt| prompt.blocks = SequenceBlocks::default());
        }
        survey
    }

    /// Tells the index the blocks that the winner is about to hold, and stores the speculation with
    /// the reservation.
    pub(crate) fn speculate(
        &self,
        now: Moment,
        choice: &Choice<'_>,
        wait_ms: f64,
        reservation: ReservationId,
    ) {
        if let Some(promised) = self.expect_blocks(now, choice, wait_ms) {
            self.state
                .lock()
                .ledger
                .set_speculation(reservation, promised);
        }
    }

    /// Tells the index the blocks that the winner is about to hold.
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
            state: standing,
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
            CacheSource::Events if self.settings.load().speculative => {
                let ttl = self.settings.load().speculative_ttl
                    + Duration::from_secs_f64((standing.backlog_ms + wait_ms) / 1e3);
                Some(self.index.speculate(target, namespace, chain, now, ttl))
            }
            CacheSource::Events => None,
        }
    }
}
