//! The result of a choice, and its conversion to a decision.

use std::sync::Arc;

use crate::{
    CacheUse, CostUnit, Decision, DecisionTiming, ExcludedTarget, Method, Policy, PotentialLoad,
    ReservedLoad, RunnerUp, ScoredCandidate, Winner,
    policy::{
        composite::held,
        cost::{CandidateCost, FALLBACK},
        definition::PolicyFact,
        input::{PolicyCandidate, PolicyInput},
    },
    prompt_location::PromptLocation,
    session::SessionOutcome,
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
    pub(crate) session: Option<SessionOutcome>,
}

/// The facts of a decision that are not part of the choice.
#[derive(Debug)]
pub(crate) struct DecisionContext {
    pub(crate) method: Method,
    pub(crate) excluded: Vec<ExcludedTarget>,
    pub(crate) timing: DecisionTiming,
}

impl Choice<'_> {
    /// Returns whether another policy than the requested one computed the costs.
    pub(crate) fn fell_back(&self) -> bool {
        self.policy.fell_back_to(self.ruling)
    }

    /// Returns whether the session decided instead of the policy.
    pub(crate) fn by_session(&self) -> bool {
        self.session.is_some_and(|session| session.decided)
    }

    /// Returns the winning candidate.
    pub(crate) fn winner(&self) -> &PolicyCandidate<'_> {
        &self.input.candidates[self.order[self.place]]
    }

    /// Returns the decision for the receipt, with at most `kept` candidates (at least winner and
    /// runner-up).
    pub(crate) fn decision(&self, circumstances: DecisionContext, kept: usize) -> Decision {
        let DecisionContext {
            method,
            excluded,
            timing,
        } = circumstances;
        let runner_up = (0..self.order.len()).find(|place| *place != self.place);
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
            winner: self.reserved_winner(),
            runner_up: runner_up.map(|place| self.runner_up(place)),
            session: self.session.map(|session| session.note),
            prefill: None,
            timing,
        }
    }

    /// Returns the winner with the load that it gets, for the receipt.
    fn reserved_winner(&self) -> Winner {
        let surveyed = &self.winner().overlap;
        Winner {
            target: surveyed.candidate.target,
            name: Arc::clone(&surveyed.candidate.name),
            predicted_cached_tokens: surveyed.predicted_cached_tokens,
            announced_cached_tokens: surveyed.announced_cached_tokens,
            block_size: surveyed.candidate.namespace.block_size.tokens(),
            prompt_blocks: surveyed.prompt_blocks,
            reserved: ReservedLoad {
                prefill_tokens: surveyed.uncached_tokens,
                decode_blocks: u32::try_from(self.winner().new_blocks()).unwrap_or(u32::MAX),
            },
        }
    }

    /// Returns the candidate at this place as the runner-up, for the receipt.
    fn runner_up(&self, place: usize) -> RunnerUp {
        let cost = |place: usize| self.prices[self.order[place]].cost;
        RunnerUp {
            target: self.input.candidates[self.order[place]].target(),
            regret_ms: (self.unit == CostUnit::Ms).then(|| cost(place) - cost(self.place)),
        }
    }

    /// Returns how the policy placed a request without a pin, for policies that distinguish ways.
    fn label(&self) -> Option<&'static str> {
        if self.by_session() {
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
        let (decided, tokens) = if self.by_session() {
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

    /// Returns what each candidate would have to compute and to hold with this request, by target.
    /// `prompt` gives the place where the prompt is computed if the candidate generates.
    pub(crate) fn potential_loads(
        &self,
        prompt: impl Fn(&PolicyCandidate<'_>) -> PromptLocation,
    ) -> Vec<PotentialLoad> {
        let mut loads: Vec<_> = self
            .input
            .candidates
            .iter()
            .map(|contender| PotentialLoad {
                target: contender.target(),
                name: Arc::clone(&contender.overlap.candidate.name),
                prefill_tokens: match prompt(contender) {
                    PromptLocation::Here => contender.prefill_tokens_after(),
                    PromptLocation::Elsewhere => contender.state.load.queued_prefill_tokens,
                },
                decode_blocks: contender.state.blocks_after,
            })
            .collect();
        loads.sort_unstable_by_key(|load| load.target);
        loads
    }

    /// Returns the places to report, best first: winner, runner-up, warmest, least loaded, then by
    /// rank.
    fn worth_keeping(&self, runner_up: Option<usize>, kept: usize) -> Vec<usize> {
        let contender = |place: &usize| &self.input.candidates[self.order[*place]];
        let places = || 0..self.order.len();
        if self.order.len() <= kept {
            return places().collect();
        }
        // Of equals the better rank wins; `max` returns the last one, so the order is reversed.
        let warmest = places()
            .rev()
            .max_by_key(|place| contender(place).overlap.warm.total());
        let idlest = places().min_by_key(|place| contender(place).state.load.in_flight);
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
        } = &self.input.candidates[self.order[place]];
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
