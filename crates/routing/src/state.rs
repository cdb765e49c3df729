//! The router's state between decisions, and the operations on it under its lock.
//!
//! [`RouterState::choose`] reads and [`RouterState::reserve`] writes: a choice that is not reserved
//! leaves no trace.

use kv_blocks::{Moment, Target};
use kv_index::SpeculationId;

use crate::{
    CacheSource, Candidate, Job, Policy, ReservationId, RoutingSettings, SessionMode, SessionState,
    TargetLoad,
    choice::Choice,
    choose::{order, pick},
    health::HealthTable,
    latency::LatencyTable,
    ledger::{DispatchLoad, KnownBlocks, Ledger, SequenceBlocks, TargetAccount},
    output_length::OutputLength,
    policy::{CandidateState, FALLBACK, PolicyCandidate, PolicyInput, PolicyRules},
    prompt_location::PromptLocation,
    queue::{QueueSettings, TargetGate, WaitQueue},
    rates::RateTable,
    session::{KnownSession, Ranking, SessionOutcome, SessionTable},
    survey::{CandidateOverlap, NamespacePrompt, OverlapSurvey},
};

/// Load, learned rates and the policies' memory.
#[derive(Debug)]
pub(crate) struct RouterState {
    pub(crate) ledger: Ledger,
    pub(crate) rates: RateTable,
    pub(crate) latencies: LatencyTable,
    pub(crate) health: HealthTable,
    pub(crate) rules: PolicyRules,
    pub(crate) queue: WaitQueue,
    pub(crate) output: OutputLength,
    pub(crate) sessions: SessionTable,
}

impl RouterState {
    pub(crate) fn new(settings: &RoutingSettings) -> Self {
        Self {
            ledger: Ledger::default(),
            rates: RateTable::default(),
            latencies: LatencyTable::default(),
            health: HealthTable::default(),
            rules: PolicyRules::new(settings),
            queue: WaitQueue::default(),
            output: OutputLength::default(),
            sessions: SessionTable::default(),
        }
    }

    /// Computes the candidates' costs and picks one. Changes nothing but the state that passing
    /// time changes by itself.
    pub(crate) fn choose<'a>(
        &mut self,
        now: Moment,
        job: &Job<'a>,
        policy: Policy,
        settings: &RoutingSettings,
        survey: OverlapSurvey<'a>,
    ) -> Choice<'a> {
        let mode = settings.session.effective_under(policy);
        let keys = job.session.filter(|_| mode != SessionMode::Off);
        let session = keys.map(|keys| KnownSession {
            keys,
            binding: self.sessions.find(now, keys),
        });
        let surveyed = &survey.candidates;
        let targets = surveyed.iter().map(|surveyed| surveyed.candidate.target);
        self.ledger.expire_prefills_on(now, targets.clone());
        let newcomer_cold_tokens = self.ledger.newcomer_cold_tokens(now, targets);
        let asked = LoadQuery {
            now,
            policies: [policy, settings.fallback, settings.lmcache.fallback()],
            newcomer_cold_tokens,
            // A predicted entry outlives its request by itself.
            credited_tokens: (by_warm(policy, settings) && settings.speculative)
                .then_some(job.prompt_tokens),
        };
        let scene = self.policy_input(&asked, job, settings, survey);
        let ruling = policy.deciding_policy(settings, &scene, |scene| self.rules.scored(scene));
        let rule = self.rules.of(ruling);
        let mut prices = rule.price(&scene);
        if job.pin.is_none() && policy.fell_back_to(ruling) {
            prices
                .iter_mut()
                .for_each(|price| price.terms = price.terms.of_fallback());
        }
        let order = order(&prices, job.random);
        let temperature = job.overrides.temperature.unwrap_or(settings.temperature);
        let chosen = if rule.draws() {
            pick(&prices, &order, temperature, job.random)
        } else {
            0
        };
        let line = Ranking {
            candidates: &scene.candidates,
            prices: &prices,
            order: &order,
            chosen,
        };
        let placed = session.and_then(|known| SessionOutcome::of(known, mode, job.pin, line));
        let place = placed.map_or(chosen, |(_, place)| place);
        let session = placed.map(|(outcome, _)| outcome);
        if session.is_some_and(|session| session.note.state == SessionState::MovedFull) {
            prices
                .iter_mut()
                .for_each(|price| price.terms = price.terms.of_full_session());
        }
        let label = match job.pin {
            // A pin or a session placed this request, not the policy.
            Some(_) => None,
            None if session.is_some_and(|session| session.decided) => None,
            None if policy.fell_back_to(ruling) => Some(FALLBACK),
            None => prices[order[place]].label,
        };
        Choice {
            unit: rule.unit(),
            policy,
            ruling,
            session,
            label,
            newcomer_cold_tokens,
            input: scene,
            prices,
            order,
            place,
        }
    }

    /// Records the backlogs that a job met before it waits; `false`: the queue is full.
    pub(crate) fn has_room_for(
        &mut self,
        now: Moment,
        choice: &Choice<'_>,
        caller_bytes: u64,
        settings: &QueueSettings,
    ) -> bool {
        let targets = choice.input.candidates.iter().map(PolicyCandidate::target);
        self.ledger
            .record_backlogs(now, targets, choice.newcomer_cold_tokens);
        self.queue.has_room(settings, caller_bytes)
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
            .record_backlogs(now, targets, choice.newcomer_cold_tokens);
        let winner = choice.winner();
        if job.pin.is_none() && !choice.by_session() {
            // A pinned request, or one placed by its session, uses up no turn.
            self.rules.of(choice.ruling).chosen(&choice.input, winner);
        }
        if let (Some(keys), Some(course)) = (job.session, choice.session) {
            self.sessions.bind(now, keys, course, winner.target());
        }
        let blocks = choice.input.prompts[winner.overlap.prompt].blocks.clone();
        let reservation = self
            .ledger
            .open(now, prompt.counted(load(job, winner, blocks)));
        self.queue
            .target_taken(now, winner.target(), TargetGate::new(&self.ledger, queue));
        reservation
    }

    /// Frees a reservation, and records whether the worker received the prompt; returns its
    /// speculation in the index.
    pub(crate) fn close(
        &mut self,
        now: Moment,
        id: ReservationId,
        taken: bool,
    ) -> Option<SpeculationId> {
        let target = self.ledger.target(id)?;
        self.health.observe(now, target.worker, taken);
        self.ledger.close(now, id)
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
                    TargetGate::new(&self.ledger, queue),
                );
            }
        }
    }

    /// Records that work ended on `target`: queued requests may go there now.
    pub(crate) fn target_changed(&mut self, now: Moment, target: Target, queue: &QueueSettings) {
        self.queue
            .target_changed(now, target, TargetGate::new(&self.ledger, queue));
    }

    /// Returns the inputs of the policies.
    fn policy_input<'a>(
        &self,
        asked: &LoadQuery,
        job: &Job<'a>,
        settings: &RoutingSettings,
        survey: OverlapSurvey<'a>,
    ) -> PolicyInput<'a> {
        let OverlapSurvey {
            candidates,
            prompts,
            ..
        } = survey;
        PolicyInput {
            random: job.random,
            affinity: job.affinity,
            prefix_holders: job.prefix_holders,
            overlap_weight: overlap_weight(job, settings),
            medium_weights: job
                .overrides
                .medium_weights
                .unwrap_or(settings.medium_weights),
            prompt_tokens: job.prompt_tokens,
            expected_output_tokens: self.output.expected(job.expected_output_tokens),
            candidates: self.policy_candidates(asked, candidates, &prompts),
            prompts,
        }
    }

    /// Returns the surveyed candidates with their states.
    fn policy_candidates<'a>(
        &self,
        asked: &LoadQuery,
        surveyed: Vec<CandidateOverlap<'a>>,
        prompts: &[NamespacePrompt],
    ) -> Vec<PolicyCandidate<'a>> {
        let known: Vec<KnownBlocks> = prompts
            .iter()
            .map(|prompt| self.ledger.known_blocks(&prompt.blocks))
            .collect();
        let candidates = surveyed.into_iter().map(|mut surveyed| {
            let active = known[surveyed.prompt].of(surveyed.candidate.target);
            let credited = asked
                .credited_tokens
                .filter(|_| surveyed.candidate.cache == CacheSource::Events);
            if let Some(prompt_tokens) = credited {
                surveyed.credit(active, prompt_tokens);
            }
            let new_blocks = prompts[surveyed.prompt].blocks.count() - active as u64;
            PolicyCandidate {
                state: self.standing(asked, surveyed.candidate.target, new_blocks),
                overlap: surveyed,
            }
        });
        candidates.collect()
    }

    /// Returns the state of `target`; `new_blocks` blocks of the prompt are not active there.
    fn standing(&self, asked: &LoadQuery, target: Target, new_blocks: u64) -> CandidateState {
        let &LoadQuery {
            now,
            policies,
            newcomer_cold_tokens,
            ..
        } = asked;
        let account = self.ledger.account(target);
        let load = account.map_or_else(TargetLoad::default, TargetAccount::load);
        // Values that are expensive to compute are used by some policies only.
        let rules = |policy: fn(Policy) -> bool| policies.into_iter().any(policy);
        CandidateState {
            load,
            backlog_ms: account.map_or(0.0, |account| account.backlog_ms(now)),
            mean_backlog_ms: account.map_or(0.0, TargetAccount::mean_backlog_ms),
            decode_tokens: account.map_or(0, TargetAccount::decode_tokens),
            work_ms: account.map_or(0.0, |account| account.work_ms(now)),
            cold_tokens: account.map_or(newcomer_cold_tokens, |account| account.cold_tokens(now)),
            last_dispatch: account.map_or(0, TargetAccount::last_dispatch),
            blocks_after: load.decode_blocks + new_blocks,
            rates: self.rates.rates_of(now, target.worker),
            first_token_ms: rules(|policy| policy == Policy::LeastLatency)
                .then(|| self.latencies.mean_ms(now, target.worker))
                .flatten(),
            health: if rules(Policy::needs_prefix_holders) {
                self.health.of(now, target.worker)
            } else {
                1.0
            },
        }
    }
}

/// The part of a load query that is equal for all targets.
struct LoadQuery {
    now: Moment,
    /// One of them decides.
    policies: [Policy; 3],
    newcomer_cold_tokens: f64,
    /// The prompt's tokens, if its active blocks count as cached where the cache is known by
    /// events.
    credited_tokens: Option<u32>,
}

/// Returns whether `warm` may decide.
fn by_warm(policy: Policy, settings: &RoutingSettings) -> bool {
    policy == Policy::Warm || policy.needs_lmcache() && settings.lmcache.fallback() == Policy::Warm
}

fn overlap_weight(job: &Job<'_>, settings: &RoutingSettings) -> f64 {
    let weight = job
        .overrides
        .overlap_weight
        .unwrap_or(settings.overlap_weight);
    if weight.is_finite() {
        weight.clamp(0.0, 100.0)
    } else {
        1.0
    }
}

fn load(job: &Job<'_>, winner: &PolicyCandidate<'_>, blocks: SequenceBlocks) -> DispatchLoad {
    let PolicyCandidate {
        overlap: surveyed,
        state: standing,
    } = winner;
    DispatchLoad {
        target: surveyed.candidate.target,
        prompt_tokens: job.prompt_tokens,
        uncached_tokens: surveyed.uncached_tokens,
        prefill_ms: standing.rates.prefill_ms(
            f64::from(job.prompt_tokens.saturating_sub(surveyed.uncached_tokens)),
            f64::from(surveyed.uncached_tokens),
        ),
        interleave_ms: standing.interleave_ms(surveyed.uncached_tokens),
        blocks,
        answer: job.answer,
    }
}
