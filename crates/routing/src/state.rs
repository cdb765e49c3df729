//! The router's state between decisions, and the operations on it under its lock.
//!
//! [`RouterState::choose`] reads and [`RouterState::reserve`] writes: a choice that is not reserved
//! leaves no trace.

use std::{mem, sync::Arc, time::Duration};

use kv_blocks::{Moment, Target};
use kv_index::SpeculationId;

use crate::{
    AdmissionCounts, AttemptEnd, CacheSource, Candidate, Job, Policy, PromptKnowledge, QueueLimit,
    Refusal, ReplyMode, ReportedWork, ReservationId, RoutingSettings, TargetLoad,
    admission::{DispatchFacts, Lending, RoomRule, whole_prefill_ms},
    choice::{Choice, PlacementError},
    fetch::{FetchTable, OpenFetch},
    health::HealthTable,
    latency::LatencyTable,
    ledger::{
        DispatchLoad, KnownBlocks, Ledger, PredictedPrompt, SequenceBlocks, SpeedSample,
        TargetAccount,
    },
    output_length::OutputLength,
    policy::rule::{CandidateState, PolicyCandidate, PolicyFact, PolicyInput, PolicyRules},
    pool_split::PromptLocation,
    queue::{QueueSettings, TargetAvailability, WaitQueue, WaitingPlace},
    rates::RateTable,
    replication::{
        change::{LoadChange, OpenLoad},
        feed::LoadFeed,
    },
    session::SessionTable,
    survey::{CandidateOverlap, OverlapSurvey},
    ttft_parity::TtftParity,
};

/// Load, learned rates and the policies' memory.
#[derive(Debug)]
pub(crate) struct RouterState {
    pub(crate) ledger: Ledger,
    pub(crate) rates: RateTable,
    pub(crate) latencies: LatencyTable,
    pub(crate) ttft_parity: TtftParity,
    pub(crate) fetches: FetchTable,
    pub(crate) health: HealthTable,
    pub(crate) rules: PolicyRules,
    pub(crate) queue: WaitQueue,
    pub(crate) output: OutputLength,
    pub(crate) sessions: SessionTable,
    /// The time that targets lend to requests without room.
    pub(crate) lending: Lending,
    /// How requests that waited for room ended.
    pub(crate) admission: AdmissionCounts,
    /// The changes for other replicas, if this router shares its load.
    pub(crate) feed: Option<LoadFeed>,
}

impl RouterState {
    pub(crate) fn new(settings: &RoutingSettings) -> Self {
        let mut ledger = Ledger::default();
        ledger
            .live
            .set_enabled(settings.section.follows_live_blocks());
        Self {
            ledger,
            rates: RateTable::default(),
            latencies: LatencyTable::default(),
            ttft_parity: TtftParity::default(),
            fetches: FetchTable::default(),
            health: HealthTable::default(),
            rules: PolicyRules::new(settings),
            queue: WaitQueue::default(),
            output: OutputLength::default(),
            sessions: SessionTable::default(),
            lending: Lending::default(),
            admission: AdmissionCounts::default(),
            feed: None,
        }
    }

    /// Computes the candidates' costs for a request at this place, and picks one. Changes nothing but the
    /// state that passing time changes by itself.
    pub(crate) fn choose<'a>(
        &mut self,
        now: Moment,
        (job, place): (&Job<'a>, WaitingPlace),
        settings: &RoutingSettings,
        mut survey: OverlapSurvey<'a>,
        room: RoomRule,
    ) -> Result<Choice<'a>, PlacementError> {
        let refusal = |excluded| Refusal {
            policy: settings.policy_of(job),
            excluded,
            queue_full: None,
            no_room: None,
            slo_miss: None,
        };
        if survey.candidates.is_empty() {
            return Err(PlacementError::Nobody(refusal(survey.excluded)));
        }
        survey.exclude_busy(job.busy_threshold, &self.ledger);
        if survey.candidates.is_empty() {
            return Err(PlacementError::AllBusy(refusal(survey.excluded)));
        }
        let (excluded, timing) = (mem::take(&mut survey.excluded), survey.timing);
        let input = self.policy_input(now, (job, place), settings, survey);
        let mut choice = Choice::of(&self.rules, job, settings, input);
        (choice.excluded, choice.timing) = (excluded, timing);
        self.sessions
            .apply(now, job, settings.section.session.mode, &mut choice);
        if room == RoomRule::Required
            && let Err(shortage) = self.keep_to_room(now, settings, &mut choice)
        {
            let refusal = refusal(mem::take(&mut choice.excluded));
            return Err(PlacementError::NoRoom(refusal, Box::new(shortage)));
        }
        Ok(choice)
    }

    /// Returns the inputs of the policies. Changes nothing but the state that passing time changes
    /// by itself.
    pub(crate) fn policy_input<'a>(
        &mut self,
        now: Moment,
        (job, place): (&Job<'a>, WaitingPlace),
        settings: &RoutingSettings,
        survey: OverlapSurvey<'a>,
    ) -> PolicyInput<'a> {
        let OverlapSurvey {
            candidates,
            prompts,
            ..
        } = survey;
        let targets = candidates.iter().map(|surveyed| surveyed.candidate.target);
        self.ledger.expire_prefills_on(now, targets.clone());
        let newcomer_cold_tokens = self.ledger.newcomer_cold_tokens(now, targets);
        let query = StateQuery::new((now, place), newcomer_cold_tokens, job, settings);
        let known: Vec<KnownBlocks> = prompts
            .iter()
            .map(|prompt| self.ledger.known_blocks(&prompt.blocks))
            .collect();
        let candidates = candidates.into_iter().map(|mut surveyed| {
            let active = known[surveyed.prompt].of(surveyed.candidate.target);
            let credited = query
                .credited_tokens
                .filter(|_| surveyed.candidate.cache == CacheSource::Events);
            if let Some(prompt_tokens) = credited {
                surveyed.credit(active, prompt_tokens);
            }
            let new_blocks = prompts[surveyed.prompt].blocks.count() - active as u64;
            PolicyCandidate {
                state: self.candidate_state(&query, &surveyed, new_blocks),
                overlap: surveyed,
                fetch: None,
            }
        });
        let (own, usual) = (&job.overrides, &settings.section);
        let mut input = PolicyInput {
            random: job.random,
            affinity: job.affinity.keys,
            prefix_holders: job.affinity.prefix_holders,
            overlap_weight: overlap_weight(own.overlap_weight.unwrap_or(usual.overlap_weight)),
            medium_weights: own.medium_weights.unwrap_or(usual.medium_weights),
            prompt_tokens: job.prompt.tokens,
            expected_output_tokens: self.output.expected(job.reply.max_tokens),
            candidates: candidates.collect(),
            prompts,
            newcomer_cold_tokens,
        };
        // A prompt that another pool computes is not read, nor is one without blocks. A pin leaves no
        // choice, though it may allow several ranks.
        let may_read = job.prefill.is_none() && job.pin.is_none() && job.prompt.blocks.is_some();
        if usual.fetch.is_on() && may_read && by_warm(settings.policy_of(job), settings) {
            self.offer_fetches(now, &mut input);
        }
        input
    }

    /// Returns the state of a candidate; `new_blocks` blocks of the prompt are not active there.
    fn candidate_state(
        &self,
        query: &StateQuery,
        surveyed: &CandidateOverlap<'_>,
        new_blocks: u64,
    ) -> CandidateState {
        let (now, target) = (query.now, surveyed.candidate.target);
        let rates = self.rates.rates_of(now, target.worker);
        let prefill_ms = || {
            let uncached = surveyed.uncached_tokens;
            let cached = query.prompt_tokens.saturating_sub(uncached);
            rates.prefill_ms(f64::from(cached), f64::from(uncached))
        };
        let account = self.ledger.account(target);
        let load = account.map_or_else(TargetLoad::default, TargetAccount::load);
        CandidateState {
            load,
            backlog_ms: account.map_or(0.0, |account| account.backlog_ms(now)),
            mean_backlog_ms: account.map_or(0.0, TargetAccount::mean_backlog_ms),
            waiting_ms: self.queue.waiting_ms(target, query.place, prefill_ms),
            decode_tokens: account.map_or(0, TargetAccount::decode_tokens),
            work_ms: account.map_or(0.0, |account| account.work_ms(now)),
            cold_tokens: account.map_or(query.newcomer_cold_tokens, |account| {
                account.cold_tokens(now)
            }),
            last_dispatch: account.map_or(0, TargetAccount::last_dispatch),
            blocks_after: load.decode_blocks + new_blocks,
            rates,
            first_token_ms: query
                .first_token_times
                .then(|| self.latencies.mean_ms(now, target.worker))
                .flatten(),
            health: if query.health {
                self.health.of(now, target.worker)
            } else {
                1.0
            },
        }
    }

    /// Records the backlogs that a job met before it waits, if a limit does not keep it out of the
    /// queue.
    pub(crate) fn has_capacity_for(
        &mut self,
        now: Moment,
        (job, choice): (&Job<'_>, &Choice<'_>),
        caller_bytes: u64,
        settings: &QueueSettings,
    ) -> Result<(), QueueLimit> {
        let targets = choice.input.candidates.iter().map(PolicyCandidate::target);
        self.ledger
            .record_backlogs(now, targets, choice.input.newcomer_cold_tokens);
        self.queue
            .has_capacity(settings, &job.tenant(), caller_bytes)
    }

    /// Counts the request's load on the winner.
    pub(crate) fn reserve(
        &mut self,
        now: Moment,
        job: &Job<'_>,
        choice: &Choice<'_>,
        prompt: PromptLocation,
        queue: &QueueSettings,
    ) -> ReservationId {
        let targets = choice.input.candidates.iter().map(PolicyCandidate::target);
        self.ledger
            .record_backlogs(now, targets, choice.input.newcomer_cold_tokens);
        let winner = choice.winner();
        if job.pin.is_none() && !choice.by_session {
            // A pinned request, or one routed by its session, uses up no turn.
            self.rules
                .of_mut(choice.deciding_policy)
                .chosen(&choice.input, winner);
        }
        if let (Some(keys), Some(note)) = (job.affinity.session, choice.session) {
            let binding = keys.binding(note.id, winner.target());
            self.sessions.bind(now, &binding);
            self.share(|| LoadChange::Session(binding));
        }
        let blocks = choice.input.prompts[winner.overlap.prompt].blocks.clone();
        let mut load = load(job, winner, blocks);
        if self.feed.is_some() {
            load.predicted = predicted(choice);
        }
        let (target, load) = (winner.target(), Arc::new(prompt.counted(load)));
        let id = self.ledger.open(now, target, Arc::clone(&load));
        if let Some(ms) = choice.predicted_ttft_ms()
            && load.reply == ReplyMode::Streamed
            && load.prompt == PromptKnowledge::Blocks
        {
            self.ttft_parity.predict(id, target.worker, ms);
        }
        if let Some(fetch) = winner.fetch.filter(|_| prompt == PromptLocation::Here) {
            let cached = winner.overlap.predicted_cached_tokens;
            let own_tokens = cached.saturating_sub(fetch.tokens);
            let silent_until = choice
                .predicted_ttft_ms()
                .filter(|_| load.reply == ReplyMode::Whole)
                .and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok())
                .map(|left| now + left);
            let open = OpenFetch::new(&fetch, target, own_tokens);
            self.fetches.open(id, open.silent(silent_until));
        }
        if self.ledger.live.is_enabled() {
            let facts = DispatchFacts {
                target,
                prefill_s: whole_prefill_ms(winner, job.prompt.tokens) / 1e3,
                reported_capacity: winner.overlap.candidate.total_blocks,
            };
            self.ledger.live.dispatched(id, facts);
        }
        self.share(|| {
            LoadChange::Opened(OpenLoad {
                id,
                target: Some(target),
                load,
                first_token: false,
                age_ms: 0.0,
            })
        });
        self.target_taken(now, target, queue);
        id
    }

    /// Replaces the estimated work of a reservation by what its engine reported, and stores the
    /// length of its reply.
    pub(crate) fn record_work(&mut self, now: Moment, id: ReservationId, reported: ReportedWork) {
        self.fetches.reported(now, id, reported.cached_tokens);
        if reported.shows_decode_steps {
            self.ledger.set_output_tokens(id, reported.output_tokens);
        }
        if let Some((estimate, target)) = self.queue.charged(id).zip(self.ledger.target(id)) {
            let rates = self.rates.of(target.worker);
            self.queue
                .replace_charge(id, reported.measured(&rates, estimate));
        }
    }

    /// Frees a reservation, and records how the attempt ended; returns its speculation in the index.
    pub(crate) fn close(
        &mut self,
        now: Moment,
        id: ReservationId,
        end: AttemptEnd,
    ) -> Option<SpeculationId> {
        self.queue.end_charge(id, end.prompt_received());
        self.ttft_parity.end(id);
        if !end.prompt_received() {
            self.ledger.live.discard(id);
        }
        let target = self.ledger.target(id)?;
        let succeeded = end.succeeded();
        if let Some(succeeded) = succeeded {
            self.health.observe(now, target.worker, succeeded);
        }
        if succeeded == Some(true)
            && let Some((worker, reply)) = self.ledger.decode_sample(now, id)
        {
            self.rates.observe_decode(now, worker, reply);
        }
        if succeeded == Some(true)
            && !self.fetches.has(id)
            && let Some(sample) = self.ledger.early_reply(now, id)
        {
            self.learn(now, sample);
            self.share(|| LoadChange::Sample(sample));
        }
        self.fetches.end(now, id, succeeded);
        self.ledger.close(now, id)
    }

    /// Moves a reservation from prefill to decode, and learns from its first token.
    pub(crate) fn first_token(&mut self, now: Moment, id: ReservationId) {
        let Some(mut end) = self.ledger.first_token(now, id) else {
            return;
        };
        self.share(|| LoadChange::FirstToken { id });
        if self.fetches.first_token(id) {
            self.learn_fetch(now, id, end.sample.as_mut());
        }
        if let Some(ms) = end.sample.and_then(|sample| sample.first_token_ms) {
            self.ttft_parity.observe(id, ms);
        }
        if let Some(sample) = end.sample {
            self.learn(now, sample);
            self.share(|| LoadChange::Sample(sample));
        }
    }

    /// Learns from a first token how long the read of a request took: what is left of the time when
    /// its other parts are subtracted. It is no sample of the speed at which the worker computes.
    fn learn_fetch(&mut self, now: Moment, id: ReservationId, sample: Option<&mut SpeedSample>) {
        let Some(sample) = sample else {
            return;
        };
        if let Some(prefill) = sample.prefill.take() {
            let rates = self.rates.rates_of(now, sample.worker);
            let (start, tokens) = (f64::from(prefill.start), f64::from(prefill.tokens));
            let others_ms = rates.overhead_ms + rates.prefill_ms(start, tokens);
            self.fetches.timed(id, prefill.ms - others_ms);
        }
    }

    /// Learns the speed of a worker from a reply.
    pub(crate) fn learn(&mut self, now: Moment, sample: SpeedSample) {
        let SpeedSample {
            worker,
            first_token_ms,
            prefill,
        } = sample;
        if let Some(ms) = first_token_ms {
            self.latencies.observe(now, worker, ms);
        }
        match prefill {
            Some(prefill) => self.rates.observe(now, worker, prefill),
            None => self.rates.record_activity(now, worker),
        }
    }

    /// Records the share of the candidates' caches in use.
    pub(crate) fn observe_usage(
        &mut self,
        now: Moment,
        candidates: &[Candidate],
        queue: &QueueSettings,
    ) {
        for candidate in candidates {
            let Some(ratio) = candidate.usage else {
                continue;
            };
            if self
                .ledger
                .observe_usage(candidate.target, ratio, candidate.total_blocks)
            {
                self.queue.usage_changed(
                    now,
                    candidate.target,
                    TargetAvailability::new(&self.ledger, queue),
                );
            }
        }
    }

    /// Records that `target` was given a request.
    pub(crate) fn target_taken(&mut self, now: Moment, target: Target, queue: &QueueSettings) {
        self.queue
            .target_taken(now, target, TargetAvailability::new(&self.ledger, queue));
    }

    /// Records that work ended on `target`: queued requests may go there now.
    pub(crate) fn target_changed(&mut self, now: Moment, target: Target, queue: &QueueSettings) {
        self.queue
            .target_changed(now, target, TargetAvailability::new(&self.ledger, queue));
    }
}

fn load(job: &Job<'_>, winner: &PolicyCandidate<'_>, blocks: SequenceBlocks) -> DispatchLoad {
    let PolicyCandidate {
        overlap: surveyed,
        state,
        ..
    } = winner;
    DispatchLoad {
        prompt_tokens: job.prompt.tokens,
        uncached_tokens: surveyed.uncached_tokens,
        prefill_ms: winner.prefill_ms(),
        interleave_ms: state.interleave_ms(surveyed.uncached_tokens),
        blocks,
        reply: job.reply.mode,
        prompt: job.prompt.knowledge,
        predicted: None,
    }
}

/// Returns the blocks that the winner will be predicted to hold, if it announces none.
fn predicted(choice: &Choice<'_>) -> Option<PredictedPrompt> {
    let surveyed = &choice.winner().overlap;
    let chain = choice.input.prompts[surveyed.prompt].chain.as_ref()?;
    let is_predicted = surveyed.candidate.cache == CacheSource::Predicted && !chain.is_empty();
    is_predicted.then(|| PredictedPrompt {
        namespace: surveyed.candidate.namespace.clone(),
        chain: Arc::clone(chain),
    })
}

/// The part of a query of candidates' states that is equal for all of them.
struct StateQuery {
    now: Moment,
    place: WaitingPlace,
    prompt_tokens: u32,
    newcomer_cold_tokens: f64,
    /// Whether a policy that may decide uses these values, which are expensive to compute.
    first_token_times: bool,
    health: bool,
    /// The prompt's tokens, if its active blocks count as cached where the cache is known by
    /// events.
    credited_tokens: Option<u32>,
}

impl StateQuery {
    fn new(
        (now, place): (Moment, WaitingPlace),
        newcomer_cold_tokens: f64,
        job: &Job<'_>,
        settings: &RoutingSettings,
    ) -> Self {
        let policy = settings.policy_of(job);
        // One of them decides.
        let policies = [
            policy,
            settings.section.fallback,
            settings.lmcache.fallback(),
        ];
        let used = |fact| policies.iter().any(|policy| policy.uses(fact));
        Self {
            now,
            place,
            prompt_tokens: job.prompt.tokens,
            newcomer_cold_tokens,
            first_token_times: used(PolicyFact::FirstTokenTime),
            health: used(PolicyFact::Health),
            // A predicted entry outlives its request by itself.
            credited_tokens: (by_warm(policy, settings) && settings.section.speculative)
                .then_some(job.prompt.tokens),
        }
    }
}

/// Returns whether `warm` may decide.
fn by_warm(policy: Policy, settings: &RoutingSettings) -> bool {
    settings.fallback_of(policy).unwrap_or(policy) == Policy::Warm
}

/// Returns a weight within its range; 1 if it is not a number.
fn overlap_weight(weight: f64) -> f64 {
    if weight.is_finite() {
        weight.clamp(0.0, 100.0)
    } else {
        1.0
    }
}
