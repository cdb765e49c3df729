//! The router's state between decisions, and the operations on it under its lock.
//!
//! [`RouterState::choose`] reads and [`RouterState::reserve`] writes: a choice that is not reserved
//! leaves no trace.

mod inputs;

use kv_blocks::{Moment, Target};
use kv_index::SpeculationId;

use crate::{
    Candidate, Job, ReservationId, RoutingSettings, SessionMode, SessionState,
    choice::Choice,
    choose::{order, pick},
    health::HealthTable,
    latency::LatencyTable,
    ledger::{DispatchLoad, Ledger, SequenceBlocks},
    output_length::OutputLength,
    policy::{input::PolicyCandidate, rules::PolicyRules},
    prompt_location::PromptLocation,
    queue::{QueueSettings, TargetGate, WaitQueue},
    rates::RateTable,
    session::{KnownSession, Ranking, SessionOutcome, SessionTable},
    survey::OverlapSurvey,
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
        settings: &RoutingSettings,
        survey: OverlapSurvey<'a>,
    ) -> Choice<'a> {
        let policy = settings.policy_of(job);
        let mode = settings.section.session.mode.effective_under(policy);
        let keys = job.affinity.session.filter(|_| mode != SessionMode::Off);
        let session = keys.map(|keys| KnownSession {
            keys,
            binding: self.sessions.find(now, keys),
        });
        let input = self.policy_input(now, job, settings, survey);
        let ruling = self.rules.deciding_policy(policy, settings, &input);
        let rule = self.rules.of(ruling);
        let mut prices = rule.price(&input);
        if job.pin.is_none() && policy.fell_back_to(ruling) {
            prices
                .iter_mut()
                .for_each(|price| price.terms = price.terms.of_fallback());
        }
        let order = order(&prices, job.random);
        let own_temperature = job.overrides.temperature;
        let temperature = own_temperature.unwrap_or(settings.section.temperature);
        let chosen = if rule.draws() {
            pick(&prices, &order, temperature, job.random)
        } else {
            0
        };
        let line = Ranking {
            candidates: &input.candidates,
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
        Choice {
            unit: rule.unit(),
            policy,
            ruling,
            session,
            input,
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
            .record_backlogs(now, targets, choice.input.newcomer_cold_tokens);
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
            .record_backlogs(now, targets, choice.input.newcomer_cold_tokens);
        let winner = choice.winner();
        if job.pin.is_none() && !choice.by_session() {
            // A pinned request, or one placed by its session, uses up no turn.
            self.rules
                .of_mut(choice.ruling)
                .chosen(&choice.input, winner);
        }
        if let (Some(keys), Some(course)) = (job.affinity.session, choice.session) {
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
}

fn load(job: &Job<'_>, winner: &PolicyCandidate<'_>, blocks: SequenceBlocks) -> DispatchLoad {
    let PolicyCandidate {
        overlap: surveyed,
        state: standing,
    } = winner;
    DispatchLoad {
        target: surveyed.candidate.target,
        prompt_tokens: job.prompt.tokens,
        uncached_tokens: surveyed.uncached_tokens,
        prefill_ms: standing.rates.prefill_ms(
            f64::from(job.prompt.tokens.saturating_sub(surveyed.uncached_tokens)),
            f64::from(surveyed.uncached_tokens),
        ),
        interleave_ms: standing.interleave_ms(surveyed.uncached_tokens),
        blocks,
        answer: job.reply.mode,
    }
}
