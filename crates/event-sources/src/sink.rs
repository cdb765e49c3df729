//! Sinks for block updates.

use std::{fmt, sync::Arc};

use kv_blocks::{BlockSize, IndexUpdate, StreamPosition, Target, Tier};
use kv_events::standard::StreamOutput;
use kv_index::{KvIndex, MediumStream, Publisher, UpdateOutcome};
use parking_lot::RwLock;

use crate::{EnvelopeOutcome, StandardSinkSpec, envelopes::EnvelopeIndex};

/// Takes the block updates of streams. The index is one; a [`FanOut`] precedes it where a stream
/// describes a store that several targets share.
pub trait BlockSink: fmt::Debug + Send + Sync {
    /// Assigns the target's blocks to this model; called before any update is applied.
    fn register(&self, target: Target, model: &Arc<str>);
    /// Applies one update.
    fn apply(&self, target: Target, update: &IndexUpdate) -> UpdateOutcome;
    /// Applies one update of blocks on a medium with an unknown name.
    fn apply_labelled(&self, target: Target, update: &IndexUpdate, label: &str) -> UpdateOutcome {
        let _ = label;
        self.apply(target, update)
    }
    /// Carries out what a stream of envelopes delivered. Sinks of publishers without envelopes
    /// ignore it.
    fn envelope(&self, output: &StreamOutput) -> EnvelopeOutcome {
        let _ = output;
        EnvelopeOutcome::default()
    }
    /// Drops all known blocks of the target.
    fn clear(&self, target: Target);
    /// Marks a loss of updates of the target: see [`KvIndex::mark_loss`].
    fn mark_loss(&self, target: Target);
    /// Records the batch up to which all updates are applied: see [`KvIndex::note_position`]. Sinks
    /// whose content is not saved ignore it.
    fn note_position(&self, target: Target, position: Option<StreamPosition>) {
        let _ = (target, position);
    }
    /// Credits the target's blocks from an earlier process: see [`KvIndex::confirm`].
    fn confirm(&self, target: Target) -> Option<BlockSize> {
        let _ = target;
        None
    }
}

impl BlockSink for KvIndex {
    fn register(&self, target: Target, model: &Arc<str>) {
        KvIndex::register(self, target, Arc::clone(model));
    }

    fn apply(&self, target: Target, update: &IndexUpdate) -> UpdateOutcome {
        KvIndex::apply(self, target, update)
    }

    fn apply_labelled(&self, target: Target, update: &IndexUpdate, label: &str) -> UpdateOutcome {
        self.apply_from(target, update, &labelled(Publisher::Engine, update, label))
    }

    fn clear(&self, target: Target) {
        self.clear_engine(target);
    }

    fn mark_loss(&self, target: Target) {
        KvIndex::mark_loss(self, target);
    }

    fn note_position(&self, target: Target, position: Option<StreamPosition>) {
        KvIndex::note_position(self, target, position);
    }

    fn confirm(&self, target: Target) -> Option<BlockSize> {
        KvIndex::confirm(self, target)
    }
}

/// One stream for several targets: each update of the stream's own target is applied to all of
/// these targets instead.
///
/// It serves stores beside engines. A store's master only announces that it holds blocks that the
/// engines named before: such updates register nothing, say nothing of the engines' devices, and a
/// restart of the stream clears nothing, since the targets' own streams report their blocks. The
/// envelopes of a store are placed by the dimensions of each member.
#[derive(Debug)]
pub struct FanOut {
    index: Arc<KvIndex>,
    members: RwLock<Vec<StoreMember>>,
}

#[derive(Debug)]
struct StoreMember {
    target: Target,
    /// Envelopes of the store for this member; `None` if it takes none.
    envelopes: Option<EnvelopeIndex>,
}

impl FanOut {
    /// Creates a fan-out without targets.
    pub fn new(index: Arc<KvIndex>) -> Self {
        Self {
            index,
            members: RwLock::default(),
        }
    }

    /// Adds a target. Earlier updates are not repeated for it.
    pub fn add(&self, target: Target) {
        self.add_member(target, None);
    }

    /// Adds a target that takes envelopes, too, by its dimensions.
    pub fn add_with_envelopes(&self, target: Target, spec: StandardSinkSpec) {
        let envelopes = EnvelopeIndex::of_store(spec, Arc::clone(&self.index));
        self.add_member(target, Some(envelopes));
    }

    fn add_member(&self, target: Target, envelopes: Option<EnvelopeIndex>) {
        let mut members = self.members.write();
        if !members.iter().any(|known| known.target == target) {
            members.push(StoreMember { target, envelopes });
        }
    }

    /// Removes a target and returns whether any is left. Its blocks stay in the index.
    pub fn remove(&self, target: Target) -> bool {
        let mut members = self.members.write();
        members.retain(|known| known.target != target);
        !members.is_empty()
    }
}

impl FanOut {
    fn apply_to_each(
        &self,
        update: &IndexUpdate,
        apply: impl Fn(Target) -> UpdateOutcome,
    ) -> UpdateOutcome {
        let mut sum = UpdateOutcome::default();
        if update.tier() == Tier::Device {
            sum.ignored = 1;
            return sum;
        }
        for member in &*self.members.read() {
            add(&mut sum, apply(member.target));
        }
        sum
    }
}

impl BlockSink for FanOut {
    fn register(&self, _: Target, _: &Arc<str>) {}

    fn apply(&self, _: Target, update: &IndexUpdate) -> UpdateOutcome {
        let stream = MediumStream::of_tier(Publisher::StoreMaster, update.tier());
        self.apply_to_each(update, |target| {
            self.index.apply_from(target, update, &stream)
        })
    }

    fn apply_labelled(&self, _: Target, update: &IndexUpdate, label: &str) -> UpdateOutcome {
        let stream = labelled(Publisher::StoreMaster, update, label);
        self.apply_to_each(update, |target| {
            self.index.apply_from(target, update, &stream)
        })
    }

    fn envelope(&self, output: &StreamOutput) -> EnvelopeOutcome {
        let mut sum = EnvelopeOutcome::default();
        let mut accepted = false;
        for envelopes in self
            .members
            .write()
            .iter_mut()
            .filter_map(|member| member.envelopes.as_mut())
        {
            let outcome = envelopes.take(output);
            accepted |= outcome.rejection.is_none();
            add(&mut sum.update, outcome.update);
            sum.rehashed |= outcome.rehashed;
            sum.block_size = sum.block_size.or(outcome.block_size);
            sum.rejection = sum.rejection.or(outcome.rejection);
        }
        // An event for one member only is no fault.
        sum.rejection = sum.rejection.filter(|_| !accepted);
        sum
    }

    fn clear(&self, target: Target) {
        self.mark_loss(target);
    }

    fn mark_loss(&self, _: Target) {
        for member in &*self.members.read() {
            self.index.mark_loss(member.target);
            member.envelopes.iter().for_each(EnvelopeIndex::mark_loss);
        }
    }
}

/// Returns the stream of an update on a medium with an unknown name.
pub(crate) fn labelled<'a>(
    publisher: Publisher,
    update: &IndexUpdate,
    label: &'a str,
) -> MediumStream<'a> {
    MediumStream {
        medium: label,
        unlisted: true,
        ..MediumStream::of_tier(publisher, update.tier())
    }
}

fn add(sum: &mut UpdateOutcome, more: UpdateOutcome) {
    sum.applied = sum.applied.saturating_add(more.applied);
    sum.orphans = sum.orphans.saturating_add(more.orphans);
    sum.ignored = sum.ignored.saturating_add(more.ignored);
}
