//! What the router remembers between decisions, and what it does with it under its lock.
//!
//! [`State::choose`] looks and [`State::reserve`] remembers: a choice that is not reserved leaves no trace.

use kv_blocks::Moment;
use kv_index::Promised;

use crate::{
    CacheSource, Job, Policy, ReservationId, RoutingSettings, ScoredCounts, SessionMode, SessionState, TargetLoad,
    choice::Choice,
    choose::{order, pick},
    health::HealthBook,
    latency::LatencyBook,
    ledger::{Account, Ledger, Load},
    output_length::OutputLength,
    policy::{Contender, FALLBACK, Rules, Scene, Standing},
    pools::Prompt,
    queue::Queue,
    rates::RateBook,
    session::{Course, SessionBook},
    survey::Surveyed,
};

/// Load, learned rates and the policies' memory.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) rates: RateBook,
    pub(crate) latencies: LatencyBook,
    pub(crate) health: HealthBook,
    pub(crate) rules: Rules,
    pub(crate) scored: ScoredCounts,
    pub(crate) queue: Queue,
    pub(crate) output: OutputLength,
    pub(crate) sessions: SessionBook,
}

impl State {
    pub(crate) fn new(settings: &RoutingSettings) -> Self {
        Self {
            ledger: Ledger::default(),
            rates: RateBook::default(),
            latencies: LatencyBook::default(),
            health: HealthBook::default(),
            rules: Rules::new(settings),
            scored: ScoredCounts::default(),
            queue: Queue::default(),
            output: OutputLength::default(),
            sessions: SessionBook::default(),
        }
    }

    /// Prices the contenders and picks one. Changes nothing but what the passing of time changes by itself.
    pub(crate) fn choose<'a>(
        &mut self,
        now: Moment,
        job: &Job<'a>,
        policy: Policy,
        settings: &RoutingSettings,
        surveyed: Vec<Surveyed<'a>>,
    ) -> Choice<'a> {
        let overlap_weight = job.overrides.overlap_weight.unwrap_or(settings.overlap_weight);
        let temperature = job.overrides.temperature.unwrap_or(settings.temperature);
        let mode = settings.session.under(policy);
        let keys = job.session.filter(|_| mode != SessionMode::Off);
        let found = keys.and_then(|keys| self.sessions.find(now, keys));
        self.ledger.pass(now);
        let targets = surveyed.iter().map(|surveyed| surveyed.candidate.target);
        let newcomer_cold_tokens = self.ledger.newcomer_cold_tokens(now, targets);
        let scene = Scene {
            random: job.random,
            affinity: job.affinity,
            prefix_holders: job.prefix_holders,
            overlap_weight: if overlap_weight.is_finite() { overlap_weight.clamp(0.0, 100.0) } else { 1.0 },
            medium_weights: settings.medium_weights,
            prompt_tokens: job.prompt_tokens,
            expected_output_tokens: self.output.expected(job.expected_output_tokens),
            contenders: surveyed
                .into_iter()
                .map(|mut surveyed| {
                    let active = self.ledger.known_blocks(surveyed.candidate.target, &surveyed.blocks);
                    // What is predicted outlives its requests by itself.
                    let bridged = settings.speculative && surveyed.candidate.cache == CacheSource::Events;
                    if policy == Policy::Warm && bridged {
                        surveyed.credit(active, job.prompt_tokens);
                    }
                    let standing = self.standing(now, &surveyed, active, newcomer_cold_tokens);
                    Contender { standing, surveyed }
                })
                .collect(),
        };
        let ruling = policy.ruling(settings, &scene, |scene| self.rules.scored(scene));
        let rule = self.rules.of(ruling);
        let mut prices = rule.price(&scene);
        if job.pin.is_none() && policy.fell_back_to(ruling) {
            prices.iter_mut().for_each(|price| price.terms = price.terms.of_fallback());
        }
        let order = order(&prices, job.random);
        let mut place = if rule.draws() { pick(&prices, &order, temperature, job.random) } else { 0 };
        let session = keys.and_then(|keys| {
            let line: Vec<_> = order.iter().map(|i| (&scene.contenders[*i], prices[*i].cost)).collect();
            Course::of((keys, found), mode, job.pin, &line, &mut place)
        });
        if session.is_some_and(|session| session.note.state == SessionState::MovedFull) {
            prices.iter_mut().for_each(|price| price.terms = price.terms.of_full_session());
        }
        let label = match job.pin {
            // Who was asked for by name was not placed by the policy, nor was who has the session.
            Some(_) => None,
            None if session.is_some_and(|session| session.decided) => None,
            None if policy.fell_back_to(ruling) => Some(FALLBACK),
            None => prices[order[place]].label,
        };
        Choice { unit: rule.unit(), policy, ruling, session, label, newcomer_cold_tokens, scene, prices, order, place }
    }

    /// Counts the request's load on the winner.
    pub(crate) fn reserve(&mut self, now: Moment, job: &Job<'_>, choice: &Choice<'_>, prompt: Prompt) -> ReservationId {
        let targets = choice.scene.contenders.iter().map(Contender::target);
        self.ledger.admit(now, targets.clone(), choice.newcomer_cold_tokens);
        self.ledger.note_backlogs(now, targets);
        let winner = choice.winner();
        let asked_policy = job.pin.is_none() && !choice.by_session();
        if asked_policy {
            // Who was asked for by name, or has the session, has not used up a turn.
            self.rules.of(choice.ruling).chosen(&choice.scene, winner);
        }
        if choice.policy.asks_for_holders() && asked_policy {
            self.scored.count(choice.ruling);
        }
        if let (Some(keys), Some(course)) = (job.session, choice.session) {
            self.sessions.bind(now, keys, course, winner.target());
        }
        self.ledger.open(now, prompt.counted(load(job, winner)))
    }

    /// Frees a reservation, and notes whether the worker had the prompt; returns what the index expects because of it.
    pub(crate) fn close(&mut self, now: Moment, id: ReservationId, taken: bool) -> Option<Promised> {
        let target = self.ledger.target(id)?;
        self.health.observe(now, target.worker, taken);
        self.ledger.close(now, id)
    }

    fn standing(&self, now: Moment, surveyed: &Surveyed<'_>, active: usize, newcomer_cold_tokens: f64) -> Standing {
        let target = surveyed.candidate.target;
        let account = self.ledger.account(target);
        let figure = |figure: fn(&Account, Moment) -> f64| account.map_or(0.0, |account| figure(account, now));
        let load = account.map_or_else(TargetLoad::default, Account::load);
        Standing {
            load,
            backlog_ms: figure(Account::backlog_ms),
            mean_backlog_ms: account.map_or(0.0, Account::mean_backlog_ms),
            decode_tokens: account.map_or(0, Account::decode_tokens),
            work_ms: figure(Account::work_ms),
            cold_tokens: account.map_or(newcomer_cold_tokens, |account| account.cold_tokens(now)),
            last_dispatch: account.map_or(0, Account::last_dispatch),
            blocks_after: load.decode_blocks + surveyed.blocks.count() - active as u64,
            rates: self.rates.of(target.worker),
            first_token_ms: self.latencies.mean_ms(now, target.worker),
            health: self.health.of(now, target.worker),
        }
    }
}

fn load(job: &Job<'_>, winner: &Contender<'_>) -> Load {
    let Contender { surveyed, standing } = winner;
    Load {
        target: surveyed.candidate.target,
        prompt_tokens: job.prompt_tokens,
        uncached_tokens: surveyed.uncached_tokens,
        prefill_ms: standing.rates.prefill_ms(
            f64::from(job.prompt_tokens.saturating_sub(surveyed.uncached_tokens)),
            f64::from(surveyed.uncached_tokens),
        ),
        interleave_ms: standing.interleave_ms(surveyed.uncached_tokens),
        blocks: surveyed.blocks.clone(),
        answer: job.answer,
    }
}
