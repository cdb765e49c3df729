//! The inputs of the policies, read from the router's state.

use kv_blocks::{Moment, Target};

use super::RouterState;
use crate::{
    CacheSource, Job, Policy, RoutingSettings, TargetLoad,
    ledger::{KnownBlocks, TargetAccount},
    policy::{
        definition::PolicyFact,
        input::{CandidateState, PolicyCandidate, PolicyInput},
    },
    survey::{CandidateOverlap, NamespacePrompt, OverlapSurvey},
};

impl RouterState {
    /// Returns the inputs of the policies. Changes nothing but the state that passing time changes
    /// by itself.
    pub(super) fn policy_input<'a>(
        &mut self,
        now: Moment,
        job: &Job<'a>,
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
        let query = StateQuery::new(now, newcomer_cold_tokens, job, settings);
        let own = &job.overrides;
        PolicyInput {
            random: job.random,
            affinity: job.affinity.keys,
            prefix_holders: job.affinity.prefix_holders,
            overlap_weight: overlap_weight(
                own.overlap_weight
                    .unwrap_or(settings.section.overlap_weight),
            ),
            medium_weights: own
                .medium_weights
                .unwrap_or(settings.section.medium_weights),
            prompt_tokens: job.prompt.tokens,
            expected_output_tokens: self.output.expected(job.reply.max_tokens),
            candidates: self.policy_candidates(&query, candidates, &prompts),
            prompts,
            newcomer_cold_tokens,
        }
    }

    /// Returns the surveyed candidates with their states.
    fn policy_candidates<'a>(
        &self,
        query: &StateQuery,
        surveyed: Vec<CandidateOverlap<'a>>,
        prompts: &[NamespacePrompt],
    ) -> Vec<PolicyCandidate<'a>> {
        let known: Vec<KnownBlocks> = prompts
            .iter()
            .map(|prompt| self.ledger.known_blocks(&prompt.blocks))
            .collect();
        let candidates = surveyed.into_iter().map(|mut surveyed| {
            let active = known[surveyed.prompt].of(surveyed.candidate.target);
            let credited = query
                .credited_tokens
                .filter(|_| surveyed.candidate.cache == CacheSource::Events);
            if let Some(prompt_tokens) = credited {
                surveyed.credit(active, prompt_tokens);
            }
            let new_blocks = prompts[surveyed.prompt].blocks.count() - active as u64;
            PolicyCandidate {
                state: self.candidate_state(query, surveyed.candidate.target, new_blocks),
                overlap: surveyed,
            }
        });
        candidates.collect()
    }

    /// Returns the state of `target`; `new_blocks` blocks of the prompt are not active there.
    fn candidate_state(
        &self,
        query: &StateQuery,
        target: Target,
        new_blocks: u64,
    ) -> CandidateState {
        let now = query.now;
        let account = self.ledger.account(target);
        let load = account.map_or_else(TargetLoad::default, TargetAccount::load);
        CandidateState {
            load,
            backlog_ms: account.map_or(0.0, |account| account.backlog_ms(now)),
            mean_backlog_ms: account.map_or(0.0, TargetAccount::mean_backlog_ms),
            decode_tokens: account.map_or(0, TargetAccount::decode_tokens),
            work_ms: account.map_or(0.0, |account| account.work_ms(now)),
            cold_tokens: account.map_or(query.newcomer_cold_tokens, |account| {
                account.cold_tokens(now)
            }),
            last_dispatch: account.map_or(0, TargetAccount::last_dispatch),
            blocks_after: load.decode_blocks + new_blocks,
            rates: self.rates.rates_of(now, target.worker),
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
}

/// The part of a query of candidates' states that is equal for all of them.
struct StateQuery {
    now: Moment,
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
        now: Moment,
        newcomer_cold_tokens: f64,
        job: &Job<'_>,
        settings: &RoutingSettings,
    ) -> Self {
        let policy = settings.policy_of(job);
        // One of them decides.
        let policies = [policy, settings.fallback, settings.lmcache.fallback()];
        let used = |fact| policies.iter().any(|policy| policy.uses(fact));
        Self {
            now,
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
    policy == Policy::Warm || policy.needs_lmcache() && settings.lmcache.fallback() == Policy::Warm
}

/// Returns a weight within its range; 1 for what is no number.
fn overlap_weight(weight: f64) -> f64 {
    if weight.is_finite() {
        weight.clamp(0.0, 100.0)
    } else {
        1.0
    }
}
