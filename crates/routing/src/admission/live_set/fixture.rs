//! Short functions for the tests of the live sets.

use kv_blocks::{DpRank, SequenceHash, WorkerId};

use super::*;
use crate::ledger::SequenceBlocks;

pub(super) fn target(worker: u32) -> Target {
    Target {
        worker: WorkerId(worker),
        rank: DpRank(0),
    }
}

pub(super) fn at(s: u64) -> Moment {
    Moment::at(Duration::from_secs(s))
}

/// A prompt of blocks of 256 tokens, so that a span is a block, whose hashes depend on all labels
/// before them.
pub(super) fn prompt(labels: &[u8]) -> Footprint {
    let mut hash = 7u64;
    let next = |label: &u8| {
        hash = (hash ^ u64::from(*label))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23);
        SequenceHash(hash)
    };
    let blocks = SequenceBlocks {
        chain: Some(labels.iter().map(next).collect()),
        fingerprint: 1,
        unshared: 0,
    };
    Footprint::of(&blocks, labels.iter().map(|_| 256u32).sum())
}

pub(super) fn live_sets() -> LiveSets {
    let mut sets = LiveSets::default();
    sets.set_enabled(true);
    sets
}

pub(super) fn run(sets: &mut LiveSets, id: u64, (from, until): (u64, u64), to: u32, labels: &[u8]) {
    let id = ReservationId(id);
    sets.arrived(at(from), &prompt(labels));
    sets.open(at(from), id, target(to), &prompt(labels));
    let dispatched = DispatchFacts {
        target: target(to),
        prefill_s: 1.0,
        reported_capacity: Some(10),
    };
    sets.dispatched(id, dispatched);
    sets.end(at(until), id, target(to));
}
