//! What the index answers; nothing here changes it.

use std::sync::Arc;

use kv_blocks::{Moment, Namespace, SequenceHash, Target, Tier};

use super::State;
use crate::{DumpRow, IndexStats, Overlap, TargetDigest, TierBlocks, blocks::BlockKey, owner::OwnerId};

/// Two runs of a target that is not trusted, side by side; each ends where its first block is missing.
#[derive(Debug)]
struct Doubted {
    owner: OwnerId,
    announced: TierBlocks,
    announced_ended: bool,
    predicted: u32,
    predicted_ended: bool,
}

impl Doubted {
    fn new(owner: OwnerId) -> Self {
        Self { owner, announced: TierBlocks::default(), announced_ended: false, predicted: 0, predicted_ended: false }
    }

    /// Takes the next block: the tier it is announced in, and whether it is predicted.
    fn step(&mut self, announced: Option<Tier>, predicted: bool) {
        match announced {
            Some(tier) if !self.announced_ended => self.announced.add(tier),
            _ => self.announced_ended = true,
        }
        self.predicted_ended |= !predicted;
        self.predicted += u32::from(!self.predicted_ended);
    }

    fn ended(&self) -> bool {
        self.announced_ended && self.predicted_ended
    }
}

impl State {
    pub(crate) fn lookup(&self, namespace: &Namespace, chain: &[SequenceHash], now: Moment) -> Vec<Overlap> {
        let Some(space) = self.spaces.find(namespace) else { return Vec::new() };
        let mut running: Vec<(OwnerId, TierBlocks)> = Vec::new();
        let mut ended = Vec::new();
        let mut doubted: Vec<Doubted> = Vec::new();
        for (at, hash) in chain.iter().enumerate() {
            let key = BlockKey { space, hash: *hash };
            let block = self.blocks.get(key);
            if at == 0 {
                let confirmed = block.into_iter().flat_map(|block| block.holders()).map(|(owner, _)| *owner);
                let mut owners: Vec<_> = confirmed.chain(self.predictions.holders(key, now)).collect();
                owners.sort_unstable();
                owners.dedup();
                for owner in owners {
                    if self.owners.get(owner).trusted {
                        running.push((owner, TierBlocks::default()));
                    } else {
                        doubted.push(Doubted::new(owner));
                    }
                }
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
            for doubted in &mut doubted {
                let announced = block.and_then(|block| block.tiers_of(doubted.owner).best());
                doubted.step(announced, expected.contains(&doubted.owner));
            }
            if running.is_empty() && doubted.iter().all(Doubted::ended) {
                break;
            }
        }
        let overlap = |owner, blocks, announced| Overlap { target: self.owners.get(owner).target, blocks, announced };
        let trusted = ended.into_iter().chain(running).map(|(owner, blocks)| overlap(owner, blocks, blocks));
        let doubted = doubted.into_iter().map(|doubted| {
            let blocks = TierBlocks { speculative: doubted.predicted, ..TierBlocks::default() };
            overlap(doubted.owner, blocks, doubted.announced)
        });
        let mut overlaps: Vec<_> = trusted.chain(doubted).collect();
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
