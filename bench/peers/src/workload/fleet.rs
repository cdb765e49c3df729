//! The caches of the targets during the creation of a workload: their content determines their
//! streams.

use std::collections::VecDeque;

use kv_blocks::SequenceHash;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{ChainId, Span, TargetChange, Workload, WorkloadStep};

/// Targets of equal capacity that record their changes.
#[derive(Debug)]
pub(super) struct SimulatedFleet {
    pub(super) workload: Workload,
    caches: Vec<LruBlockCache>,
    now: u32,
}

/// A cache that evicts the least recently used blocks, and the last block of a chain first, as
/// engines do. So a target that holds a block also holds those before it.
#[derive(Debug, Default)]
struct LruBlockCache {
    /// The time of each block's last use.
    used: FxHashMap<SequenceHash, u32>,
    /// Uses in order of time; one whose blocks were used again since is skipped.
    uses: VecDeque<BlockUse>,
    capacity: usize,
}

/// A use of the first `len` blocks of a chain at `at`.
#[derive(Debug)]
struct BlockUse {
    at: u32,
    chain: ChainId,
    len: usize,
}

impl SimulatedFleet {
    /// `capacity` is the maximum number of blocks per target; `None` is unbounded.
    pub(super) fn new(targets: usize, capacity: Option<usize>) -> Self {
        let cache = || LruBlockCache {
            capacity: capacity.unwrap_or(usize::MAX),
            ..LruBlockCache::default()
        };
        Self {
            workload: Workload {
                targets,
                ..Workload::default()
            },
            caches: (0..targets).map(|_| cache()).collect(),
            now: 0,
        }
    }

    /// Returns the number of leading blocks of the chain that the target holds.
    pub(super) fn depth(&self, target: usize, chain: ChainId) -> usize {
        let rolling = self.workload.rolling(self.workload.span(chain));
        let used = &self.caches[target].used;
        rolling.partition_point(|hash| used.contains_key(hash))
    }

    pub(super) fn query(&mut self, chain: ChainId) {
        self.workload.steps.push(WorkloadStep::Query(chain));
    }

    /// Uses the first `len` blocks of the chain at the target: evicts blocks as needed and stores
    /// the missing ones.
    pub(super) fn store(&mut self, target: usize, chain: ChainId, len: usize) {
        let len = len.min(self.caches[target].capacity);
        let start = self.depth(target, chain).min(len);
        self.now += 1;
        let span = self.workload.span(chain);
        let workload = &mut self.workload;
        let cache = &mut self.caches[target];
        for at in span.start..span.start + start {
            cache.used.insert(workload.rolling[at], self.now);
        }
        let first = workload.removed.len();
        cache.evict(
            (cache.used.len() + len - start).saturating_sub(cache.capacity),
            workload,
        );
        let evicted = Span {
            start: first,
            len: workload.removed.len() - first,
        };
        for at in span.start + start..span.start + len {
            cache.used.insert(workload.rolling[at], self.now);
        }
        cache.uses.push_back(BlockUse {
            at: self.now,
            chain,
            len,
        });
        self.removed(target, evicted);
        if len > start {
            let change = TargetChange::Stored {
                target: target as u32,
                chain,
                start: start as u32,
                end: len as u32,
            };
            self.workload.steps.push(WorkloadStep::Change(change));
        }
    }

    /// Removes the chain's blocks past the first `keep` from the target, the last one first.
    pub(super) fn evict_tail(&mut self, target: usize, chain: ChainId, keep: usize) {
        let depth = self.depth(target, chain);
        let span = self.workload.span(chain);
        let first = self.workload.removed.len();
        for at in (keep..depth).rev() {
            let hash = self.workload.rolling[span.start + at];
            self.caches[target].used.remove(&hash);
            self.workload.removed.push(hash);
        }
        self.removed(
            target,
            Span {
                start: first,
                len: self.workload.removed.len() - first,
            },
        );
    }

    fn removed(&mut self, target: usize, blocks: Span) {
        if blocks.len > 0 {
            self.workload
                .steps
                .push(WorkloadStep::Change(TargetChange::Removed {
                    target: target as u32,
                    blocks,
                }));
        }
    }

    /// Returns the recorded changes.
    pub(super) fn finish(mut self) -> Workload {
        self.workload.memberships = self.caches.iter().map(|cache| cache.used.len()).sum();
        let distinct: FxHashSet<_> = self
            .caches
            .iter()
            .flat_map(|cache| cache.used.keys())
            .collect();
        self.workload.distinct = distinct.len();
        self.workload
    }
}

impl LruBlockCache {
    /// Evicts the `count` least recently used blocks and records them in the workload's removals.
    fn evict(&mut self, mut count: usize, workload: &mut Workload) {
        while count > 0 {
            let Some(mut oldest) = self.uses.pop_front() else {
                break;
            };
            let start = workload.span(oldest.chain).start;
            while oldest.len > 0 && count > 0 {
                oldest.len -= 1;
                let hash = workload.rolling[start + oldest.len];
                if self.used.get(&hash) == Some(&oldest.at) {
                    self.used.remove(&hash);
                    workload.removed.push(hash);
                    count -= 1;
                }
            }
            if oldest.len > 0 {
                self.uses.push_front(oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_evicts_the_least_recently_used_chain_last_block_first() {
        let mut fleet = SimulatedFleet::new(1, Some(4));
        let old = fleet.workload.add_chain([1, 2, 3]);
        let new = fleet.workload.add_chain([1, 4, 5]);
        fleet.store(0, old, 3);
        fleet.store(0, new, 3);
        assert_eq!((fleet.depth(0, old), fleet.depth(0, new)), (2, 3));
        let last = fleet.workload.rolling(fleet.workload.span(old))[2];
        assert_eq!(fleet.finish().removed, [last]);
    }
}
