//! `random`: any target, each as likely as its weight says.
//!
//! Cost: the place in an order drawn for this request: of those still to be placed, each is next with a probability of
//! its `workers[].weight` over the sum of theirs. Terms: none.

use super::{CostUnit, Price, Rule, Scene, by_place};
use crate::choose::{draw, unit};

#[derive(Debug, Default)]
pub(super) struct Random;

impl Rule for Random {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, scene: &Scene<'_>) -> Vec<Price> {
        // Each waits a time drawn from an exponential distribution with its weight as rate: who is first, and then next,
        // is so by weight.
        let mut line: Vec<(f64, u64, usize)> = scene
            .contenders
            .iter()
            .enumerate()
            .map(|(i, contender)| {
                let drawn = draw(scene.random, i);
                (
                    -(-unit(drawn)).ln_1p() / contender.surveyed.candidate.share(),
                    drawn,
                    i,
                )
            })
            .collect();
        line.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        by_place(line.into_iter().map(|(_, _, i)| i))
    }
}
