//! A trace's requests sent to a fleet: each is a query, followed by the stores and evictions of its
//! target.

use std::cmp::Reverse;

use super::{
    ChainId, Workload,
    fleet::SimulatedFleet,
    hash_pair,
    records::{BLOCKS_PER_ID, TraceRecord},
};

/// The placement of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    RoundRobin,
    /// The target with the longest prefix, unless that is under a tenth of the prompt or the target
    /// has had much more than its share; then the one with the least so far.
    Affine,
}

/// The first half of the requests builds the initial state.
pub(super) fn replay(
    records: &[TraceRecord],
    targets: usize,
    capacity: usize,
    placement: Placement,
) -> Workload {
    let mut fleet = SimulatedFleet::new(targets, Some(capacity));
    let mut shares = Shares {
        blocks: vec![0; targets],
        total: 0,
    };
    for (number, record) in records.iter().enumerate() {
        if number == records.len() / 2 {
            fleet.workload.warm = fleet.workload.steps.len();
        }
        let block = |at: usize| {
            hash_pair(
                record.hash_ids[at / BLOCKS_PER_ID],
                (at % BLOCKS_PER_ID) as u64,
            )
        };
        let chain = fleet.workload.add_chain((0..record.blocks).map(block));
        fleet.query(chain);
        let target = match placement {
            Placement::RoundRobin => number % targets,
            Placement::Affine => shares.affine(&fleet, chain, record.blocks),
        };
        shares.add(target, record.blocks);
        fleet.store(target, chain, record.blocks);
    }
    fleet.finish()
}

/// Number of prompt blocks sent to each target so far.
struct Shares {
    blocks: Vec<usize>,
    total: usize,
}

impl Shares {
    fn add(&mut self, target: usize, blocks: usize) {
        self.blocks[target] += blocks;
        self.total += blocks;
    }

    fn affine(&self, fleet: &SimulatedFleet, chain: ChainId, blocks: usize) -> usize {
        let targets = || 0..self.blocks.len();
        let least = targets()
            .min_by_key(|target| self.blocks[*target])
            .unwrap_or(0);
        let deepest = targets()
            .map(|target| (fleet.depth(target, chain), target))
            .max_by_key(|(depth, target)| (*depth, Reverse(self.blocks[*target])));
        // A quarter above the mean, plus a few prompts for the beginning, when means are not
        // significant.
        let fair = self.total * 5 / 4 / self.blocks.len() + 4096;
        match deepest {
            Some((depth, target)) if depth * 10 >= blocks && self.blocks[target] <= fair => target,
            _ => least,
        }
    }
}
