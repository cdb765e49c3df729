//! Enters the envelopes of one publisher into the index.

use std::{collections::BTreeMap, sync::Arc};

use kv_blocks::{
    BlockSize, DpRank, HashScheme, IndexUpdate, Namespace, StoredBlocks, Target, Tier, WorkerId,
};
use kv_events::{
    standard::{
        EnvelopeChange, EnvelopeNormaliser, EnvelopeUpdate, EventRejection, HashKeyedUpdate,
        StandardChange, StandardEvent, StreamKey, StreamOutput,
    },
    vllm::Medium,
};
use kv_index::{KvIndex, MediumStream, Publisher, UpdateOutcome};
use parking_lot::Mutex;

use crate::{BlockSink, sink::labelled};

/// Most ranks of one publisher; events of further ones are ignored.
const MAX_RANKS: usize = 1_024;

/// The scope of a publisher's envelopes.
#[derive(Clone, Debug)]
pub struct StandardSinkSpec {
    /// The worker whose caches the events describe.
    pub id: WorkerId,
    /// Defaults for the dimensions that envelopes leave open. Events of another tenant, model or
    /// block size are ignored.
    pub registration: StreamKey,
    /// The index's hash scheme. Events that name blocks by hash only are accepted if it is XXH3.
    pub scheme: HashScheme,
}

/// The effect of one envelope on the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvelopeOutcome {
    /// The result in blocks.
    pub update: UpdateOutcome,
    /// Why the event was rejected.
    pub rejection: Option<EventRejection>,
    /// Whether the blocks were indexed by their tokens, because the hashes are the publisher's own.
    pub rehashed: bool,
    /// Tokens per block of stored blocks.
    pub block_size: Option<u32>,
}

/// One publisher's envelopes and their part of the index.
#[derive(Debug)]
pub(crate) struct EnvelopeIndex {
    spec: StandardSinkSpec,
    index: Arc<KvIndex>,
    normaliser: EnvelopeNormaliser,
    /// Ranks in events, each registered with the index.
    targets: BTreeMap<u32, Target>,
    /// For a store beside the engines: the tiers that it has stored blocks in.
    store_tiers: Option<[bool; 4]>,
}

impl EnvelopeIndex {
    pub(crate) fn new(spec: StandardSinkSpec, index: Arc<KvIndex>) -> Self {
        Self {
            normaliser: EnvelopeNormaliser::new(spec.registration.clone(), spec.scheme),
            spec,
            index,
            targets: BTreeMap::new(),
            store_tiers: None,
        }
    }

    /// Creates the part of a store beside the engines: it clears only what it has stored.
    pub(crate) fn of_store(spec: StandardSinkSpec, index: Arc<KvIndex>) -> Self {
        Self {
            store_tiers: Some([false; 4]),
            ..Self::new(spec, index)
        }
    }

    /// Carries out what a stream delivered.
    pub(crate) fn take(&mut self, output: &StreamOutput) -> EnvelopeOutcome {
        match output {
            StreamOutput::Event(event) => self.apply(event).unwrap_or_else(|why| EnvelopeOutcome {
                rejection: Some(why),
                ..EnvelopeOutcome::default()
            }),
            StreamOutput::Hole(key) => {
                if let Some(target) = self.targets.get(&self.rank(key)) {
                    self.index.mark_loss(*target);
                }
                EnvelopeOutcome::default()
            }
            StreamOutput::Restarted(key) => {
                self.clear_stream(key);
                EnvelopeOutcome::default()
            }
        }
    }

    /// Drops all blocks, and what was learnt of the publisher.
    pub(crate) fn forget(&mut self) {
        self.targets
            .values()
            .for_each(|target| self.index.clear_engine(*target));
        self.normaliser.reset();
    }

    /// Forgets what was learnt of the publisher; the blocks stay.
    pub(crate) fn reconnected(&mut self) {
        self.normaliser.reset();
    }

    pub(crate) fn mark_loss(&self) {
        self.targets
            .values()
            .for_each(|target| self.index.mark_loss(*target));
    }

    fn apply(&mut self, event: &StandardEvent) -> Result<EnvelopeOutcome, EventRejection> {
        let update = self.normaliser.update(event)?;
        let Some(target) = self.target(update.rank, &update.namespace.model) else {
            return Ok(EnvelopeOutcome::default());
        };
        self.check_depth(&update)?;
        let stored = matches!(event.change, StandardChange::Stored { .. });
        let rehashed = stored && matches!(update.change, EnvelopeChange::Named(_));
        Ok(EnvelopeOutcome {
            update: self.apply_change(target, event, &update),
            rejection: None,
            rehashed,
            block_size: stored.then(|| update.namespace.block_size.tokens()),
        })
    }

    fn apply_change(
        &mut self,
        target: Target,
        event: &StandardEvent,
        update: &EnvelopeUpdate,
    ) -> UpdateOutcome {
        if let EnvelopeChange::Named(IndexUpdate::Stored(StoredBlocks { tier, .. }))
        | EnvelopeChange::Hashed(HashKeyedUpdate::Stored { tier, .. }) = &update.change
        {
            self.note_store(*tier);
        }
        let stream = self.stream(&event.stream);
        let namespace = &update.namespace;
        match &update.change {
            EnvelopeChange::Named(named) => self.index.apply_from(target, named, &stream),
            EnvelopeChange::Hashed(HashKeyedUpdate::Stored { parent, hashes, .. }) => {
                let blocks = (*parent, &hashes[..]);
                self.index
                    .store_hashes_from(target, namespace, blocks, &stream)
            }
            EnvelopeChange::Hashed(HashKeyedUpdate::Removed { hashes, .. }) => self
                .index
                .remove_hashes_from(target, namespace, hashes, &stream),
            EnvelopeChange::Hashed(HashKeyedUpdate::Cleared { .. }) => {
                let every_medium = event.stream.medium.is_none();
                self.clear(target, namespace, &stream, every_medium);
                UpdateOutcome {
                    applied: 1,
                    ..UpdateOutcome::default()
                }
            }
        }
    }

    /// Clears the medium of a stream; of a store that names none, all media of the stream's backend.
    fn clear(
        &self,
        target: Target,
        namespace: &Namespace,
        stream: &MediumStream<'_>,
        every_medium: bool,
    ) {
        for tier in self.tiers_to_clear(stream.tier, every_medium) {
            if tier == stream.tier {
                self.index.clear_from(target, Some(namespace), stream);
            } else {
                let stream = MediumStream { tier, ..*stream };
                self.index.clear_backend(target, namespace, &stream);
            }
        }
    }

    /// Returns the stream of an event in the index.
    fn stream<'a>(&'a self, key: &'a StreamKey) -> MediumStream<'a> {
        let StreamKey {
            backend_id, medium, ..
        } = &self.spec.registration;
        let medium = key.medium.as_deref().or(medium.as_deref());
        let meaning = Medium::parse(medium, None);
        MediumStream {
            publisher: match self.store_tiers {
                Some(_) => Publisher::Store,
                None => Publisher::Engine,
            },
            backend: key
                .backend_id
                .as_deref()
                .or(backend_id.as_deref())
                .unwrap_or_default(),
            medium: medium.unwrap_or_default(),
            tier: meaning.tier(),
            unlisted: meaning == Medium::Unlisted,
        }
    }

    /// Rejects a removal of a block that the index holds at another depth: its hash collides.
    fn check_depth(&self, update: &EnvelopeUpdate) -> Result<(), EventRejection> {
        let EnvelopeChange::Hashed(HashKeyedUpdate::Removed { hashes, .. }) = &update.change else {
            return Ok(());
        };
        let (Some(found), Some(first)) = (update.removed_at, hashes.first()) else {
            return Ok(());
        };
        match self.index.depth_of(&update.namespace, *first) {
            Some(expected) if u64::from(expected) != found => Err(EventRejection::Collision {
                hash: first.0,
                found,
                expected: expected.into(),
            }),
            _ => Ok(()),
        }
    }

    fn note_store(&mut self, tier: Tier) {
        if let Some(tiers) = &mut self.store_tiers {
            tiers[tier.index()] = true;
        }
    }

    /// Returns the tiers that a clear of one empties: of a store, those that it has stored in.
    fn tiers_to_clear(&self, tier: Tier, every_medium: bool) -> Vec<Tier> {
        let Some(stored) = self.store_tiers else {
            return vec![tier];
        };
        let is_meant = |other: &Tier| stored[other.index()] && (every_medium || *other == tier);
        Tier::ALL.into_iter().filter(is_meant).collect()
    }

    /// Returns the target of a rank, registered with the index.
    fn target(&mut self, rank: u32, model: &Arc<str>) -> Option<Target> {
        if let Some(target) = self.targets.get(&rank) {
            return Some(*target);
        }
        if self.targets.len() >= MAX_RANKS {
            return None;
        }
        let target = Target {
            worker: self.spec.id,
            rank: DpRank(rank),
        };
        if !self.index.is_registered(target) {
            self.index.register(target, Arc::clone(model));
        }
        self.targets.insert(rank, target);
        Some(target)
    }

    fn clear_stream(&mut self, key: &StreamKey) {
        let Ok((namespace, rank)) = self.normaliser.stream_namespace(key) else {
            return;
        };
        if let Some(target) = self.targets.get(&rank) {
            self.clear(*target, &namespace, &self.stream(key), false);
        }
    }

    fn rank(&self, key: &StreamKey) -> u32 {
        key.dp_rank.or(self.spec.registration.dp_rank).unwrap_or(0)
    }
}

/// Sink of a publisher that may send envelopes: other updates go to the index as they are.
#[derive(Debug)]
pub struct EnvelopeSink {
    index: Arc<KvIndex>,
    envelopes: Mutex<EnvelopeIndex>,
    /// Size of the publisher's blocks.
    block_size: Option<BlockSize>,
}

impl EnvelopeSink {
    /// Creates the sink of one publisher.
    pub fn new(spec: StandardSinkSpec, index: Arc<KvIndex>) -> Self {
        let size = spec.registration.block_size;
        Self {
            block_size: size.and_then(|size| BlockSize::new(size.into()).ok()),
            envelopes: Mutex::new(EnvelopeIndex::new(spec, Arc::clone(&index))),
            index,
        }
    }
}

impl BlockSink for EnvelopeSink {
    fn register(&self, target: Target, model: &Arc<str>) {
        self.index.register(target, Arc::clone(model));
        if let Some(size) = self.block_size {
            self.index.expect_block_size(target, size);
        }
    }

    fn apply(&self, target: Target, update: &IndexUpdate) -> UpdateOutcome {
        self.index.apply(target, update)
    }

    fn apply_labelled(&self, target: Target, update: &IndexUpdate, label: &str) -> UpdateOutcome {
        let stream = labelled(Publisher::Engine, update, label);
        self.index.apply_from(target, update, &stream)
    }

    fn envelope(&self, output: &StreamOutput) -> EnvelopeOutcome {
        self.envelopes.lock().take(output)
    }

    fn clear(&self, target: Target) {
        self.index.clear_engine(target);
        self.envelopes.lock().forget();
    }

    fn mark_loss(&self, target: Target) {
        self.index.mark_loss(target);
        self.envelopes.lock().mark_loss();
    }
}
