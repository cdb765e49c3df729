//! Read-only reports on the writer's state.

use std::sync::Arc;

use kv_blocks::{SequenceHash, Target, Tier};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::IndexState;
use crate::{
    DumpCursor, DumpRow, IndexStats, TargetDigest, lookup::SharedIndex, runs::NO_RUN,
    table::BlockRef,
};

/// Rows of a dump per step; all rows of one block come together.
const ROWS: usize = 256;
/// Runs visited in one step.
const RUNS: u32 = 4096;

impl IndexState {
    pub(crate) fn blocks_per_tier(&self, target: Target) -> [u64; 4] {
        self.targets
            .find(target)
            .map_or([0; 4], |slot| self.targets.get(slot).blocks)
    }

    pub(crate) fn stats(&self) -> IndexStats {
        IndexStats {
            namespaces: self.namespaces.len() as u64,
            distinct: self.writer.block_count(),
            memberships: self.counts.memberships,
            speculative: self.speculative.speculative(),
            predicted: self.speculative.blocks() - self.speculative.speculative(),
            orphans: self.counts.orphaned,
            bytes: self.bytes(),
            budget_bytes: self.settings.memory_budget,
            shed: self.counts.shed + self.orphans.dropped(),
        }
    }

    /// Returns digests of every target and tier that holds a block.
    pub(crate) fn digest(&mut self, core: &SharedIndex) -> Vec<TargetDigest> {
        let mut digests = vec![[0_u64; Tier::ALL.len()]; self.targets.len()];
        let mut sums = Vec::new();
        for run in 0..self.writer.runs() {
            let Some(space) = self.writer.space(run) else {
                continue;
            };
            let seed = self.namespaces.get(space).digest;
            // Prefix sums over the blocks: a stretch adds the difference of two.
            sums.clear();
            sums.push(0_u64);
            for hash in self.writer.hashes_of(core, run) {
                let mixed = xxh3_64_with_seed(&hash.to_le_bytes(), seed);
                sums.push(sums[sums.len() - 1].wrapping_add(mixed));
            }
            self.writer.each_holder(core, run, |span| {
                let part = sums[span.end as usize].wrapping_sub(sums[span.start as usize]);
                let digest = &mut digests[span.slot as usize][span.tier as usize];
                *digest = digest.wrapping_add(part);
            });
        }
        let mut digests: Vec<_> = self
            .targets
            .iter()
            .flat_map(|(target, slot)| {
                let blocks = self.targets.get(slot).blocks;
                let digests = digests[slot as usize];
                Tier::ALL
                    .into_iter()
                    .zip(blocks.into_iter().zip(digests))
                    .map(move |(tier, (blocks, digest))| TargetDigest {
                        target,
                        tier,
                        blocks,
                        digest,
                    })
            })
            .filter(|digest| digest.blocks > 0)
            .collect();
        digests.sort_unstable_by_key(|digest| (digest.target, digest.tier));
        digests
    }

    /// Returns the memberships of some blocks from `cursor` on, and moves `cursor`; `None` after the
    /// last.
    pub(crate) fn dump(
        &mut self,
        core: &SharedIndex,
        cursor: &mut DumpCursor,
    ) -> Option<Vec<DumpRow>> {
        let runs = self.writer.runs();
        if cursor.run >= runs {
            return None;
        }
        let mut rows = Vec::new();
        let end = runs.min(cursor.run.saturating_add(RUNS));
        while rows.len() < ROWS && cursor.run < end {
            self.dump_blocks(core, cursor, &mut rows);
        }
        Some(rows)
    }

    /// Adds some blocks of one run, with all their holders.
    fn dump_blocks(
        &mut self,
        core: &SharedIndex,
        cursor: &mut DumpCursor,
        rows: &mut Vec<DumpRow>,
    ) {
        let DumpCursor { run, at: from } = *cursor;
        let blocks = core.heads.get(&core.body, run).blocks();
        let Some(space) = self.writer.space(run).filter(|_| from < blocks) else {
            *cursor = DumpCursor {
                run: run + 1,
                at: 0,
            };
            return;
        };
        let mut spans = Vec::new();
        self.writer.each_holder(core, run, |span| spans.push(span));
        if self.targets.has_sweeps() {
            self.join_retired(&mut spans);
        }
        let count = (ROWS - rows.len()) / spans.len().max(1);
        let to = blocks.min(from.saturating_add(u32::try_from(count.max(1)).unwrap_or(u32::MAX)));
        cursor.at = to;
        let space = self.namespaces.get(space);
        let head = core.heads.get(&core.body, run);
        // The block before the first one is the parent.
        let before = match from {
            0 if head.parent() == NO_RUN => None,
            0 => Some(self.writer.hash(
                core,
                BlockRef {
                    run: head.parent(),
                    at: head.attach() - 1,
                },
            )),
            _ => Some(self.writer.hash(core, BlockRef { run, at: from - 1 })),
        };
        let hashes: Vec<_> = self
            .writer
            .hashes_of(core, run)
            .take(to as usize)
            .skip(from as usize)
            .collect();
        for span in spans {
            let target = self.targets.get(span.slot).target;
            rows.extend((span.start.max(from)..span.end.min(to)).map(|at| {
                let offset = (at - from) as usize;
                DumpRow {
                    namespace: Arc::clone(&space.namespace),
                    salt_digest: space.salt_digest.clone(),
                    target,
                    tier: Tier::ALL[span.tier as usize],
                    depth: head.depth() + at,
                    hash: SequenceHash(hashes[offset]),
                    parent: offset
                        .checked_sub(1)
                        .map_or(before, |previous| Some(hashes[previous]))
                        .map(SequenceHash),
                }
            }));
        }
    }
}
