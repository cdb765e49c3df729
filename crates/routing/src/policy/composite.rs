//! `composite`: one weighted score of cached tokens, load and success rate.
//!
//! Cached tokens come from the block index, and from streams of whole prefixes (`kv_cache_index`)
//! where they are followed: the larger of both counts. Where too little of the prompt is cached anywhere
//! (`min_overlap_threshold`), the fallback decides.
//!
//! Cost: 1 less the score. Terms: `cached_tokens`, `hot` (1 in the accelerator's memory),
//! `in_flight`, `health`.

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    rule::{PolicyCandidate, PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};
use crate::{CacheSource, ScoringInput, ScoringSettings};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("composite"),
    facts: &[
        PolicyFact::BlockOverlap,
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
/// memory. Both sources may know of the same tokens, so the larger number counts.
pub(crate) fn cached_tokens(
    input: &PolicyInput<'_>,
    contender: &PolicyCandidate<'_>,
) -> Option<(u32, bool)> {
    let Some(holders) = input.prefix_holders else {
        let warm = contender.overlap.warm;
        return in_blocks(warm.device + warm.speculative, warm.total());
    };
    let candidate = contender.overlap.candidate;
    let by_stream = holders
        .iter()
        .find(|holder| holder.worker == candidate.name)
        .map(|holder| (holder.tokens, holder.hot));
    // Beside reports of whole prefixes only reports of blocks count, no expectation.
    let by_blocks = (candidate.cache == CacheSource::Events)
        .then_some(contender.overlap.warm)
        .and_then(|warm| in_blocks(warm.device, warm.total() - warm.speculative));
    by_stream.max(by_blocks)
}

/// Returns cached tokens of the block index, of which `hot` are in the accelerator's memory.
fn in_blocks(hot: u32, all: u32) -> Option<(u32, bool)> {
    (all > 0).then(|| (all, hot >= all - hot))
}

fn scorable(input: &PolicyInput<'_>) -> Vec<ScoringInput> {
    let one = |contender: &PolicyCandidate<'_>| ScoringInput {
        cached: cached_tokens(input, contender),
        in_flight: contender.state.load.in_flight,
        health: contender.state.health,
    };
    input.candidates.iter().map(one).collect()
}
