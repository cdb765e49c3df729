//! The blocks that each target used lately: those of its open requests, and those of requests that
//! ended less than the keep time ago.
//!
//! Blocks are counted, not requests: a prefix that several share counts once. An engine evicts in
//! the order of last use, so when more blocks were used lately than its cache holds, those of the
//! request that ended first are gone.
//!
//! **Invariant**: at most [`MOST_ENDED`] ended requests with [`MOST_SPANS`] spans are remembered. A
//! target that has no space for one more forgets its oldest: then its room is overestimated, and
//! requests are let in as without admission.

#[cfg(test)]
mod fixture;
mod forgetting;
mod requests;

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    time::Duration,
};

use foldhash::fast::FixedState;
use kv_blocks::{Moment, Target};

use super::{
    Footprint,
    capacity::Capacity,
    keep_time::KeepTime,
    tails::{TailKey, Tails},
};
use crate::{
    ReservationId,
    ledger::{ActiveBlocks, KnownBlocks, NodeId, RetiredNodes},
};

/// Most ended requests that are remembered: some 200 bytes each.
const MOST_ENDED: usize = 65_536;
/// Most spans of ended requests: 8 bytes each.
const MOST_SPANS: usize = 4 << 20;

/// The blocks that each target used lately.
#[derive(Debug, Default)]
pub(crate) struct LiveSets {
    /// Whether requests are followed at all.
    enabled: bool,
    tree: ActiveBlocks,
    targets: HashMap<Target, LiveBlocks, FixedState>,
    /// Open requests. Ordered, like the ends, because a hash table that grows moves all entries under
    /// the lock.
    open: BTreeMap<ReservationId, LiveSequence>,
    /// The ended requests by the node at which they end.
    ends: BTreeMap<NodeId, Vec<EndedKey>>,
    /// Numbers of ended requests and of their spans.
    ended: usize,
    spans: usize,
    tails: Tails,
    keep: KeepTime,
}

/// The blocks that one target used lately.
#[derive(Debug, Default)]
struct LiveBlocks {
    blocks: u64,
    capacity: Capacity,
    /// Ended requests, by the time at which their blocks no longer count.
    ended: BTreeMap<(Moment, ReservationId), LiveSequence>,
    open: usize,
    forgotten: bool,
    /// The last of the ended requests whose blocks are gone, as the cache was reset or the worker
    /// removed; `None`: none are left.
    gone: Option<(Moment, ReservationId)>,
}

/// The blocks of one request.
#[derive(Clone, Copy, Debug)]
struct LiveSequence {
    /// The node at which its spans end; `None`: it has no whole span.
    end: Option<NodeId>,
    tail: Option<TailKey>,
    spans: usize,
    span: u64,
    rest: u64,
    rent_s: Option<f64>,
    /// This router sent it: a peer's request arrived elsewhere.
    own: bool,
    /// The engine did not receive its prompt.
    discarded: bool,
}

/// An ended request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EndedKey {
    target: Target,
    expires: Moment,
    id: ReservationId,
}

/// What is known of a request when it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchFacts {
    pub(crate) target: Target,
    /// Time to compute its whole prompt, in seconds.
    pub(crate) prefill_s: f64,
    pub(crate) reported_capacity: Option<u32>,
}

impl LiveSets {
    /// Follows requests from now on, or forgets all; returns what it forgets, to be freed without the
    /// router's lock.
    pub(crate) fn set_enabled(&mut self, enabled: bool) -> Option<Box<Self>> {
        let forgets = self.enabled && !enabled;
        let forgotten = forgets.then(|| Box::new(mem::take(self)));
        self.enabled = enabled;
        forgotten
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the number of blocks that `target` used lately.
    pub(super) fn blocks(&mut self, now: Moment, target: Target) -> u64 {
        self.expire(now, target);
        self.targets.get(&target).map_or(0, |live| live.blocks)
    }

    /// Returns the spans of a prompt that were used lately, by target.
    pub(crate) fn known(&self, footprint: &Footprint) -> KnownBlocks {
        self.tree.known(&footprint.spans)
    }

    /// Returns the observed size of a cache whose engine reports none.
    pub(super) fn observed_capacity(&self, target: Target) -> Option<u64> {
        self.targets.get(&target)?.capacity.blocks()
    }

    /// Returns the share of live blocks that count.
    pub(super) fn share(&self) -> f64 {
        self.keep.share()
    }

    /// Returns how long blocks count after their request ended.
    pub(super) fn keep_time(&self) -> Duration {
        self.keep.time()
    }

    /// Returns the targets that are followed, at most `most`, in their order.
    pub(super) fn targets(&self, most: usize) -> Vec<Target> {
        let mut targets: Vec<Target> = self.targets.keys().copied().collect();
        targets.sort_unstable();
        targets.truncate(most);
        targets
    }

    /// Returns all targets that are followed.
    pub(crate) fn followed(&self) -> Vec<Target> {
        self.targets.keys().copied().collect()
    }

    /// Returns memory that is no longer used, to be freed without the router's lock.
    pub(crate) fn take_retired(&mut self) -> Vec<RetiredNodes> {
        self.tree.take_retired()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::{
        fixture::{at, live_sets, prompt, run, target},
        *,
    };

    #[test]
    fn what_is_switched_off_is_forgotten() {
        let mut sets = live_sets();
        run(&mut sets, 1, (0, 1), 1, &[1, 2, 3]);
        let forgotten = sets.set_enabled(false).map(|forgotten| forgotten.ended);
        assert_eq!((forgotten, sets.ended), (Some(1), 0));
        run(&mut sets, 2, (2, 3), 1, &[1, 2, 3]);
        assert_eq!((sets.blocks(at(3), target(1)), sets.ended), (0, 0));
    }

    proptest! {
        /// Capacities are not known here, so nothing is trimmed.
        #[test]
        fn the_count_equals_that_of_single_blocks(
            steps in prop::collection::vec(
                (1u32..3, prop::collection::vec(0u8..2, 1..7), 0u64..40, 0u64..40),
                1..40,
            ),
        ) {
            let mut sets = live_sets();
            let mut counted: Vec<(u32, Vec<u8>, u64)> = Vec::new();
            let mut now = 0;
            for (number, (worker, labels, pause, runs)) in steps.into_iter().enumerate() {
                now += pause;
                let id = ReservationId(number as u64);
                sets.open(at(now), id, target(worker), &prompt(&labels));
                now += runs;
                sets.end(at(now), id, target(worker));
                counted.push((worker, labels, now + 90));
                for worker in 1..3 {
                    let live = counted.iter().filter(|(of, _, until)| *of == worker && *until > now);
                    let blocks: HashSet<&[u8]> = live
                        .flat_map(|(_, labels, _)| (1..=labels.len()).map(move |length| &labels[..length]))
                        .collect();
                    prop_assert_eq!(sets.blocks(at(now), target(worker)), blocks.len() as u64);
                }
            }
            let end = at(now + 1000);
            let left = [1, 2].map(|worker| sets.blocks(end, target(worker)));
            prop_assert_eq!((left, sets.ended, sets.spans, sets.ends.len()), ([0, 0], 0, 0, 0));
        }
    }
}
