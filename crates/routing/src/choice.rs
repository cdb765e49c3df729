//! A choice: the costs of the candidates, their order, and the winner; and the decision that the
//! router returns of it.

use std::{mem, sync::Arc};

use crate::{
    CacheUse, CostUnit, Decision, ExcludedTarget, Job, Method, Pin, Policy, PrefillNote, Refusal,
    ReservedLoad, RoutingSettings, RunnerUp, ScoredCandidate, SessionNote, Winner,
    policy::{
        composite::held,
        cost::{CandidateCost, FALLBACK, order, pick},
        rule::{PolicyCandidate, PolicyFact, PolicyInput, PolicyRules},
    },
    pool_split::{PoolSplit, PromptLocation},
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
    /// The winner's place in `order`.
    pub(crate) place: usize,
    pub(crate) unit: CostUnit,
    /// The policy of the request.
    pub(crate) policy: Policy,
    /// The policy that computed the costs: another one where the first needs a key that the request
    /// does not have.
    pub(crate) ruling: Policy,
    /// The effect on the request's session, if it has one.
    pub(crate) session: Option<SessionNote>,
    /// The session chose the target, whatever the policy says.
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
}

impl PlacementError {
    pub(crate) fn refusal(self) -> Refusal {
        let (Self::Nobody(refusal) | Self::AllBusy(refusal)) = self;
        refusal
    }
}

impl<'a> Choice<'a> {
    /// Computes the candidates' costs and picks one, whatever the request's session is.
    pub(crate) fn of(
        rules: &PolicyRules,
        job: &Job<'_>,
        settings: &RoutingSettings,
        input: PolicyInput<'a>,
    ) -> Self {
        let policy = settings.policy_of(job);
        let ruling = rules.deciding_policy(policy, settings, &input);
        let rule = rules.of(ruling);
        let mut prices = rule.price(&input);
        if job.pin.is_none() && policy.fell_back_to(ruling) {
            for price in &mut prices {
                price.terms = price.terms.of_fallback();
            }
        }
        let order = order(&prices, job.random);
        let usual = settings.section.temperature;
        let place = if rule.draws() {
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
            place,
            policy,
            ruling,
            session: None,
            by_session: false,
            excluded: Vec::new(),
            timing: SurveyTiming::default(),
        }
    }

    /// Returns whether another policy than the requested one computed the costs.
    pub(crate) fn fell_back(&self) -> bool {
        self.policy.fell_back_to(self.ruling)
    }

    /// Returns the candidate at this place in the order.
    pub(crate) fn candidate(&self, place: usize) -> &PolicyCandidate<'a> {
        &self.input.candidates[self.order[place]]
    }

    /// Returns the cost of the candidate at this place in the order.
    pub(crate) fn cost(&self, place: usize) -> f64 {
        self.prices[self.order[place]].cost
    }

    /// Returns the winning candidate.
    pub(crate) fn winner(&self) -> &PolicyCandidate<'a> {
        self.candidate(self.place)
    }

    /// Returns the decision for the receipt, with at most `kept` candidates (at least winner and
    /// runner-up).
    pub(crate) fn decision(
        mut self,
        split: &PoolSplit<'_>,
        prefill: Option<PrefillNote>,
        kept: usize,
    ) -> Decision {
        let job = &split.decode;
        let timing = self.timing.decision(job.stopwatch);
        let method = self.method(job.pin);
        let runner_up = (0..self.order.len()).find(|place| *place != self.place);
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
                .worth_keeping(runner_up, kept.max(2))
                .into_iter()
                .map(|place| self.row(place))
                .collect(),
            candidates_total: self.order.len(),
            excluded,
            winner: self.reserved_winner(split.prompt(self.winner())),
            runner_up: runner_up.map(|place| self.runner_up(place)),
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
        }
    }

    /// Returns the candidate at this place as the runner-up.
    fn runner_up(&self, place: usize) -> RunnerUp {
        RunnerUp {
            target: self.candidate(place).target(),
            regret_ms: (self.unit == CostUnit::Ms)
                .then(|| self.cost(place) - self.cost(self.place)),
        }
    }

    /// Returns how the policy placed a request without a pin, for policies that distinguish ways.
    fn label(&self) -> Option<&'static str> {
        if self.by_session {
            None
        } else if self.fell_back() {
            Some(FALLBACK)
        } else {
            self.prices[self.order[self.place]].label
        }
    }

    /// Returns the effect of cache knowledge on the choice for a request without a pin.
    fn cache_use(&self) -> Option<CacheUse> {
        let warm = |contender: &PolicyCandidate<'_>| contender.overlap.warm.total();
        let (decided, tokens) = if self.by_session {
            return None;
        } else if self.policy.needs_prefix_holders() {
            let tokens = held(&self.input, self.winner()).map_or(0, |(tokens, _)| tokens);
            (self.ruling == Policy::Composite, tokens)
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

    /// Returns the places to report, best first: winner, runner-up, warmest, least loaded, then by
    /// rank.
    fn worth_keeping(&self, runner_up: Option<usize>, kept: usize) -> Vec<usize> {
        let places = || 0..self.order.len();
        if self.order.len() <= kept {
            return places().collect();
        }
        // Of equals the better rank wins; `max` returns the last one, so the order is reversed.
        let warmest = places()
            .rev()
            .max_by_key(|place| self.candidate(*place).overlap.warm.total());
        let idlest = places().min_by_key(|place| self.candidate(*place).state.load.in_flight);
        let mut keep = Vec::with_capacity(kept);
        for place in [Some(self.place), runner_up, warmest, idlest]
            .into_iter()
            .flatten()
            .chain(places())
        {
            if keep.len() == kept {
                break;
            }
            if !keep.contains(&place) {
                keep.push(place);
            }
        }
        keep.sort_unstable();
        keep
    }

    fn row(&self, place: usize) -> ScoredCandidate {
        let PolicyCandidate {
            overlap: surveyed,
            state: standing,
        } = self.candidate(place);
        let price = &self.prices[self.order[place]];
        let candidate = surveyed.candidate;
        ScoredCandidate {
            target: candidate.target,
            name: Arc::clone(&candidate.name),
            rank: u32::try_from(place + 1).unwrap_or(u32::MAX),
            warm_tokens: surveyed.warm,
            predicted_cached_tokens: surveyed.predicted_cached_tokens,
            uncached_tokens: surveyed.uncached_tokens,
            cache_source: candidate.cache,
            stream_state: candidate.stream_state,
            health: candidate.health,
            load: standing.load,
            cost: price.cost,
            predicted_ttft_ms: price.predicted_ttft_ms,
            terms: price.terms,
        }
    }
}
