//! Announcements of targets, applied to both sides of a trial: stores and removals.

use std::{ops::Range, sync::Arc};

use kv_blocks::{IndexUpdate, PromptIdentity, RemovedBlocks, SequenceHash, StoredBlocks, Tier};
use kv_index::{KvIndex, UpdateOutcome};

use super::{
    naming::Naming,
    random::mix,
    step::{Pattern, Start},
    trial::Trial,
    world::{NamespaceNo, NodeNo, TargetNo},
};

/// Limit of blocks that wait for a parent, so that the index drops none for lack of room.
const MAX_WAITING: usize = 1000;

impl Trial {
    /// Returns the blocks of a prompt that a target may announce now: none that would count as a
    /// copy, none that already waits, and none of a model that it does not serve.
    pub(crate) fn stretch(
        &self,
        target: TargetNo,
        space: NamespaceNo,
        prompt: &[NodeNo],
        start: Start,
        blocks: usize,
        tier: Tier,
    ) -> Option<Range<usize>> {
        let serves = self
            .truth
            .model(target)
            .is_none_or(|model| model == self.world.spaces[space.0].model);
        if !serves || self.world.namespace(space).identity != PromptIdentity::Tokens {
            return None;
        }
        let device =
            |node: &&NodeNo| tier == Tier::Device && self.truth.holds(target, space, **node, tier);
        let waits = |node: &&NodeNo| self.truth.waits(target, space, **node, tier);
        let from = match start {
            Start::Root => 0,
            Start::Behind => prompt
                .iter()
                .take_while(|node| self.truth.has(target, space, **node))
                .count(),
            Start::At(at) => at % prompt.len(),
        };
        let end = prompt.len().min(from.saturating_add(blocks.max(1)));
        // A second announcement from the root does not count held blocks again. If the index lacks
        // a block in front, it counts those behind it as stored again.
        let repeats = from == 0 && self.exact();
        let again = prompt[..end]
            .iter()
            .take_while(|node| repeats && device(node) && !waits(node))
            .count();
        let first = from.max(again);
        let to = first
            + prompt[first..end]
                .iter()
                .take_while(|node| !device(node) && !waits(node))
                .count();
        let orphans = from > 0 && !self.truth.has(target, space, prompt[from - 1]);
        let room = !self.tight && self.truth.waiting_blocks() + to - from <= MAX_WAITING;
        (from < to && (!orphans || room)).then_some(from..to)
    }

    /// Stores a range of a prompt at a target. If the oracle does not know whether the parent is
    /// found, the index decides.
    pub(crate) fn announce(
        &mut self,
        target: TargetNo,
        space: NamespaceNo,
        prompt: &[NodeNo],
        range: Range<usize>,
        tier: Tier,
        labels: bool,
    ) -> Result<(), String> {
        let namespace = self.world.namespace(space);
        let nodes = &prompt[range.clone()];
        let parent = range.start.checked_sub(1).map(|at| prompt[at]);
        let naming = &mut self.namings[target.0];
        let applied = if matches!(naming, Naming::Hashes) {
            let parent = parent.map(|parent| self.world.nodes[parent.0].hash);
            self.index.store_hashes(
                target.target(),
                namespace,
                parent,
                &self.world.hashes(nodes),
                tier,
            )
        } else {
            let mut name = |node: NodeNo| naming.name(target, self.world.cell(space, node));
            let labels = labels || parent.is_none();
            let stored = StoredBlocks {
                parent: parent.map(&mut name),
                hashes: nodes.iter().map(|node| name(*node)).collect(),
                tokens: self.world.tokens(nodes),
                block_size: namespace.block_size,
                lora: namespace.lora.clone().filter(|_| labels),
                media: Vec::new(),
                salt: namespace.salt.clone().filter(|_| labels),
                tier,
            };
            self.index
                .apply(target.target(), &IndexUpdate::Stored(stored))
        };
        self.take(target, space, parent, nodes, tier, applied)
    }

    /// Applies the index's outcome of a store to the truth, if that outcome can be right.
    fn take(
        &mut self,
        target: TargetNo,
        space: NamespaceNo,
        parent: Option<NodeNo>,
        nodes: &[NodeNo],
        tier: Tier,
        applied: UpdateOutcome,
    ) -> Result<(), String> {
        let all = u32::try_from(nodes.len()).unwrap();
        let wrong = |expected: &str| Err(format!("{applied:?} for {all} blocks: {expected}"));
        self.counts.stored += u64::from(applied.applied);
        self.counts.orphans += u64::from(applied.orphans);
        if self.truth.model(target).is_none() {
            return if applied.ignored == all {
                Ok(())
            } else {
                wrong("the target is not registered")
            };
        }
        if !self.exact() {
            self.truth.store(target, space, nodes, tier);
            return if applied.applied <= all {
                Ok(())
            } else {
                wrong("more blocks than stored")
            };
        }
        if applied.orphans > 0 {
            let known = parent.is_none_or(|parent| self.truth.has(target, space, parent));
            return if known {
                wrong("the target holds their parent")
            } else if applied.orphans != all {
                wrong("all are behind the same parent")
            } else {
                self.truth
                    .orphan(target, space, parent.unwrap(), nodes, tier);
                Ok(())
            };
        }
        if parent.is_some_and(|parent| !self.truth.was_announced(space, parent)) {
            return wrong("no target ever announced their parent");
        }
        let waiting = self.truth.waiting_blocks();
        self.truth.store(target, space, nodes, tier);
        let freed = waiting > self.truth.waiting_blocks();
        if applied.applied == all || freed && applied.applied > all {
            Ok(())
        } else {
            wrong("all should be stored")
        }
    }

    /// Returns some of the blocks of a prompt that a target holds in a tier, or that wait there.
    pub(crate) fn chosen(
        &self,
        target: TargetNo,
        space: NamespaceNo,
        prompt: &[NodeNo],
        pattern: Pattern,
        tier: Tier,
    ) -> Vec<NodeNo> {
        let known = |node: &NodeNo| {
            self.truth.holds(target, space, *node, tier)
                || self.truth.waits(target, space, *node, tier)
        };
        let resident: Vec<_> = prompt.iter().copied().filter(known).collect();
        let some = |from: usize, count: usize| resident.iter().copied().skip(from).take(count);
        match pattern {
            Pattern::Tail(count) => resident.iter().rev().copied().take(count).collect(),
            Pattern::Head(count) => some(0, count).collect(),
            Pattern::Middle(from, count) => some(from % resident.len().max(1), count).collect(),
            Pattern::Scattered(bits) => resident
                .iter()
                .enumerate()
                .filter(|(at, _)| bits >> (at % 64) & 1 == 1)
                .map(|(_, node)| *node)
                .collect(),
            Pattern::All => resident,
        }
    }

    /// Removes blocks of a target, in this order, and `strangers` blocks that it does not hold.
    pub(crate) fn discard(
        &mut self,
        target: TargetNo,
        space: NamespaceNo,
        nodes: &[NodeNo],
        tier: Tier,
        strangers: usize,
    ) -> Result<(), String> {
        let index = Arc::clone(&self.index);
        let applied = self.apply_removed(&index, target, space, nodes, tier, strangers);
        let resident = nodes
            .iter()
            .filter(|node| self.truth.holds(target, space, **node, tier))
            .count();
        let waiting = nodes
            .iter()
            .filter(|node| self.truth.waits(target, space, **node, tier))
            .count();
        for node in nodes {
            self.truth.remove(target, space, *node, tier);
        }
        let all = u32::try_from(nodes.len() + strangers).unwrap();
        self.counts.removed += u64::from(applied.applied);
        let all_counted = applied.applied + applied.ignored == all && applied.orphans == 0;
        // Waiting blocks may or may not count, also those that are held as well.
        let right = (resident..=resident + waiting).contains(&(applied.applied as usize));
        if all_counted && (right || !self.exact()) {
            return Ok(());
        }
        Err(format!(
            "{applied:?} for {all} removals, of which {resident} are of held blocks"
        ))
    }

    /// Applies a removal of blocks to an index: this one or a copy of it.
    pub(crate) fn apply_removed(
        &mut self,
        index: &KvIndex,
        target: TargetNo,
        space: NamespaceNo,
        nodes: &[NodeNo],
        tier: Tier,
        strangers: usize,
    ) -> UpdateOutcome {
        let naming = &mut self.namings[target.0];
        let world = &self.world;
        if matches!(naming, Naming::Hashes) {
            let unknown = (0..strangers).map(|number| SequenceHash(mix(number as u64)));
            let hashes: Vec<_> = world.hashes(nodes).into_iter().chain(unknown).collect();
            index.remove_hashes(target.target(), world.namespace(space), &hashes, tier)
        } else {
            let names = nodes
                .iter()
                .map(|node| naming.name(target, world.cell(space, *node)));
            let hashes = names.chain((0..strangers).map(Naming::unknown)).collect();
            index.apply(
                target.target(),
                &IndexUpdate::Removed(RemovedBlocks { hashes, tier }),
            )
        }
    }
}
