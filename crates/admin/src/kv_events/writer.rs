//! Converts changes to the text of server-sent events.

use std::{collections::VecDeque, sync::Arc};

use kv_blocks::{Namespace, SequenceHash, Target, Tier};
use kv_events::{
    continuum::{self, ContinuumEvent, ContinuumKind},
    standard::{StandardChange, StandardEvent, StreamKey, encode_json},
};
use kv_index::{BlockChange, ChangeKind, KvIndex, NamespaceKey, salt_digest, shown_hash};
use net::Clock;

use super::{
    changes::{medium, of_a_block, of_a_tier, part},
    names::SubscriberNames,
    numbering::StreamNumbering,
    query::{Format, Salts, StreamQuery},
};

/// Approximate size of a chunk of events, in bytes: one event may exceed it.
pub(super) const CHUNK: usize = 64 << 10;
/// Block limit of one envelope, some 20 KiB: readers bound the size of an event.
const BLOCKS: usize = 1024;

/// Encoder of queued changes, a chunk at a time.
#[derive(Debug)]
pub(super) struct EnvelopeWriter {
    index: Arc<KvIndex>,
    names: SubscriberNames,
    clock: Clock,
    format: Format,
    salts: Salts,
    /// Bounded by the caller, who adds only to an empty queue: a piece of the initial state, or a
    /// change.
    waiting: VecDeque<Arc<BlockChange>>,
    /// Blocks of the first change that are already written.
    done: usize,
    events: StreamNumbering<Target>,
    envelopes: StreamNumbering<(NamespaceKey, Target, Tier)>,
}

impl EnvelopeWriter {
    pub(super) fn new(
        index: Arc<KvIndex>,
        names: SubscriberNames,
        clock: Clock,
        query: &StreamQuery,
    ) -> Self {
        Self {
            index,
            names,
            clock,
            format: query.format,
            salts: query.salts,
            waiting: VecDeque::new(),
            done: 0,
            events: StreamNumbering::new(),
            envelopes: StreamNumbering::new(),
        }
    }

    pub(super) fn names(&mut self) -> &mut SubscriberNames {
        &mut self.names
    }

    pub(super) fn add(&mut self, changes: impl IntoIterator<Item = Arc<BlockChange>>) {
        self.waiting.extend(changes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Writes queued changes until the chunk is full.
    pub(super) fn write(&mut self, out: &mut Vec<u8>) {
        while out.len() < CHUNK
            && let Some(change) = self.waiting.front().cloned()
        {
            let name = self.names.find(change.target);
            while let Some(name) = &name
                && self.done < change.hashes.len()
                && out.len() < CHUNK
            {
                match self.format {
                    Format::Continuum => self.blocks(&change, name, out),
                    Format::Rfc1527 => self.envelope(&change, name, out),
                }
            }
            if name.is_none() || self.done >= change.hashes.len() {
                self.waiting.pop_front();
                self.done = 0;
            }
        }
    }

    /// Writes the events of the next block.
    fn blocks(&mut self, change: &BlockChange, name: &str, out: &mut Vec<u8>) {
        let kinds = of_a_block(change);
        if kinds.is_empty() {
            self.done = change.hashes.len();
            return;
        }
        let before = u64::from(change.depth) + self.done as u64;
        for kind in kinds {
            let event = ContinuumEvent {
                kind: *kind,
                prefix_hash: self
                    .shown(&change.namespace, change.hashes[self.done])
                    .to_string(),
                token_count: Some((before + 1) * u64::from(change.namespace.block_size.tokens())),
            };
            let data = continuum::encode(&event, name, change.target.rank.0);
            self.event(change.target, name, *kind, &data, out);
        }
        self.done += 1;
    }

    /// Returns the hash as it is sent: who may not see the salts gets keyed ones.
    fn shown(&self, namespace: &Namespace, hash: SequenceHash) -> SequenceHash {
        match self.salts {
            Salts::Plain => hash,
            Salts::Digest => shown_hash(namespace, hash),
        }
    }

    /// Writes the event of the next stretch.
    fn envelope(&mut self, change: &BlockChange, name: &str, out: &mut Vec<u8>) {
        let to = change.hashes.len().min(self.done + BLOCKS);
        let stretch = part(change, self.done..to);
        self.done = to;
        let namespace = &change.namespace;
        let stream = (
            self.index.namespace_key(namespace),
            change.target,
            change.tier,
        );
        let hashes = stretch.hashes.iter();
        let seq_hashes = hashes.map(|hash| self.shown(namespace, *hash).0).collect();
        let parent_hash = stretch.parent.map(|parent| self.shown(namespace, parent).0);
        let base_block_idx = Some(stretch.depth.into());
        let event = StandardEvent {
            event_id: self.envelopes.next(stream),
            timestamp_ms: i64::try_from(self.clock.unix_ms()).ok(),
            stream: StreamKey {
                model: Some(Arc::clone(&namespace.model)),
                block_size: Some(namespace.block_size.tokens()),
                salt: namespace.salt.as_ref().map(|salt| match self.salts {
                    Salts::Plain => Arc::clone(salt),
                    Salts::Digest => salt_digest(salt),
                }),
                lora: namespace.lora.clone(),
                tenant: Some(Arc::from("default")),
                backend_id: Some(Arc::from(name)),
                medium: Some(Arc::from(medium(change.tier))),
                dp_rank: Some(change.target.rank.0),
            },
            change: match change.kind {
                ChangeKind::Stored { .. } => StandardChange::Stored {
                    seq_hashes,
                    base_block_idx,
                    parent_hash,
                    token_ids: None,
                },
                ChangeKind::Removed { .. } => StandardChange::Removed {
                    seq_hashes,
                    base_block_idx,
                },
            },
            object_key: None,
        };
        self.event(
            change.target,
            name,
            of_a_tier(change),
            &encode_json(&event),
            out,
        );
    }

    fn event(
        &mut self,
        target: Target,
        name: &str,
        kind: ContinuumKind,
        data: &str,
        out: &mut Vec<u8>,
    ) {
        // A line feed in a name would end the line.
        let name: String = name.chars().filter(|c| !c.is_control()).collect();
        let (rank, number, kind) = (target.rank.0, self.events.next(target), kind.as_str());
        out.extend_from_slice(
            format!("id: {name}/{rank}/{number}\nevent: {kind}\ndata: {data}\n\n").as_bytes(),
        );
    }
}
