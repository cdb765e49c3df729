//! The decision state machine.

use std::{sync::Arc, time::Duration};

use kv_blocks::{Moment, Target, WorkerId};
use kv_index::{KvIndex, Promised};
use parking_lot::Mutex;

use crate::{
    CacheSource, Candidate, Dispatch, ExcludeReason, Excluded, Job, Leg, Method, Plan, Policy, Rates, Refusal,
    Released, ReservationId, Reserved, RoutingSettings, TargetLoad,
    choice::{Choice, Circumstances},
    choose::{order, pick},
    ledger::{Account, Ledger, Load, SequenceBlocks},
    policy::{Contender, Rules, Scene, Standing},
    rates::RateBook,
    survey::{Survey, Surveyed, survey},
};

/// What a reply is taken to be long when nobody says, and at most: limits that clients send are no forecasts.
const EXPECTED_OUTPUT_TOKENS: u32 = 200;
const EXPECTED_OUTPUT_MOST: u32 = 1024;

/// The decision state machine. Shared by all requests; every call holds its one lock for a few lines.
///
/// ```
/// use std::sync::Arc;
///
/// use kv_blocks::{BlockSize, DpRank, Identity, Moment, Namespace, Target, WorkerId};
/// use kv_index::{IndexSettings, KvIndex};
/// use routing::{Answer, CacheSource, Candidate, Dispatch, Job, NoStopwatch, Overrides, Router, RoutingSettings, Tiers};
///
/// let router = Router::new(RoutingSettings::default(), Arc::new(KvIndex::new(IndexSettings::default())));
/// let candidate = Candidate {
///     target: Target { worker: WorkerId(1), rank: DpRank(0) },
///     name: "w1".into(),
///     namespace: Namespace {
///         model: "qwen".into(),
///         lora: None,
///         salt: None,
///         block_size: BlockSize::new(16).unwrap(),
///         identity: Identity::Tokens,
///     },
///     weight: 1.0,
///     cache: CacheSource::Events,
///     total_blocks: None,
///     tiers: Tiers::default(),
///     stream_state: Some("live"),
///     health: "ready",
/// };
/// let job = Job {
///     policy: None,
///     pin: None,
///     blocks: None,
///     prompt_tokens: 100,
///     expected_output_tokens: None,
///     answer: Answer::Streamed,
///     candidates: &[candidate],
///     excluded: &[],
///     random: 7,
///     overrides: Overrides::default(),
///     stopwatch: &NoStopwatch,
/// };
/// let Dispatch::Plan(plan) = router.decide(Moment::START, &job) else { panic!("one worker is free") };
/// assert_eq!(router.load(plan.decode.target).in_flight, 1);
/// router.done(Moment::START, plan.reservation);
/// assert_eq!(router.leases(), 0);
/// ```
#[derive(Debug)]
pub struct Router {
    settings: RoutingSettings,
    index: Arc<KvIndex>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ledger: Ledger,
    rates: RateBook,
    rules: Rules,
}

impl Router {
    /// A router with no load, deciding by what `index` knows.
    pub fn new(settings: RoutingSettings, index: Arc<KvIndex>) -> Self {
        Self { settings, index, state: Mutex::default() }
    }

    /// Finds a target for `job` and counts its load there.
    ///
    /// Never holds a job yet. Refuses only when nothing is eligible.
    pub fn decide(&self, now: Moment, job: &Job<'_>) -> Dispatch {
        let started_us = job.stopwatch.elapsed_us();
        let policy = job.policy.unwrap_or(self.settings.policy);
        let allowed = |candidate: &Candidate| job.pin.is_none_or(|pin| pin.allows(candidate.target));
        let mut excluded = job.excluded.to_vec();
        excluded.extend(job.candidates.iter().filter(|candidate| !allowed(candidate)).map(not_pinned));
        if !job.candidates.iter().any(allowed) {
            return Dispatch::Refused(Refusal { policy, excluded });
        }

        let asked_us = job.stopwatch.elapsed_us();
        let Survey { contenders, hash_us } =
            survey(&self.index, now, job, job.candidates.iter().filter(|candidate| allowed(candidate)));
        let answered_us = job.stopwatch.elapsed_us();

        let choice = self.choose_and_reserve(now, job, policy, contenders);
        if let Some(promised) = self.expect_blocks(now, &choice) {
            self.state.lock().ledger.promised(choice.reservation, promised);
        }

        let lookup_us = answered_us - asked_us - hash_us;
        let method = method(job, choice.order.len());
        let decide_us = job.stopwatch.elapsed_us() - started_us - lookup_us - hash_us;
        let circumstances = Circumstances { policy, method, excluded, hash_us, lookup_us, decide_us };
        Dispatch::Plan(Box::new(Plan {
            reservation: choice.reservation,
            prefill: None,
            decode: Leg { target: choice.winner().target() },
            decision: choice.decision(circumstances, self.settings.kept_candidates),
        }))
    }

    /// The first token of a reservation has come: its prompt is computed.
    pub fn first_token(&self, now: Moment, id: ReservationId) {
        let state = &mut *self.state.lock();
        if let Some(sample) = state.ledger.first_token(now, id) {
            state.rates.observe(sample.worker, sample.tokens, sample.ms);
        }
    }

    /// An attempt came to nothing: the worker refused it or could not be reached. Frees its load as [`Router::done`] does,
    /// and takes back what the index expects of the worker because of it, or equal prompts would be drawn to just the one
    /// that refuses them. What the engine confirmed meanwhile, or another request renewed, stays. Unknown and repeated
    /// ids are ignored.
    pub fn failed(&self, now: Moment, id: ReservationId) {
        let closed = self.state.lock().ledger.close(now, id);
        if let Some(promised) = closed {
            self.index.retract(promised);
        }
    }

    /// A reservation is over, and the worker had the prompt. Unknown and repeated ids are ignored.
    pub fn done(&self, now: Moment, id: ReservationId) {
        self.state.lock().ledger.close(now, id);
    }

    /// Held requests that may go now (none are held yet); also frees what has expired in the index. Call about once a
    /// second.
    pub fn tick(&self, now: Moment) -> Vec<Released> {
        self.state.lock().ledger.pass(now);
        self.index.expire(now);
        Vec::new()
    }

    /// A target's load.
    pub fn load(&self, target: Target) -> TargetLoad {
        self.state.lock().ledger.load(target)
    }

    /// How fast a worker is believed to be.
    pub fn rates(&self, worker: WorkerId) -> Rates {
        self.state.lock().rates.of(worker)
    }

    /// Drops what was learned of a worker that is gone. What it still has in flight stays counted until it is done.
    pub fn forget(&self, worker: WorkerId) {
        let state = &mut *self.state.lock();
        state.ledger.forget(worker);
        state.rates.forget(worker);
        state.rules.forget(worker);
    }

    /// Open reservations.
    pub fn leases(&self) -> usize {
        self.state.lock().ledger.open_reservations()
    }

    /// The part under the lock: prices, choice and reservation see one state of the fleet, so that of two requests at
    /// once the second knows of the first.
    fn choose_and_reserve<'a>(
        &self,
        now: Moment,
        job: &Job<'_>,
        policy: Policy,
        mut surveyed: Vec<Surveyed<'a>>,
    ) -> Choice<'a> {
        if !self.settings.track_active_blocks {
            surveyed.iter_mut().for_each(|surveyed| surveyed.blocks = SequenceBlocks::default());
        }
        let output = job.expected_output_tokens.unwrap_or(EXPECTED_OUTPUT_TOKENS);
        let overlap_weight = job.overrides.overlap_weight.unwrap_or(self.settings.overlap_weight);
        let temperature = job.overrides.temperature.unwrap_or(self.settings.temperature);

        let state = &mut *self.state.lock();
        state.ledger.pass(now);
        state.ledger.admit(now, surveyed.iter().map(|surveyed| surveyed.candidate.target));
        let scene = Scene {
            random: job.random,
            overlap_weight: if overlap_weight.is_finite() { overlap_weight.clamp(0.0, 100.0) } else { 1.0 },
            medium_weights: self.settings.medium_weights,
            prompt_tokens: job.prompt_tokens,
            expected_output_tokens: output.clamp(1, EXPECTED_OUTPUT_MOST),
            contenders: surveyed
                .into_iter()
                .map(|surveyed| Contender { standing: state.standing(now, &surveyed), surveyed })
                .collect(),
        };
        let rule = state.rules.of(policy);
        let prices = rule.price(&scene);
        let order = order(&prices, job.random);
        let place = if rule.draws() { pick(&prices, &order, temperature, job.random) } else { 0 };
        let Contender { surveyed, standing } = &scene.contenders[order[place]];
        if job.pin.is_none() {
            // Who was asked for by name has not used up a turn.
            rule.chosen(&surveyed.candidate.namespace.model, surveyed.candidate.target);
        }
        let (reservation, added) = state.ledger.open(now, load(job, surveyed, standing));
        let reserved = Reserved {
            prefill_tokens: surveyed.uncached_tokens,
            decode_blocks: u32::try_from(added).unwrap_or(u32::MAX),
        };
        Choice { unit: state.rules.of(policy).unit(), scene, prices, order, place, reservation, reserved }
    }

    /// Tells the index what the winner is about to hold.
    ///
    /// Without events that is all it will ever know. With events the entry bridges the time until the engine says so
    /// itself: the time to live counts from the end of the queue, or a burst behind a long queue would find nothing.
    fn expect_blocks(&self, now: Moment, choice: &Choice<'_>) -> Option<Promised> {
        let Contender { surveyed, standing } = choice.winner();
        let candidate = surveyed.candidate;
        let (target, namespace) = (candidate.target, &candidate.namespace);
        let chain = surveyed.chain.as_deref().filter(|chain| !chain.is_empty())?;
        match candidate.cache {
            CacheSource::Predicted => {
                Some(self.index.predict(target, namespace, chain, now, self.settings.prediction_ttl))
            }
            CacheSource::Events if self.settings.speculative => {
                let ttl = self.settings.speculative_ttl + Duration::from_secs_f64(standing.backlog_ms / 1e3);
                Some(self.index.speculate(target, namespace, chain, now, ttl))
            }
            CacheSource::Events => None,
        }
    }
}

impl State {
    fn standing(&self, now: Moment, surveyed: &Surveyed<'_>) -> Standing {
        let candidate = surveyed.candidate;
        let account = self.ledger.account(candidate.target);
        let known = |figure: fn(&Account, Moment) -> f64| account.map_or(0.0, |account| figure(account, now));
        let load = account.map_or_else(TargetLoad::default, Account::load);
        let new_blocks =
            || account.map_or_else(|| surveyed.blocks.count(), |account| account.new_blocks(&surveyed.blocks));
        Standing {
            load,
            backlog_ms: known(Account::backlog_ms),
            decode_tokens: account.map_or(0, Account::decode_tokens),
            work_ms: known(Account::work_ms),
            cold_tokens: known(Account::cold_tokens),
            last_dispatch: account.map_or(0, Account::last_dispatch),
            blocks_after: candidate.total_blocks.map(|_| load.decode_blocks + new_blocks()),
            rates: self.rates.of(candidate.target.worker),
        }
    }
}

fn load(job: &Job<'_>, surveyed: &Surveyed<'_>, standing: &Standing) -> Load {
    Load {
        target: surveyed.candidate.target,
        prompt_tokens: job.prompt_tokens,
        uncached_tokens: surveyed.uncached_tokens,
        prefill_ms: standing.rates.prefill_ms(f64::from(surveyed.uncached_tokens)),
        interleave_ms: standing.rates.step_ms(standing.load.decode_sequences, standing.decode_tokens),
        blocks: surveyed.blocks.clone(),
        answer: job.answer,
    }
}

fn method(job: &Job<'_>, eligible: usize) -> Method {
    match (job.pin, eligible) {
        (Some(_), _) => Method::Pinned,
        (None, 1) => Method::OnlyCandidate,
        (None, _) => Method::Policy,
    }
}

fn not_pinned(candidate: &Candidate) -> Excluded {
    Excluded { target: candidate.target, name: Arc::clone(&candidate.name), reason: ExcludeReason::NotPinned }
}
