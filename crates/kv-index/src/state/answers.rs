//! What the index answers; nothing here changes it.

use std::sync::Arc;

use kv_blocks::{Moment, Namespace, SequenceHash, Target, Tier};

use super::State;
use crate::{DumpRow, IndexStats, Overlap, TargetDigest, TierBlocks, blocks::BlockKey, owner::OwnerId};

impl State {
    pub(crate) fn lookup(&self, namespace: &Namespace, chain: &[SequenceHash], now: Moment) -> Vec<Overlap> {
        let Some(space) = self.spaces.find(namespace) else { return Vec::new() };
        let mut running: Vec<(OwnerId, TierBlocks)> = Vec::new();
        let mut ended = Vec::new();
        for (at, hash) in chain.iter().enumerate() {
            let key = BlockKey { space, hash: *hash };
            let block = self.blocks.get(key);
            if at == 0 {
                let confirmed = block.into_iter().flat_map(|block| block.holders()).map(|(owner, _)| *owner);
                let mut owners: Vec<_> = confirmed.chain(self.predictions.holders(key, now)).collect();
                owners.sort_unstable();
                owners.dedup();
                running.extend(owners.into_iter().map(|owner| (owner, TierBlocks::default())));
            }
            let expected: Vec<_> = self.predictions.holders(key, now).collect();
            running.retain_mut(|(owner, blocks)| {
                let confirmed = block.and_then(|block| block.tiers_of(*owner).best());
                match confirmed {
                    Some(tier) => blocks.add(tier),
                    None if expected.contains(owner) => blocks.speculative += 1,
                    None => {
                        ended.push((*owner, *blocks));
                        return false;
                    }
                }
                true
            });
            if running.is_empty() {
                break;
            }
        }
        let mut overlaps: Vec<_> = ended
            .into_iter()
            .chain(running)
            .map(|(owner, blocks)| Overlap { target: self.owners.get(owner).target, blocks })
            .collect();
        overlaps.sort_unstable_by_key(|overlap| overlap.target);
        overlaps
    }

    pub(crate) fn blocks_per_tier(&self, target: Target) -> [u64; 4] {
        self.owners.find(target).map_or([0; 4], |owner| self.owners.get(owner).content.map(|content| content.blocks))
    }

    pub(crate) fn stats(&self) -> IndexStats {
        IndexStats {
            namespaces: self.spaces.len() as u64,
            distinct: self.blocks.distinct(),
            memberships: self.blocks.memberships(),
            speculative: self.predictions.speculative(),
            predicted: self.predictions.len() - self.predictions.speculative(),
            orphans: self.orphans,
            bytes: self.bytes(),
            budget_bytes: self.settings.memory_budget,
            shed: self.shed,
        }
    }

    pub(crate) fn digest(&self) -> Vec<TargetDigest> {
        let mut digests = Vec::new();
        for (target, owner) in self.owners.iter() {
            for (tier, content) in Tier::ALL.into_iter().zip(self.owners.get(owner).content) {
                if content.blocks > 0 {
                    digests.push(TargetDigest { target, tier, blocks: content.blocks, digest: content.digest });
                }
            }
        }
        digests.sort_unstable_by_key(|digest| (digest.target, digest.tier));
        digests
    }

    /// The memberships of one part of the blocks; `None` beyond the last.
    pub(crate) fn dump(&self, part: usize) -> Option<Vec<DumpRow>> {
        if part >= self.blocks.parts() {
            return None;
        }
        let mut rows = Vec::new();
        for (key, block) in self.blocks.part(part) {
            let space = self.spaces.get(key.space);
            for (owner, tiers) in block.holders() {
                rows.extend(tiers.iter().map(|tier| DumpRow {
                    namespace: Arc::clone(&space.namespace),
                    salt_digest: space.salt_digest.clone(),
                    target: self.owners.get(*owner).target,
                    tier,
                    depth: block.depth,
                    hash: key.hash,
                    parent: block.parent,
                }));
            }
        }
        Some(rows)
    }
}
