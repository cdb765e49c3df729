//! `composite`: one weighted score of cached tokens, load and success rate.
//!
//! Cached tokens come from streams of whole prefixes (`kv_cache_index`) if the request carries
//! their data; otherwise from the block index. Where too little of the prompt is cached anywhere
//! (`min_overlap_threshold`), the fallback decides.
//!
//! Cost: 1 less the score. Terms: `cached_tokens`, `hot` (1 in the accelerator's memory),
//! `in_flight`, `health`.

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    rule::{PolicyCandidate, PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};
use crate::{ScoringInput, ScoringSettings};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("composite"),
    facts: &[
        PolicyFact::Affinity,
        PolicyFact::PrefixHolders,
        PolicyFact::Health,
    ],
    rule: |settings| Box::new(Composite::new(settings.scoring)),
};

/// The label of a request routed by the score.
const SCORED: &str = "kv_aware";

#[derive(Debug)]
pub(super) struct Composite {
    settings: ScoringSettings,
}

impl Composite {
    pub(super) fn new(settings: ScoringSettings) -> Self {
        Self { settings }
    }
}

impl PolicyRule for Composite {
    fn unit(&self) -> CostUnit {
        CostUnit::Score
    }

    fn decides(&self, input: &PolicyInput<'_>) -> bool {
        self.settings
            .scores(input.prompt_tokens, &scorable(input))
            .decides
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let candidates = scorable(input);
        let scores = self
            .settings
            .scores(input.prompt_tokens, &candidates)
            .scores;
        let price = |(candidate, score): (&ScoringInput, f64)| {
            let (tokens, hot) = candidate.cached.unwrap_or_default();
            CandidateCost {
                tie: u64::from(candidate.in_flight),
                label: Some(SCORED),
                terms: Terms::new(
                    &["cached_tokens", "hot", "in_flight", "health"],
                    [
                        f64::from(tokens),
                        f64::from(u8::from(hot)),
                        f64::from(candidate.in_flight),
                        candidate.health,
                    ],
                ),
                ..CandidateCost::of(1.0 - score)
            }
        };
        candidates.iter().zip(scores).map(price).collect()
    }
}

/// Returns the cached prompt tokens of a candidate, and whether they are in the accelerator's
/// memory: from streams of whole prefixes if the request carries their data, else from the block
/// index.
pub(crate) fn cached_tokens(
    input: &PolicyInput<'_>,
    contender: &PolicyCandidate<'_>,
) -> Option<(u32, bool)> {
    if let Some(holders) = input.prefix_holders {
        let own = holders
            .iter()
            .find(|holder| holder.worker == contender.overlap.candidate.name);
        return own.map(|holder| (holder.tokens, holder.hot));
    }
    let warm = contender.overlap.warm;
    let hot = warm.device + warm.speculative;
    (warm.total() > 0).then(|| (warm.total(), hot >= warm.total() - hot))
}

fn scorable(input: &PolicyInput<'_>) -> Vec<ScoringInput> {
    let one = |contender: &PolicyCandidate<'_>| ScoringInput {
        cached: cached_tokens(input, contender),
        in_flight: contender.state.load.in_flight,
        health: contender.state.health,
    };
    input.candidates.iter().map(one).collect()
}
