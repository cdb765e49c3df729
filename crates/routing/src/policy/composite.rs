//! `composite`: what a target has cached, how little it has to do and how often it succeeded, in one weighted score.
//!
//! Cached is what streams that name whole prefixes say of the worker (`kv_cache_index`), where the request comes with
//! that; otherwise what the block index says of the target. Where too little of the prompt is cached anywhere
//! (`min_overlap_threshold`), the score says nothing and another rule decides: for `composite` the fallback, for
//! `continuum` the ring of `prefix_hash`, or the fallback for a request without a prefix key. `continuum` goes by streams of
//! prefixes alone.
//!
//! Cost: 1 less the score. Terms: `cached_tokens`, `hot` (1 in the accelerator's memory), `in_flight`, `health`.

use super::{Contender, CostUnit, Price, Rule, Scene, Terms};
use crate::{Scorable, ScoringSettings};

/// The label of a request that the score placed.
const SCORED: &str = "kv_aware";

#[derive(Debug)]
pub(super) struct Composite {
    settings: ScoringSettings,
}

impl Composite {
    pub(super) fn new(settings: ScoringSettings) -> Self {
        Self { settings }
    }

    /// Whether the score says anything of this request.
    pub(super) fn decides(&self, scene: &Scene<'_>) -> bool {
        self.settings
            .scores(scene.prompt_tokens, &scorable(scene))
            .decides
    }
}

impl Rule for Composite {
    fn unit(&self) -> CostUnit {
        CostUnit::Score
    }

    fn price(&self, scene: &Scene<'_>) -> Vec<Price> {
        let candidates = scorable(scene);
        let scores = self
            .settings
            .scores(scene.prompt_tokens, &candidates)
            .scores;
        let price = |(candidate, score): (&Scorable, f64)| {
            let (tokens, hot) = candidate.held.unwrap_or_default();
            Price {
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
                ..Price::of(1.0 - score)
            }
        };
        candidates.iter().zip(scores).map(price).collect()
    }
}

/// Tokens of the prompt that a contender has cached, and whether they are in the accelerator's memory: by streams that name
/// whole prefixes where the request comes with what they say, else by the block index.
pub(crate) fn held(scene: &Scene<'_>, contender: &Contender<'_>) -> Option<(u32, bool)> {
    if let Some(holders) = scene.prefix_holders {
        let own = holders
            .iter()
            .find(|holder| holder.worker == contender.surveyed.candidate.name);
        return own.map(|holder| (holder.tokens, holder.hot));
    }
    let warm = contender.surveyed.warm;
    let hot = warm.device + warm.speculative;
    (warm.total() > 0).then(|| (warm.total(), hot >= warm.total() - hot))
}

fn scorable(scene: &Scene<'_>) -> Vec<Scorable> {
    let one = |contender: &Contender<'_>| Scorable {
        held: held(scene, contender),
        in_flight: contender.standing.load.in_flight,
        health: contender.standing.health,
    };
    scene.contenders.iter().map(one).collect()
}
