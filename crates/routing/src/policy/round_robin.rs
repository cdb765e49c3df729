//! `round_robin`: each target in turn.
//!
//! The turn goes to whoever had it longest ago, per model: a target that is left out for a while loses its turns and
//! disturbs nobody else's, and one that joins is next.
//!
//! Cost: the place in line, 0 is next. Terms: none.

use std::{collections::HashMap, sync::Arc};

use kv_blocks::{Target, WorkerId};

use super::{CostUnit, Price, Rule, Scene};

/// Models whose turns are remembered; beyond it all start anew, which costs one uneven round.
const MOST_MODELS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    /// Per model, the number of each target's latest turn.
    turns: HashMap<Arc<str>, HashMap<Target, u64>>,
    turn: u64,
}

impl Rule for RoundRobin {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, scene: &Scene<'_>) -> Vec<Price> {
        let turns =
            scene.contenders.first().and_then(|first| self.turns.get(&first.surveyed.candidate.namespace.model));
        let mut line: Vec<(u64, Target, usize)> = scene
            .contenders
            .iter()
            .enumerate()
            .map(|(i, contender)| {
                let target = contender.target();
                let turn = turns.and_then(|turns| turns.get(&target)).copied().unwrap_or(0);
                (turn, target, i)
            })
            .collect();
        line.sort_unstable();
        let mut prices = vec![Price::of(0.0); line.len()];
        for (place, (_, _, i)) in line.into_iter().enumerate() {
            prices[i].cost = place as f64;
        }
        prices
    }

    fn chosen(&mut self, model: &Arc<str>, target: Target) {
        self.turn += 1;
        if self.turns.len() >= MOST_MODELS && !self.turns.contains_key(model) {
            self.turns.clear();
        }
        self.turns.entry(Arc::clone(model)).or_default().insert(target, self.turn);
    }

    fn forget(&mut self, worker: WorkerId) {
        self.turns.retain(|_, turns| {
            turns.retain(|target, _| target.worker != worker);
            !turns.is_empty()
        });
    }
}
