//! `random`: any target, each as likely as the others.
//!
//! Cost: the place in an order drawn for this request. Terms: none.

use super::{CostUnit, Price, Rule, Scene};
use crate::choose::draw;

#[derive(Debug, Default)]
pub(super) struct Random;

impl Rule for Random {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, scene: &Scene<'_>) -> Vec<Price> {
        let mut line: Vec<usize> = (0..scene.contenders.len()).collect();
        line.sort_unstable_by_key(|i| draw(scene.random, *i));
        let mut prices = vec![Price::of(0.0); line.len()];
        for (place, i) in line.into_iter().enumerate() {
            prices[i].cost = place as f64;
        }
        prices
    }
}
