//! Sinks for block updates.

use std::{fmt, sync::Arc};

use kv_blocks::{IndexUpdate, Target};
use kv_index::{KvIndex, UpdateOutcome};
use parking_lot::RwLock;

/// Takes the block updates of streams. The index is one; a [`FanOut`] precedes it where a stream
/// describes a store that several targets share.
pub trait BlockSink: fmt::Debug + Send + Sync {
    /// Assigns the target's blocks to this model; called before any update is applied.
    fn register(&self, target: Target, model: &Arc<str>);
    /// Applies one update.
    fn apply(&self, target: Target, update: &IndexUpdate) -> UpdateOutcome;
    /// Drops all known blocks of the target.
    fn clear(&self, target: Target);
    /// Marks a loss of updates of the target: see [`KvIndex::mark_loss`].
    fn mark_loss(&self, target: Target);
}

impl BlockSink for KvIndex {
    fn register(&self, target: Target, model: &Arc<str>) {
        KvIndex::register(self, target, Arc::clone(model));
    }

    fn apply(&self, target: Target, update: &IndexUpdate) -> UpdateOutcome {
        KvIndex::apply(self, target, update)
    }

    fn clear(&self, target: Target) {
        KvIndex::clear(self, target);
    }

    fn mark_loss(&self, target: Target) {
        KvIndex::mark_loss(self, target);
    }
}

/// One stream for several targets: each update of the stream's own target is applied to all of
/// these targets instead.
///
/// It serves stores beside engines, which only announce that they hold blocks that the engines
/// named before. So it registers nothing, and a restart of the stream clears nothing: the targets'
/// own streams report their blocks.
#[derive(Debug)]
pub struct FanOut {
    index: Arc<KvIndex>,
    targets: RwLock<Vec<Target>>,
}

impl FanOut {
    /// Creates a fan-out without targets.
    pub fn new(index: Arc<KvIndex>) -> Self {
        Self {
            index,
            targets: RwLock::default(),
        }
    }

    /// Adds a target. Earlier updates are not repeated for it.
    pub fn add(&self, target: Target) {
        let mut targets = self.targets.write();
        if !targets.contains(&target) {
            targets.push(target);
        }
    }

    /// Removes a target and returns whether any is left. Its blocks stay in the index.
    pub fn remove(&self, target: Target) -> bool {
        let mut targets = self.targets.write();
        targets.retain(|known| *known != target);
        !targets.is_empty()
    }
}

impl BlockSink for FanOut {
    fn register(&self, _: Target, _: &Arc<str>) {}

    fn apply(&self, _: Target, update: &IndexUpdate) -> UpdateOutcome {
        let mut sum = UpdateOutcome::default();
        for target in &*self.targets.read() {
            let done = self.index.apply(*target, update);
            sum.applied = sum.applied.saturating_add(done.applied);
            sum.orphans = sum.orphans.saturating_add(done.orphans);
            sum.ignored = sum.ignored.saturating_add(done.ignored);
        }
        sum
    }

    fn clear(&self, target: Target) {
        self.mark_loss(target);
    }

    fn mark_loss(&self, _: Target) {
        for target in &*self.targets.read() {
            self.index.mark_loss(*target);
        }
    }
}
