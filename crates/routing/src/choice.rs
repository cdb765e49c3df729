//! A choice: the costs of the candidates, their order, and the winner; and the decision that the
//! router returns of it.

use std::{mem, sync::Arc};

use crate::{
    CacheUse, CostUnit, Decision, ExcludedTarget, FetchNote, Job, Method, Pin, Policy, PrefillNote,
    Refusal, ReservedLoad, RoutingSettings, RunnerUp, ScoredCandidate, SessionNote, SessionState,
    Winner,
    admission::RoomShortage,
    fetch::FetchOption,
    policy::{
        composite::cached_tokens,
        cost::{CandidateCost, FALLBACK, order, pick},
        rule::{PolicyCandidate, PolicyFact, PolicyInput, PolicyRules},
    },
    pool_split::{PoolSplit, PromptLocation},
    queue::{RequestWork, decode_ms},
    survey::SurveyTiming,
};

/// A winner and the candidates that it was compared with.
#[derive(Debug)]
pub(crate) struct Choice<'a> {
    pub(crate) input: PolicyInput<'a>,
    /// One per candidate.
    pub(crate) prices: Vec<CandidateCost>,
    /// Candidates by cost, cheapest first.
    pub(crate) order: Vec<usize>,
    /// The winner's position in `order`.
    pub(crate) position: usize,
    pub(crate) unit: CostUnit,
    /// The policy of the request.
    pub(crate) policy: Policy,
    /// The policy that computed the costs: another one where the first needs a key that the request
    /// does not have.
    pub(crate) deciding_policy: Policy,
    /// The effect on the request's session, if it has one.
    pub(crate) session: Option<SessionNote>,
    /// The session chose the target, whatever the policy chose.
    pub(crate) by_session: bool,
    /// Targets that may not take the request, with the reasons.
    pub(crate) excluded: Vec<ExcludedTarget>,
    pub(crate) timing: SurveyTiming,
}

/// Why no target was chosen.
#[derive(Debug)]
pub(crate) enum PlacementError {
    /// No target may take the request.
    Nobody(Refusal),
    /// All targets that may take the request are above its busy threshold.
    AllBusy(Refusal),
    /// The request is cold on all targets that may take it, and has room on none.
    NoRoom(Refusal, Box<RoomShortage>),
}

impl PlacementError {
    pub(crate) fn refusal(self) -> Refusal {
        let (Self::Nobody(refusal) | Self::AllBusy(refusal) | Self::NoRoom(refusal, _)) = self;
        refusal
    }
}

impl<'a> Choice<'a> {
    /// Computes the candidates' costs and picks one, whatever the request's session is.
    pub(crate) fn of(
        rules: &PolicyRules,
        job: &Job<'_>,
        settings: &RoutingSettings,
        mut input: PolicyInput<'a>,
    ) -> Self {
        let policy = settings.policy_of(job);
        let deciding_policy = rules.deciding_policy(policy, settings, &input);
        let rule = rules.of(deciding_policy);
        let mut prices = rule.price(&input);
        if job.pin.is_none() && policy.fell_back_to(deciding_policy) {
            for price in &mut prices {
                price.terms = price.terms.of_fallback();
            }
        }
        for (contender, price) in input.candidates.iter_mut().zip(&prices) {
            contender.settle_fetch(price.fetches);
        }
        let order = order(&prices, job.random);
        let usual = settings.section.temperature;
        let position = if rule.draws() {
            let temperature = job.overrides.temperature.unwrap_or(usual);
            pick(&prices, &order, temperature, job.random)
        } else {
            0
        };
        Self {
            unit: rule.unit(),
            input,
            prices,
            order,
            position,
            policy,
            deciding_policy,
            session: None,
            by_session: false,
            excluded: Vec::new(),
            timing: SurveyTiming::default(),
        }
    }

    /// Returns whether another policy than the requested one computed the costs.
    pub(crate) fn fell_back(&self) -> bool {
        self.policy.fell_back_to(self.deciding_policy)
    }

    /// Returns the candidate at this position in the order.
    pub(crate) fn candidate(&self, position: usize) -> &PolicyCandidate<'a> {
        &self.input.candidates[self.order[position]]
    }

    /// Returns the cost of the candidate at this position in the order.
    pub(crate) fn cost(&self, position: usize) -> f64 {
        self.prices[self.order[position]].cost
    }

    /// Returns the winning candidate.
    pub(crate) fn winner(&self) -> &PolicyCandidate<'a> {
        self.candidate(self.position)
    }

    /// Returns the predicted time to first token on the winner; `None` without a time model.
    pub(crate) fn predicted_ttft_ms(&self) -> Option<f64> {
        self.prices[self.order[self.position]].predicted_ttft_ms
    }

    /// Returns the time to first token on the winner from the request's own beginning there.
    pub(crate) fn own_ttft_ms(&self) -> f64 {
        let winner = self.winner();
        match self.predicted_ttft_ms() {
            Some(ms) => (ms - winner.state.backlog_ms).max(0.0),
            None => winner.state.rates.overhead_ms + winner.prefill_ms(),
        }
    }

    /// Chooses the candidate at this position, whatever the policy and the session chose.
    pub(crate) fn move_to(&mut self, position: usize) {
        if position == self.position {
            return;
        }
        (self.position, self.by_session) = (position, false);
        if let Some(note) = &mut self.session
            && note.state == SessionState::Same
        {
            note.state = SessionState::MovedByPolicy;
        }
    }

    /// Returns the estimated work of the request on the winner, which generates.
    pub(crate) fn work(&self, prompt_tokens: u32, prompt: PromptLocation) -> RequestWork {
        let winner = self.winner();
        let output = self.input.expected_output_tokens;
        RequestWork {
            prefill_ms: match prompt {
                PromptLocation::Here => winner.prefill_ms(),
                PromptLocation::Elsewhere => 0.0,
            },
            decode_ms: decode_ms(&winner.state.rates, prompt_tokens, output),
        }
    }

    /// Returns the decision for the receipt, with at most `limit` candidates (at least winner and
    /// runner-up).
    pub(crate) fn decision(
        mut self,
        split: &PoolSplit<'_>,
        prefill: Option<PrefillNote>,
        limit: usize,
    ) -> Decision {
        let job = &split.decode;
        let timing = self.timing.decision(job.stopwatch);
        let method = self.method(job.pin);
        let runner_up = (0..self.order.len()).find(|position| *position != self.position);
        let mut excluded = mem::take(&mut self.excluded);
        let pool = job.prefill.iter();
        excluded.extend(pool.flat_map(|pool| pool.targets.excluded).cloned());
        Decision {
            policy: self.policy,
            method,
            label: self.label().filter(|_| method != Method::Pinned),
            cache_use: (method != Method::Pinned)
                .then(|| self.cache_use())
                .flatten(),
            cost_unit: self.unit,
            candidates: self
                .reported_positions(runner_up, limit.max(2))
                .into_iter()
                .map(|position| self.row(position))
                .collect(),
            candidates_total: self.order.len(),
            excluded,
            winner: self.reserved_winner(split.prompt(self.winner())),
            runner_up: runner_up.map(|position| self.runner_up(position)),
            session: self.session,
            prefill,
            timing,
        }
    }

    fn method(&self, pin: Option<Pin>) -> Method {
        match (pin, self.order.len()) {
            (Some(_), _) => Method::Pinned,
            (None, 1) => Method::OnlyCandidate,
            (None, _) if self.by_session => Method::Session,
            (None, _) if self.fell_back() => Method::Fallback,
            (None, _) => Method::Policy,
        }
    }

    /// Returns the winner with the load that it gets.
    fn reserved_winner(&self, prompt: PromptLocation) -> Winner {
        let surveyed = &self.winner().overlap;
        Winner {
            target: surveyed.candidate.target,
            name: Arc::clone(&surveyed.candidate.name),
            predicted_cached_tokens: surveyed.predicted_cached_tokens,
            announced_cached_tokens: surveyed.announced_cached_tokens,
            block_size: surveyed.candidate.namespace.block_size.tokens(),
            prompt_blocks: surveyed.prompt_blocks,
            reserved: ReservedLoad {
                prefill_tokens: match prompt {
                    PromptLocation::Here => surveyed.uncached_tokens,
                    PromptLocation::Elsewhere => 0,
                },
                decode_blocks: u32::try_from(self.winner().new_blocks()).unwrap_or(u32::MAX),
            },
            slo: None,
        }
    }

    /// Returns the candidate at this position as the runner-up.
    fn runner_up(&self, position: usize) -> RunnerUp {
        RunnerUp {
            target: self.candidate(position).target(),
            regret_ms: (self.unit == CostUnit::Ms)
                .then(|| self.cost(position) - self.cost(self.position)),
        }
    }

    /// Returns how the policy selected the target of a request without a pin, for policies with several ways.
    fn label(&self) -> Option<&'static str> {
        if self.by_session {
            None
        } else if self.fell_back() {
            Some(FALLBACK)
        } else {
            self.prices[self.order[self.position]].label
        }
    }

    /// Returns the effect of cache knowledge on the choice for a request without a pin.
    fn cache_use(&self) -> Option<CacheUse> {
        let warm = |contender: &PolicyCandidate<'_>| contender.overlap.warm.total();
        let (decided, tokens) = if self.by_session {
            return None;
        } else if self.policy.needs_prefix_holders() {
            let tokens = cached_tokens(&self.input, self.winner()).map_or(0, |(tokens, _)| tokens);
            (self.deciding_policy == Policy::Composite, tokens)
        } else if self.policy.uses(PolicyFact::BlockOverlap) {
            (
                self.input
                    .candidates
                    .iter()
                    .any(|contender| warm(contender) > 0),
                warm(self.winner()),
            )
        } else {
            return None;
        };
        if !decided {
            return Some(CacheUse::Fallback);
        }
        // Streams may report more tokens than this prompt has; a prompt without tokens is cached
        // nowhere.
        let overlap = f64::from(tokens) / f64::from(self.input.prompt_tokens.max(1));
        Some(CacheUse::Decided {
            overlap: overlap.min(1.0),
        })
    }

    /// Returns the positions to report, best first: winner, runner-up, warmest, least loaded, then by
    /// rank.
    fn reported_positions(&self, runner_up: Option<usize>, limit: usize) -> Vec<usize> {
        let positions = || 0..self.order.len();
        if self.order.len() <= limit {
            return positions().collect();
        }
        // Of equals the better rank wins; `max` returns the last one, so the order is reversed.
        let warmest = positions()
            .rev()
            .max_by_key(|position| self.candidate(*position).overlap.warm.total());
        let idlest =
            positions().min_by_key(|position| self.candidate(*position).state.load.in_flight);
        let mut selected = Vec::with_capacity(limit);
        for position in [Some(self.position), runner_up, warmest, idlest]
            .into_iter()
            .flatten()
            .chain(positions())
        {
            if selected.len() == limit {
                break;
            }
            if !selected.contains(&position) {
                selected.push(position);
            }
        }
        selected.sort_unstable();
        selected
    }

    fn row(&self, position: usize) -> ScoredCandidate {
        let PolicyCandidate {
            overlap: surveyed,
            state,
            fetch,
        } = self.candidate(position);
        let price = &self.prices[self.order[position]];
        let candidate = surveyed.candidate;
        ScoredCandidate {
            target: candidate.target,
            name: Arc::clone(&candidate.name),
            rank: u32::try_from(position + 1).unwrap_or(u32::MAX),
            warm_tokens: surveyed.warm,
            predicted_cached_tokens: surveyed.predicted_cached_tokens,
            uncached_tokens: surveyed.uncached_tokens,
            cache_source: candidate.cache,
            stream_state: candidate.stream_state,
            health: candidate.health,
            load: state.load,
            cost: price.cost,
            predicted_ttft_ms: price.predicted_ttft_ms,
            terms: price.terms,
            fetch: fetch.and_then(|fetch| self.fetch_note(&fetch)),
        }
    }

    /// Returns a read for the receipt. Its source is a candidate too.
    fn fetch_note(&self, fetch: &FetchOption) -> Option<FetchNote> {
        let mut candidates = self.input.candidates.iter();
        let source = candidates.find(|contender| contender.target() == fetch.source)?;
        Some(FetchNote {
            source: fetch.source,
            name: Arc::clone(&source.overlap.candidate.name),
            tokens: fetch.tokens,
            ms: fetch.ms,
        })
    }
}
