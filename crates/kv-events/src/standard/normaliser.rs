//! Conversion of one publisher's envelopes into index updates, within the scope of its
//! registration.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use kv_blocks::{BlockSize, HashScheme, IndexUpdate, Namespace, Tier};

use super::{
    event::{StandardChange, StandardEvent, StreamKey},
    hash_keyed::{HashKeyedUpdate, to_hashed},
    named::to_named,
    rejection::EventRejection,
};

/// Tenant of registrations and events that name none.
const DEFAULT_TENANT: &str = "default";

/// Most ranks whose owner is remembered.
const MAX_OWNERS: usize = 1_024;

/// A change of one rank's blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvelopeUpdate {
    /// The namespace of the blocks.
    pub namespace: Namespace,
    /// The rank that holds them; 0 without one.
    pub rank: u32,
    /// Depth in blocks of the first removed block, where the event has it.
    pub removed_at: Option<u64>,
    /// The change.
    pub change: EnvelopeChange,
}

/// A change, with blocks named in one of two ways.
#[derive(Clone, Debug, PartialEq)]
pub enum EnvelopeChange {
    /// By the hashes of the standard.
    Hashed(HashKeyedUpdate),
    /// By the publisher's own hashes; their tokens define the content.
    Named(IndexUpdate),
}

/// Converts the envelopes of one publisher.
///
/// It remembers whether the publisher's hashes are those of the standard, which the first event
/// with tokens shows, and which backend owns the device of each rank.
#[derive(Clone, Debug)]
pub struct EnvelopeNormaliser {
    registration: StreamKey,
    scheme: HashScheme,
    hasher: Option<PublisherHasher>,
    owners: BTreeMap<u32, Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublisherHasher {
    Standard,
    Own,
}

impl EnvelopeNormaliser {
    /// Creates the state before the first event. The registration fills in the dimensions that an
    /// envelope leaves open; an envelope of another tenant, model or block size is rejected.
    pub fn new(registration: StreamKey, scheme: HashScheme) -> Self {
        Self {
            registration,
            scheme,
            hasher: None,
            owners: BTreeMap::new(),
        }
    }

    /// Forgets what it has learnt: another life of the publisher begins.
    pub fn reset(&mut self) {
        self.hasher = None;
        self.owners.clear();
    }

    /// Returns the place of a stream's blocks: namespace and rank.
    pub fn stream_namespace(
        &mut self,
        stream: &StreamKey,
    ) -> Result<(Namespace, u32), EventRejection> {
        let filled = stream.or(&self.registration);
        let namespace = self.namespace(&filled)?;
        Ok((namespace, self.rank_of_owner(&filled)?))
    }

    /// Converts one event.
    pub fn update(&mut self, event: &StandardEvent) -> Result<EnvelopeUpdate, EventRejection> {
        let filled = event.stream.or(&self.registration);
        let (namespace, rank) = self.stream_namespace(&filled)?;
        let removed_at = match event.change {
            StandardChange::Removed { base_block_idx, .. } => base_block_idx,
            _ => None,
        };
        let event = if filled == event.stream {
            Cow::Borrowed(event)
        } else {
            Cow::Owned(StandardEvent {
                stream: filled,
                ..event.clone()
            })
        };
        Ok(EnvelopeUpdate {
            namespace,
            rank,
            removed_at,
            change: self.change(&event)?,
        })
    }

    fn change(&mut self, event: &StandardEvent) -> Result<EnvelopeChange, EventRejection> {
        let has_tokens = match &event.change {
            StandardChange::Cleared => {
                return to_hashed(event, self.scheme).map(EnvelopeChange::Hashed);
            }
            StandardChange::Removed { .. } => None,
            StandardChange::Stored { token_ids, .. } => Some(token_ids.is_some()),
        };
        if self.hasher != Some(PublisherHasher::Own) {
            match to_hashed(event, self.scheme) {
                Err(EventRejection::Mismatch { .. }) if self.hasher.is_none() => {
                    self.hasher = Some(PublisherHasher::Own);
                }
                result => {
                    if has_tokens == Some(true) && result.is_ok() {
                        self.hasher = Some(PublisherHasher::Standard);
                    }
                    return result.map(EnvelopeChange::Hashed);
                }
            }
        }
        if has_tokens == Some(false) {
            return Err(EventRejection::OwnHashes);
        }
        to_named(event).map(EnvelopeChange::Named)
    }

    fn namespace(&mut self, stream: &StreamKey) -> Result<Namespace, EventRejection> {
        let tenant = |key: &StreamKey| key.tenant.clone().unwrap_or_else(|| DEFAULT_TENANT.into());
        let (found, expected) = (tenant(stream), tenant(&self.registration));
        if found != expected {
            return Err(EventRejection::OtherTenant { found, expected });
        }
        let namespace = stream.namespace().ok_or(EventRejection::NoNamespace)?;
        let model = self
            .registration
            .model
            .get_or_insert_with(|| Arc::clone(&namespace.model));
        if namespace.model != *model {
            return Err(EventRejection::OtherModel {
                found: namespace.model,
                expected: Arc::clone(model),
            });
        }
        let size = self.registration.block_size.map(u64::from);
        if let Some(expected) = size.and_then(|size| BlockSize::new(size).ok())
            && namespace.block_size != expected
        {
            return Err(EventRejection::OtherBlockSize {
                found: namespace.block_size.tokens(),
                expected: expected.tokens(),
            });
        }
        Ok(namespace)
    }

    /// Returns the rank of a stream. A device belongs to one backend, the first that names it: the
    /// blocks of two would otherwise look like one prefix. Other media may be shared.
    fn rank_of_owner(&mut self, stream: &StreamKey) -> Result<u32, EventRejection> {
        let rank = stream.dp_rank.unwrap_or(0);
        let tier = stream.medium().tier();
        let Some(backend) = stream.backend_id.as_ref().filter(|_| tier == Tier::Device) else {
            return Ok(rank);
        };
        match self.owners.get(&rank) {
            Some(owner) if owner != backend => Err(EventRejection::OtherBackend {
                found: Arc::clone(backend),
                expected: Arc::clone(owner),
            }),
            Some(_) => Ok(rank),
            None => {
                if self.owners.len() < MAX_OWNERS {
                    self.owners.insert(rank, Arc::clone(backend));
                }
                Ok(rank)
            }
        }
    }
}
