//! The blocks of all open reservations as a tree of prefixes; shared blocks are stored once.
//!
//! A node stands for a run of blocks that all its sequences share, so a sequence takes a few nodes,
//! however many blocks it has. Each node records the targets whose sequences pass it.
//!
//! **Invariants**: a node has a holder, holders of a node hold its parent, and a node with one
//! child is the end of a sequence. So there are fewer than twice as many nodes as open
//! reservations.

use std::{cmp::Ordering, collections::BTreeMap, mem, sync::Arc};

use kv_blocks::{SequenceHash, Target};

use super::{SequenceBlocks, chunked_list::ChunkedList};

/// The blocks of a set of sequences: those of all open reservations, or those that were used lately.
#[derive(Debug, Default)]
pub(crate) struct ActiveBlocks {
    nodes: ChunkedList<SequenceNode>,
    free: Vec<NodeId>,
    /// By namespace and first block.
    roots: BTreeMap<(u64, SequenceHash), NodeId>,
    /// Tables of bursts that are over: freeing them takes longer than the lock may be held. At most
    /// one for each burst since they were last taken.
    retired: Vec<RetiredNodes>,
}

/// An unused table of nodes.
#[derive(Debug)]
pub(crate) struct RetiredNodes {
    _nodes: ChunkedList<SequenceNode>,
}

/// The node at which a sequence ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(usize);

/// Leading blocks that are active, by target; other targets have none.
#[derive(Debug, Default)]
pub(crate) struct KnownBlocks(Vec<(Target, usize)>);

#[derive(Debug)]
struct SequenceNode {
    fingerprint: u64,
    /// A sequence that passes, and the range of its blocks that the node stands for.
    chain: Arc<[SequenceHash]>,
    start: usize,
    end: usize,
    parent: Option<NodeId>,
    children: BTreeMap<SequenceHash, NodeId>,
    /// Targets whose sequences pass or end here, and how many of them; ordered by target.
    holders: Vec<(Target, u32)>,
}

impl KnownBlocks {
    /// Returns the blocks of one target.
    pub(crate) fn of(&self, target: Target) -> usize {
        self.0
            .binary_search_by_key(&target, |(holder, _)| *holder)
            .map_or(0, |found| self.0[found].1)
    }
}

impl ActiveBlocks {
    /// Adds a sequence of `target`; returns its end, and how many of its blocks were not active
    /// there.
    pub(crate) fn add(&mut self, target: Target, blocks: &SequenceBlocks) -> (Option<NodeId>, u64) {
        let Some(chain) = blocks.chain.as_ref() else {
            return (None, 0);
        };
        let (mut last, mut at, mut added) = (None, 0, 0);
        while at < chain.len() {
            let id = match self.next(last, blocks.fingerprint, chain[at]) {
                Some(id) => {
                    let end = self.node(id).shared_with(chain);
                    if end < self.node(id).end {
                        self.split(id, end)
                    } else {
                        id
                    }
                }
                None => self.grow(last, blocks.fingerprint, chain, at),
            };
            let node = &mut self.nodes[id.0];
            at = node.end;
            added += node.add_holder(target);
            last = Some(id);
        }
        (last, added)
    }

    /// Removes a sequence of `target` that ends at `leaf`; returns how many of its blocks are no
    /// longer active there.
    pub(crate) fn remove(&mut self, target: Target, leaf: Option<NodeId>) -> u64 {
        let (mut freed, mut at, mut last) = (0, leaf, None);
        while let Some(id) = at {
            let node = &mut self.nodes[id.0];
            freed += node.let_go(target);
            at = node.parent;
            if node.holders.is_empty() {
                self.drop_node(id);
            } else if last.is_none() {
                last = Some(id);
            }
        }
        if let Some(id) = last {
            self.join_with_only_child(id);
        }
        freed
    }

    /// Returns unused tables, to be dropped without the router's lock.
    pub(crate) fn take_retired(&mut self) -> Vec<RetiredNodes> {
        mem::take(&mut self.retired)
    }

    /// Returns the leading blocks of a sequence that are active, by target.
    pub(crate) fn known(&self, blocks: &SequenceBlocks) -> KnownBlocks {
        let mut known = KnownBlocks::default();
        let Some(chain) = blocks.chain.as_ref() else {
            return known;
        };
        let (mut last, mut at) = (None, 0);
        while at < chain.len()
            && let Some(id) = self.next(last, blocks.fingerprint, chain[at])
        {
            let node = self.node(id);
            at = node.shared_with(chain);
            if last.is_none() {
                known
                    .0
                    .extend(node.holders.iter().map(|(target, _)| (*target, at)));
            } else {
                // Holders of a node are among those of its parent, in the same order.
                let mut rows = known.0.iter_mut();
                for (target, _) in &node.holders {
                    if let Some(row) = rows.find(|row| row.0 == *target) {
                        row.1 = at;
                    }
                }
            }
            if at < node.end {
                break;
            }
            last = Some(id);
        }
        known
    }

    /// Returns the nodes of which a sequence has every block, from its beginning on. Sequences that
    /// end at one of them are beginnings of it.
    pub(crate) fn path(&self, blocks: &SequenceBlocks) -> Vec<NodeId> {
        let mut path = Vec::new();
        let Some(chain) = blocks.chain.as_ref() else {
            return path;
        };
        let (mut last, mut at) = (None, 0);
        while at < chain.len()
            && let Some(id) = self.next(last, blocks.fingerprint, chain[at])
        {
            let node = self.node(id);
            at = node.shared_with(chain);
            if at < node.end {
                break;
            }
            path.push(id);
            last = Some(id);
        }
        path
    }

    fn node(&self, id: NodeId) -> &SequenceNode {
        &self.nodes[id.0]
    }

    fn next(&self, parent: Option<NodeId>, fingerprint: u64, hash: SequenceHash) -> Option<NodeId> {
        match parent {
            Some(parent) => self.node(parent).children.get(&hash).copied(),
            None => self.roots.get(&(fingerprint, hash)).copied(),
        }
    }

    /// Registers `id` with its parent, or as a root, under its first block.
    fn link(&mut self, id: NodeId) {
        let node = self.node(id);
        let (parent, fingerprint, first) = (node.parent, node.fingerprint, node.chain[node.start]);
        match parent {
            Some(parent) => self.nodes[parent.0].children.insert(first, id),
            None => self.roots.insert((fingerprint, first), id),
        };
    }

    fn add_node(&mut self, node: SequenceNode) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.nodes[id.0] = node;
            return id;
        }
        NodeId(self.nodes.push(node))
    }

    /// Adds a node for the rest of `chain`.
    fn grow(
        &mut self,
        parent: Option<NodeId>,
        fingerprint: u64,
        chain: &Arc<[SequenceHash]>,
        start: usize,
    ) -> NodeId {
        let id = self.add_node(SequenceNode {
            fingerprint,
            chain: Arc::clone(chain),
            start,
            end: chain.len(),
            parent,
            children: BTreeMap::new(),
            holders: Vec::new(),
        });
        self.link(id);
        id
    }

    /// Splits the blocks of a node up to `end` into a new parent, which it returns. Sequences that
    /// end at the node still do.
    fn split(&mut self, id: NodeId, end: usize) -> NodeId {
        let node = self.node(id);
        let upper = SequenceNode {
            fingerprint: node.fingerprint,
            chain: Arc::clone(&node.chain),
            start: node.start,
            end,
            parent: node.parent,
            children: BTreeMap::from([(node.chain[end], id)]),
            holders: node.holders.clone(),
        };
        let upper = self.add_node(upper);
        self.link(upper);
        let node = &mut self.nodes[id.0];
        (node.start, node.parent) = (end, Some(upper));
        upper
    }

    fn drop_node(&mut self, id: NodeId) {
        let node = &mut self.nodes[id.0];
        let (parent, fingerprint, first) = (node.parent, node.fingerprint, node.chain[node.start]);
        (node.chain, node.children) = (Arc::default(), BTreeMap::new());
        match parent {
            Some(parent) => self.nodes[parent.0].children.remove(&first),
            None => self.roots.remove(&(fingerprint, first)),
        };
        self.free.push(id);
        if self.free.len() == self.nodes.len() && self.nodes.has_grown() {
            // The table of a burst must not stay allocated.
            let _nodes = mem::take(&mut self.nodes);
            self.retired.push(RetiredNodes { _nodes });
            self.free = Vec::new();
        }
    }

    /// Merges a node with its only child when no sequence ends between them. Sequences that end at
    /// the child still do.
    fn join_with_only_child(&mut self, id: NodeId) {
        let node = self.node(id);
        let mut children = node.children.values();
        let (Some(child), None) = (children.next().copied(), children.next()) else {
            return;
        };
        if self.node(child).holders != node.holders {
            return;
        }
        let (start, parent) = (node.start, node.parent);
        let upper = &mut self.nodes[id.0];
        (upper.chain, upper.children, upper.holders) =
            (Arc::default(), BTreeMap::new(), Vec::new());
        self.free.push(id);
        let lower = &mut self.nodes[child.0];
        (lower.start, lower.parent) = (start, parent);
        self.link(child);
    }
}

impl SequenceNode {
    /// Returns the end of the blocks shared with `chain`. The first block is shared.
    fn shared_with(&self, chain: &[SequenceHash]) -> usize {
        let end = self.end.min(chain.len());
        let (ours, theirs) = (&self.chain[self.start..end], &chain[self.start..end]);
        if ours.last() == theirs.last() {
            return end;
        }
        // A hash covers all blocks before it, so equal ones come first.
        let (mut equal, mut unequal) = (1, ours.len());
        while equal < unequal {
            let middle = usize::midpoint(equal, unequal);
            match ours[middle] == theirs[middle] {
                true => equal = middle + 1,
                false => unequal = middle,
            }
        }
        self.start + equal
    }

    fn blocks(&self) -> u64 {
        (self.end - self.start) as u64
    }

    /// Adds a sequence of `target`; returns how many blocks are new to the target.
    fn add_holder(&mut self, target: Target) -> u64 {
        match self
            .holders
            .binary_search_by_key(&target, |(holder, _)| *holder)
        {
            Ok(found) => {
                self.holders[found].1 += 1;
                0
            }
            Err(position) => {
                self.holders.insert(position, (target, 1));
                self.blocks()
            }
        }
    }

    /// Removes a sequence; returns how many blocks are no longer active on `target`.
    fn let_go(&mut self, target: Target) -> u64 {
        let Ok(found) = self
            .holders
            .binary_search_by_key(&target, |(holder, _)| *holder)
        else {
            return 0;
        };
        match self.holders[found].1.cmp(&1) {
            Ordering::Greater => {
                self.holders[found].1 -= 1;
                0
            }
            _ => {
                self.holders.remove(found);
                self.blocks()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use kv_blocks::{DpRank, WorkerId};
    use proptest::prelude::*;

    use super::*;

    impl ActiveBlocks {
        /// Whether nothing is held but one allocation.
        fn is_released(&self) -> bool {
            let all_free = self.free.len() == self.nodes.len() && self.roots.is_empty();
            all_free && !self.nodes.has_grown()
        }
    }

    /// Blocks whose hashes depend on all labels before them.
    fn sequence(fingerprint: u64, labels: &[u8]) -> SequenceBlocks {
        let mut hash = 7u64;
        let next = |label: &u8| {
            hash = (hash ^ u64::from(*label))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23);
            SequenceHash(hash)
        };
        SequenceBlocks {
            chain: Some(labels.iter().map(next).collect()),
            fingerprint,
            unshared: 0,
        }
    }

    fn target(worker: u32) -> Target {
        Target {
            worker: WorkerId(worker),
            rank: DpRank(0),
        }
    }

    /// A reference implementation that counts every block.
    #[derive(Default)]
    struct BlockCounts(Vec<(Target, SequenceBlocks)>);

    impl BlockCounts {
        fn blocks(&self, of: Target) -> HashSet<(u64, SequenceHash)> {
            let here = self.0.iter().filter(|(target, _)| *target == of);
            here.flat_map(|(_, blocks)| {
                blocks
                    .chain
                    .iter()
                    .flat_map(|c| c.iter().map(|hash| (blocks.fingerprint, *hash)))
            })
            .collect()
        }

        fn known(&self, of: Target, blocks: &SequenceBlocks) -> usize {
            let active = self.blocks(of);
            let chain = blocks.chain.as_ref().unwrap();
            chain
                .iter()
                .take_while(|hash| active.contains(&(blocks.fingerprint, **hash)))
                .count()
        }
    }

    proptest! {
        #[test]
        fn the_count_equals_that_of_single_blocks(
            steps in prop::collection::vec(
                (0u32..3, 0u64..2, prop::collection::vec(0u8..2, 0..9), any::<bool>(), any::<prop::sample::Index>()),
                1..60,
            ),
        ) {
            let mut tree = ActiveBlocks::default();
            let (mut counted, mut leaves) = (BlockCounts::default(), Vec::new());
            for (worker, fingerprint, labels, adds, which) in steps {
                let blocks = sequence(fingerprint, &labels);
                for worker in 0..3 {
                    let known = tree.known(&blocks).of(target(worker));
                    prop_assert_eq!(known, counted.known(target(worker), &blocks));
                }
                if adds || leaves.is_empty() {
                    let before = counted.blocks(target(worker)).len() as u64;
                    counted.0.push((target(worker), blocks.clone()));
                    let (leaf, added) = tree.add(target(worker), &blocks);
                    leaves.push(leaf);
                    prop_assert_eq!(added, counted.blocks(target(worker)).len() as u64 - before);
                } else {
                    let i = which.index(leaves.len());
                    let before = counted.blocks(counted.0[i].0).len() as u64;
                    let (of, _) = counted.0.swap_remove(i);
                    let freed = tree.remove(of, leaves.swap_remove(i));
                    prop_assert_eq!(freed, before - counted.blocks(of).len() as u64);
                }
                prop_assert!(tree.nodes.len() - tree.free.len() <= 2 * leaves.len());
            }
            while let (Some(leaf), Some((of, _))) = (leaves.pop(), counted.0.pop()) {
                tree.remove(of, leaf);
            }
            prop_assert!(tree.is_released());
        }

        /// A caller may pass hashes that do not chain.
        #[test]
        fn hashes_that_do_not_chain_are_freed_completely(
            chains in prop::collection::vec(prop::collection::vec(0u64..3, 1..7), 1..20),
        ) {
            let mut tree = ActiveBlocks::default();
            let add = |chain: &Vec<u64>| {
                let chain = Some(chain.iter().copied().map(SequenceHash).collect());
                tree.add(target(1), &SequenceBlocks { chain, fingerprint: 0, unshared: 0 })
            };
            let added: Vec<_> = chains.iter().map(add).collect();
            let freed: u64 = added.iter().map(|(leaf, _)| tree.remove(target(1), *leaf)).sum();
            prop_assert_eq!(freed, added.iter().map(|(_, blocks)| blocks).sum::<u64>());
            prop_assert!(tree.is_released());
        }
    }
}
