//! The expected content: plain sets of blocks per target and tier.

use std::collections::{BTreeMap, BTreeSet};

use kv_blocks::{Target, Tier};
use kv_index::TierBlocks;

use super::world::{NamespaceNo, NodeNo, OracleWorld, TargetNo};

/// The expected answer for one target and one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedAnswer {
    pub(crate) target: Target,
    pub(crate) blocks: TierBlocks,
    pub(crate) announced: TierBlocks,
    /// Number of announced blocks of `blocks` in each tier.
    pub(crate) present: [u32; 4],
}

/// A speculative block: expected, but not announced.
#[derive(Clone, Copy, Debug)]
struct ExpectedBlock {
    target: TargetNo,
    until_s: u64,
    /// The last call that created or renewed it.
    call: u64,
}

/// Consecutive blocks announced behind a parent that their target did not announce.
#[derive(Clone, Debug)]
struct WaitingBlocks {
    target: TargetNo,
    space: NamespaceNo,
    parent: NodeNo,
    nodes: Vec<NodeNo>,
    tier: Tier,
}

#[derive(Clone, Copy, Debug)]
struct OracleTarget {
    /// The model of a registered target.
    model: Option<usize>,
    trusted: bool,
}

#[derive(Debug)]
pub(crate) struct OracleTruth {
    nodes: usize,
    /// A bit for each target, per cell and tier.
    holders: Vec<[u128; 4]>,
    /// Whether any target ever announced the cell or was expected to hold it.
    ever: Vec<bool>,
    /// By cell.
    expected: BTreeMap<usize, Vec<ExpectedBlock>>,
    waiting: Vec<WaitingBlocks>,
    owners: Vec<OracleTarget>,
    pub(crate) now_s: u64,
    pub(crate) orphans: u64,
}

impl OracleTruth {
    pub(crate) fn new(world: &OracleWorld) -> Self {
        Self {
            nodes: world.nodes.len(),
            holders: vec![[0; 4]; world.cells()],
            ever: vec![false; world.cells()],
            expected: BTreeMap::new(),
            waiting: Vec::new(),
            owners: vec![
                OracleTarget {
                    model: None,
                    trusted: true
                };
                world.targets
            ],
            now_s: 0,
            orphans: 0,
        }
    }

    fn cell(&self, space: NamespaceNo, node: NodeNo) -> usize {
        space.0 * self.nodes + node.0
    }

    pub(crate) fn model(&self, target: TargetNo) -> Option<usize> {
        self.owners[target.0].model
    }

    pub(crate) fn trusts(&self, target: Target) -> bool {
        let of = |owner: &usize| TargetNo(*owner).target() == target;
        (0..self.owners.len())
            .find(of)
            .is_some_and(|owner| self.owners[owner].trusted)
    }

    pub(crate) fn holds(
        &self,
        target: TargetNo,
        space: NamespaceNo,
        node: NodeNo,
        tier: Tier,
    ) -> bool {
        self.holders[self.cell(space, node)][tier.index()] & target.bit() != 0
    }

    /// Whether the target holds the block in any tier.
    pub(crate) fn has(&self, target: TargetNo, space: NamespaceNo, node: NodeNo) -> bool {
        Tier::ALL
            .iter()
            .any(|tier| self.holds(target, space, node, *tier))
    }

    pub(crate) fn waits(
        &self,
        target: TargetNo,
        space: NamespaceNo,
        node: NodeNo,
        tier: Tier,
    ) -> bool {
        let of = |waiting: &&WaitingBlocks| {
            (waiting.target, waiting.space, waiting.tier) == (target, space, tier)
        };
        self.waiting
            .iter()
            .filter(of)
            .any(|waiting| waiting.nodes.contains(&node))
    }

    /// Number of blocks of all targets that wait for their parent.
    pub(crate) fn waiting_blocks(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.nodes.len()).sum()
    }

    pub(crate) fn has_waiting(&self, target: TargetNo) -> bool {
        self.waiting.iter().any(|waiting| waiting.target == target)
    }

    /// Whether any target ever announced the block, or was expected to hold it.
    pub(crate) fn was_announced(&self, space: NamespaceNo, node: NodeNo) -> bool {
        self.ever[self.cell(space, node)]
    }

    pub(crate) fn expects_of(&self, target: TargetNo) -> bool {
        self.expected
            .values()
            .flatten()
            .any(|expected| expected.target == target)
    }

    pub(crate) fn expected_blocks(&self) -> u64 {
        self.expected
            .values()
            .map(|entries| entries.len() as u64)
            .sum()
    }

    /// Registers a target; a change of its model clears it.
    pub(crate) fn register(&mut self, target: TargetNo, model: usize) {
        if self.model(target).is_some_and(|known| known != model) {
            self.clear(target);
        }
        self.owners[target.0].model = Some(model);
    }

    pub(crate) fn store(
        &mut self,
        target: TargetNo,
        space: NamespaceNo,
        nodes: &[NodeNo],
        tier: Tier,
    ) {
        let mut new = nodes.to_vec();
        self.add_holder(target, space, nodes, tier);
        while let Some(node) = new.pop() {
            let mut at = 0;
            while at < self.waiting.len() {
                let waiting = &self.waiting[at];
                if (waiting.target, waiting.space, waiting.parent) == (target, space, node) {
                    let waiting = self.waiting.remove(at);
                    self.add_holder(target, space, &waiting.nodes, waiting.tier);
                    new.extend(waiting.nodes);
                } else {
                    at += 1;
                }
            }
        }
    }

    fn add_holder(&mut self, target: TargetNo, space: NamespaceNo, nodes: &[NodeNo], tier: Tier) {
        for node in nodes {
            let cell = self.cell(space, *node);
            self.holders[cell][tier.index()] |= target.bit();
            self.ever[cell] = true;
            if self.owners[target.0].trusted {
                self.forget_expected(cell, |expected| expected.target == target);
            }
        }
    }

    /// Adds blocks whose parent is unknown; if they wait, they are held once it is announced.
    pub(crate) fn orphan(
        &mut self,
        target: TargetNo,
        space: NamespaceNo,
        parent: NodeNo,
        nodes: &[NodeNo],
        tier: Tier,
    ) {
        self.orphans += nodes.len() as u64;
        self.waiting.push(WaitingBlocks {
            target,
            space,
            parent,
            nodes: nodes.to_vec(),
            tier,
        });
    }

    /// Blocks behind a removed waiting block wait for that block from then on.
    pub(crate) fn remove(
        &mut self,
        target: TargetNo,
        space: NamespaceNo,
        node: NodeNo,
        tier: Tier,
    ) {
        let cell = self.cell(space, node);
        self.holders[cell][tier.index()] &= !target.bit();
        let mut behind = Vec::new();
        for waiting in &mut self.waiting {
            if (waiting.target, waiting.space, waiting.tier) == (target, space, tier)
                && let Some(at) = waiting.nodes.iter().position(|waits| *waits == node)
            {
                let nodes = waiting.nodes.split_off(at)[1..].to_vec();
                behind.push(WaitingBlocks {
                    parent: node,
                    nodes,
                    ..*waiting
                });
            }
        }
        self.waiting.extend(behind);
        self.waiting.retain(|waiting| !waiting.nodes.is_empty());
    }

    /// Clears one tier of a target, and all its speculative blocks.
    pub(crate) fn clear_tier(&mut self, target: TargetNo, tier: Tier) {
        self.holders
            .iter_mut()
            .for_each(|holders| holders[tier.index()] &= !target.bit());
        self.waiting
            .retain(|waiting| (waiting.target, waiting.tier) != (target, tier));
        self.forget_all_expected(target);
    }

    /// Clears one tier of a target in one namespace.
    pub(crate) fn clear_stream(&mut self, target: TargetNo, space: NamespaceNo, tier: Tier) {
        let cells = space.0 * self.nodes..(space.0 + 1) * self.nodes;
        self.holders[cells]
            .iter_mut()
            .for_each(|holders| holders[tier.index()] &= !target.bit());
    }

    pub(crate) fn clear(&mut self, target: TargetNo) {
        Tier::ALL
            .into_iter()
            .for_each(|tier| self.clear_tier(target, tier));
    }

    /// Removes a worker with all its ranks.
    pub(crate) fn remove_worker(&mut self, rank: TargetNo) {
        for target in (0..self.owners.len()).map(TargetNo) {
            if target.target().worker == rank.target().worker {
                self.clear(target);
                self.owners[target.0] = OracleTarget {
                    model: None,
                    trusted: true,
                };
            }
        }
    }

    pub(crate) fn trust(&mut self, target: TargetNo, trusted: bool) {
        let before = std::mem::replace(&mut self.owners[target.0].trusted, trusted);
        if trusted && !before {
            self.forget_all_expected(target);
        }
    }

    pub(crate) fn expect(
        &mut self,
        target: TargetNo,
        space: NamespaceNo,
        nodes: &[NodeNo],
        ttl_s: u64,
        call: u64,
    ) {
        for node in nodes {
            if self.owners[target.0].trusted && self.has(target, space, *node) {
                continue;
            }
            let cell = self.cell(space, *node);
            self.ever[cell] = true;
            let entries = self.expected.entry(cell).or_default();
            let until_s = self.now_s + ttl_s;
            match entries
                .iter_mut()
                .find(|expected| expected.target == target)
            {
                Some(known) => {
                    *known = ExpectedBlock {
                        until_s: known.until_s.max(until_s),
                        call,
                        ..*known
                    }
                }
                None => entries.push(ExpectedBlock {
                    target,
                    until_s,
                    call,
                }),
            }
        }
    }

    /// Removes the speculative blocks that one call created and no other renewed.
    pub(crate) fn retract(&mut self, call: u64) {
        self.retain_expected(|expected| expected.call != call);
    }

    pub(crate) fn wait_until(&mut self, now_s: u64) {
        self.now_s = now_s;
        self.retain_expected(|expected| expected.until_s > now_s);
    }

    fn forget_all_expected(&mut self, target: TargetNo) {
        self.retain_expected(|expected| expected.target != target);
    }

    fn retain_expected(&mut self, is_retained: impl Fn(&ExpectedBlock) -> bool) {
        self.expected.retain(|_, entries| {
            entries.retain(&is_retained);
            !entries.is_empty()
        });
    }

    fn forget_expected(&mut self, cell: usize, is_removed: impl Fn(&ExpectedBlock) -> bool) {
        if let Some(entries) = self.expected.get_mut(&cell) {
            entries.retain(|expected| !is_removed(expected));
            if entries.is_empty() {
                self.expected.remove(&cell);
            }
        }
    }

    /// Returns the leading blocks of a prompt at every target, in the order of targets.
    pub(crate) fn lookup(&self, space: NamespaceNo, prompt: &[NodeNo]) -> Vec<ExpectedAnswer> {
        let mut answers = Vec::new();
        for target in (0..self.owners.len()).map(TargetNo) {
            let (blocks, announced, present) = if self.owners[target.0].trusted {
                let (both, present) = self.run(target, space, prompt, true, true);
                (both, both, present)
            } else {
                let (announced, _) = self.run(target, space, prompt, true, false);
                (
                    self.run(target, space, prompt, false, true).0,
                    announced,
                    [0; 4],
                )
            };
            if blocks.total() + announced.total() > 0 {
                answers.push(ExpectedAnswer {
                    target: target.target(),
                    blocks,
                    announced,
                    present,
                });
            }
        }
        answers
    }

    /// Returns the leading blocks of a target, from announced blocks, expected blocks, or both: by
    /// best tier, and by every tier.
    fn run(
        &self,
        target: TargetNo,
        space: NamespaceNo,
        prompt: &[NodeNo],
        announced: bool,
        expected: bool,
    ) -> (TierBlocks, [u32; 4]) {
        let mut blocks = TierBlocks::default();
        let mut present = [0; 4];
        for node in prompt {
            let tiers = Tier::ALL.map(|tier| announced && self.holds(target, space, *node, tier));
            match Tier::ALL.into_iter().find(|tier| tiers[tier.index()]) {
                Some(Tier::Device) => blocks.device += 1,
                Some(Tier::Host) => blocks.host += 1,
                Some(Tier::Disk) => blocks.disk += 1,
                Some(Tier::Remote) => blocks.remote += 1,
                None if expected && self.is_expected(target, space, *node) => {
                    blocks.speculative += 1
                }
                None => break,
            }
            for (count, tier) in present.iter_mut().zip(tiers) {
                *count += u32::from(tier);
            }
        }
        (blocks, present)
    }

    fn is_expected(&self, target: TargetNo, space: NamespaceNo, node: NodeNo) -> bool {
        let entries = self.expected.get(&self.cell(space, node));
        entries.is_some_and(|entries| entries.iter().any(|expected| expected.target == target))
    }

    /// Returns all held blocks as (target, tier, cell).
    pub(crate) fn rows(&self) -> impl Iterator<Item = (TargetNo, Tier, usize)> + '_ {
        let targets = self.owners.len();
        self.holders
            .iter()
            .enumerate()
            .flat_map(move |(cell, holders)| {
                Tier::ALL.into_iter().flat_map(move |tier| {
                    let of = holders[tier.index()];
                    (0..targets)
                        .map(TargetNo)
                        .filter(move |target| of & target.bit() != 0)
                        .map(move |t| (t, tier, cell))
                })
            })
    }

    /// Returns the number of held blocks, of pairs of block and target, and of blocks per target
    /// and tier.
    pub(crate) fn totals(&self) -> (u64, u64, Vec<[u64; 4]>) {
        let any = |holders: &[u128; 4]| holders.iter().fold(0, |all, tier| all | tier);
        let distinct = self
            .holders
            .iter()
            .filter(|holders| any(holders) != 0)
            .count() as u64;
        let memberships = self
            .holders
            .iter()
            .map(|holders| u64::from(any(holders).count_ones()))
            .sum();
        let mut per_tier = vec![[0; 4]; self.owners.len()];
        self.rows()
            .for_each(|(target, tier, _)| per_tier[target.0][tier.index()] += 1);
        (distinct, memberships, per_tier)
    }

    /// Returns the held blocks by target, tier and namespace.
    pub(crate) fn by_holder(&self) -> BTreeMap<(TargetNo, Tier, NamespaceNo), BTreeSet<NodeNo>> {
        let mut holders: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (target, tier, cell) in self.rows() {
            let holder = (target, tier, NamespaceNo(cell / self.nodes));
            holders
                .entry(holder)
                .or_default()
                .insert(NodeNo(cell % self.nodes));
        }
        holders
    }
}
