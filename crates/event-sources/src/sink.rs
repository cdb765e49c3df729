//! Where updates of blocks go.

use std::{fmt, sync::Arc};

use kv_blocks::{IndexUpdate, Target};
use kv_index::{KvIndex, UpdateOutcome};
use parking_lot::RwLock;

/// Takes what streams say about blocks. The index is one; a [`FanOut`] is in front of it where a stream speaks of a
/// store that several targets share.
pub trait BlockSink: fmt::Debug + Send + Sync {
    /// The target's blocks belong to this model; called before anything is applied.
    fn register(&self, target: Target, model: &Arc<str>);
    /// Takes one update.
    fn apply(&self, target: Target, update: &IndexUpdate) -> UpdateOutcome;
    /// Drops everything known of the target.
    fn clear(&self, target: Target);
    /// Updates of the target may have been lost here: see [`KvIndex::hole`].
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

/// One stream for several targets: what it says of its own target is told to the index for each of these instead.
///
/// It is for stores beside engines, which only say that blocks the engines named are with them too. So nothing is
/// registered, and a stream that starts over empties nothing: its targets' own streams say what they hold.
#[derive(Debug)]
pub struct FanOut {
    index: Arc<KvIndex>,
    targets: RwLock<Vec<Target>>,
}

impl FanOut {
    /// For nobody yet.
    pub fn new(index: Arc<KvIndex>) -> Self {
        Self {
            index,
            targets: RwLock::default(),
        }
    }

    /// From now on for this target too. What the stream said before is not repeated.
    pub fn add(&self, target: Target) {
        let mut targets = self.targets.write();
        if !targets.contains(&target) {
            targets.push(target);
        }
    }

    /// No longer for this target; says whether any is left. What it was told stays with it.
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
