//! `weighted_round_robin`: each target in turn, in proportion to its weight, evenly spread (smooth
//! weighted round robin).
//!
//! Every target has a credit per model. In each turn all eligible targets earn their
//! `workers[].weight`, the highest credit wins, and the winner pays the sum of the earnings. So
//! weights 5, 1 and 1 give `a a b a c a a`, not five in a row. A target that is excluded for a
//! while neither earns nor pays.
//!
//! Cost: the rank in the order of credits, 0 is next. Terms: `credit` (this turn's earnings
//! included), `weight`.

use std::{collections::HashMap, sync::Arc};

use kv_blocks::{Target, WorkerId};
use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms, by_rank},
    rule::{PolicyCandidate, PolicyDefinition, PolicyInput, PolicyRule},
};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("weighted_round_robin"),
    facts: &[],
    rule: |_| Box::new(WeightedRoundRobin::default()),
};

/// Models whose credits are remembered; beyond it all start over, which costs one uneven round.
const MOST_MODELS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct WeightedRoundRobin {
    /// Per model, each target's credit after its latest turn.
    credits: HashMap<Arc<str>, HashMap<Target, f64>>,
}

impl PolicyRule for WeightedRoundRobin {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let credits = input
            .candidates
            .first()
            .and_then(|first| self.credits.get(model(first)));
        let earned = |contender: &PolicyCandidate<'_>| {
            let before = credits
                .and_then(|credits| credits.get(&contender.target()))
                .copied()
                .unwrap_or(0.0);
            before + weight(contender)
        };
        let mut ranking: Vec<(f64, Target, usize)> = input
            .candidates
            .iter()
            .enumerate()
            .map(|(i, contender)| (earned(contender), contender.target(), i))
            .collect();
        ranking.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut prices = by_rank(ranking.iter().map(|(_, _, i)| *i));
        for (credit, _, i) in ranking {
            prices[i].terms = Terms::new(
                &["credit", "weight"],
                [credit, weight(&input.candidates[i])],
            );
        }
        prices
    }

    fn chosen(&mut self, input: &PolicyInput<'_>, winner: &PolicyCandidate<'_>) {
        let model = model(winner);
        if self.credits.len() >= MOST_MODELS && !self.credits.contains_key(model) {
            self.credits.clear();
        }
        let credits = self.credits.entry(Arc::clone(model)).or_default();
        let mut earned = 0.0;
        for contender in &input.candidates {
            *credits.entry(contender.target()).or_insert(0.0) += weight(contender);
            earned += weight(contender);
        }
        *credits.entry(winner.target()).or_insert(0.0) -= earned;
    }

    fn forget(&mut self, worker: WorkerId) {
        self.credits.retain(|_, credits| {
            credits.retain(|target, _| target.worker != worker);
            !credits.is_empty()
        });
    }
}

fn model<'a>(contender: &PolicyCandidate<'a>) -> &'a Arc<str> {
    &contender.overlap.candidate.namespace.model
}

/// Returns the weight within wide bounds. Only the ratio of weights matters, so the bounds change
/// nothing; without them sums of credits could lose precision.
fn weight(contender: &PolicyCandidate<'_>) -> f64 {
    contender.overlap.candidate.share().clamp(1e-6, 1e6)
}
