//! Chains of one depth; several targets hold most of their blocks.

use crate::random::SplitMix64;

use super::{Workload, fleet::SimulatedFleet};

/// Number of shared system prompts, each a tenth of the depth.
const SYSTEM_PROMPTS: usize = 8;

/// Stores `distinct` blocks in chains of `depth`, each with four holders: two of the whole chain,
/// one of three quarters, one of half. Then queries in equal parts: whole chains, chains with a
/// random divergence, and a system prompt alone. With every fourth query a holder evicts its tail
/// and stores it again.
pub(super) fn draw(depth: usize, distinct: usize, queries: usize, targets: usize) -> Workload {
    let mut fleet = SimulatedFleet::new(targets, None);
    let mut random = SplitMix64::new(depth as u64);
    let system = depth / 10;
    let tail = |random: &mut SplitMix64, len: usize| {
        let mut blocks = SplitMix64::new(random.next());
        (0..len).map(move |_| blocks.next())
    };
    let prompts: Vec<Vec<u64>> = (0..SYSTEM_PROMPTS)
        .map(|_| tail(&mut random, system).collect())
        .collect();
    let mut held = vec![];
    for k in 0..distinct / (depth - system) {
        let blocks = prompts[k % SYSTEM_PROMPTS]
            .iter()
            .copied()
            .chain(tail(&mut random, depth - system));
        let chain = fleet.workload.add_chain(blocks);
        let holders: [usize; 4] = std::array::from_fn(|_| random.below(targets));
        for (holder, len) in holders
            .into_iter()
            .zip([depth, depth, depth * 3 / 4, depth / 2])
        {
            fleet.store(holder, chain, len);
        }
        held.push((chain, holders[0]));
    }
    fleet.workload.warm = fleet.workload.steps.len();
    for query in 0..queries {
        let (chain, holder) = held[random.below(held.len())];
        let same = match query % 3 {
            0 => depth,
            1 => system + random.below(depth - system),
            _ => system,
        };
        let asked = if same == depth {
            chain
        } else {
            let mut blocks = fleet.workload.content(fleet.workload.span(chain))[..same].to_vec();
            blocks.extend(tail(&mut random, depth - same));
            fleet.workload.add_chain(blocks)
        };
        fleet.query(asked);
        if query % 4 == 0 {
            fleet.evict_tail(holder, chain, system);
            fleet.store(holder, chain, depth);
        }
    }
    fleet.workload.cyclic = true;
    fleet.finish()
}
