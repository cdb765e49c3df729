//! `round_robin`: each target in turn.
//!
//! The target whose last turn is the oldest is next, per model: a target that is excluded for a
//! while loses its turns and does not affect the others, and a new one is next.
//!
//! Cost: the rank in the order, 0 is next. Terms: none.

use std::{collections::HashMap, sync::Arc};

use kv_blocks::{Target, WorkerId};
use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, by_rank},
    rule::{PolicyCandidate, PolicyDefinition, PolicyInput, PolicyRule},
};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("round_robin"),
    facts: &[],
    rule: |_| Box::new(RoundRobin::default()),
};

/// Models whose turns are remembered; beyond it all start over, which costs one uneven round.
const MOST_MODELS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    /// Per model, the number of each target's latest turn.
    last_turns: HashMap<Arc<str>, HashMap<Target, u64>>,
    turn: u64,
}

impl PolicyRule for RoundRobin {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let turns = input.candidates.first().and_then(|first| {
            self.last_turns
                .get(&first.overlap.candidate.namespace.model)
        });
        let mut ranking: Vec<(u64, Target, usize)> = input
            .candidates
            .iter()
            .enumerate()
            .map(|(i, contender)| {
                let target = contender.target();
                let turn = turns
                    .and_then(|turns| turns.get(&target))
                    .copied()
                    .unwrap_or(0);
                (turn, target, i)
            })
            .collect();
        ranking.sort_unstable();
        by_rank(ranking.into_iter().map(|(_, _, i)| i))
    }

    fn chosen(&mut self, _input: &PolicyInput<'_>, winner: &PolicyCandidate<'_>) {
        self.turn += 1;
        let model = &winner.overlap.candidate.namespace.model;
        if self.last_turns.len() >= MOST_MODELS && !self.last_turns.contains_key(model) {
            self.last_turns.clear();
        }
        self.last_turns
            .entry(Arc::clone(model))
            .or_default()
            .insert(winner.target(), self.turn);
    }

    fn forget(&mut self, worker: WorkerId) {
        self.last_turns.retain(|_, turns| {
            turns.retain(|target, _| target.worker != worker);
            !turns.is_empty()
        });
    }
}
