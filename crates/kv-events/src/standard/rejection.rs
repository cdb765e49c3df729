//! Rejection of events that are well formed and still unusable.

use std::sync::Arc;

/// Why an event of the standard contract was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventRejection {
    /// Hashes of another scheme cannot be compared with the index's.
    #[error(
        "stored event names its blocks by hash only, which is trusted where block_hash is xxh3: have the publisher send \
         token_ids, or set kv_events.block_hash: xxh3"
    )]
    NotStandard,
    /// Tokens cannot be cut into blocks of unknown size.
    #[error(
        "event has token_ids but no block_size: expected it in the event or in the registration"
    )]
    NoBlockSize,
    /// The number of tokens differs from the capacity of the blocks.
    #[error("event has {found} token_ids: expected {expected}, block_size times seq_hashes")]
    TokenCount {
        /// Tokens in the event.
        found: usize,
        /// Tokens that its blocks hold.
        expected: u64,
    },
    /// The hashes do not follow from the tokens.
    #[error(
        "block {block} of the event has the hash {found}, but its token_ids give {expected}: check the publisher's hash \
         and seed against kv_events.block_hash and block_hash_seed"
    )]
    Mismatch {
        /// Which block of the event, from 0.
        block: usize,
        /// The published hash.
        found: u64,
        /// The computed hash.
        expected: u64,
    },
    /// A block occurs twice: a hash that identifies a whole prefix cannot do so within one.
    #[error("event has a block twice, or a block as its own parent: expected every seq_hash once")]
    Repeated,
    /// The parent of its first block is unknown.
    #[error(
        "event begins at block {base}, but the blocks in front are unknown: have the publisher send parent_hash"
    )]
    Unplaced {
        /// Blocks in front of it.
        base: u64,
    },
    /// The object key is not a block's name.
    #[error("event has no seq_hashes, and its object_key ends with no digest: expected either")]
    NoNames,
    /// Names without tokens cannot describe a device's cache.
    #[error(
        "event names blocks of the device without token_ids: expected a medium such as cpu or disk"
    )]
    OnDevice,
    /// The publisher hashes in its own way, so its hashes alone say nothing.
    #[error(
        "stored event has no token_ids, and the publisher's hashes are not the standard's: have it send token_ids with \
         every stored event"
    )]
    OwnHashes,
    /// The namespace of the blocks is unknown.
    #[error(
        "event names no model or no block_size: expected them in the event or in the registration"
    )]
    NoNamespace,
    /// The event is of another tenant than the publisher's registration.
    #[error(
        "event is of tenant {found:?}, its publisher is registered for {expected:?}: register it for that tenant too"
    )]
    OtherTenant {
        /// The event's tenant.
        found: Arc<str>,
        /// The registration's tenant.
        expected: Arc<str>,
    },
    /// The event is of another model than the publisher's registration.
    #[error("event is of another model, {found:?}: expected {expected:?}")]
    OtherModel {
        /// The event's model.
        found: Arc<str>,
        /// The registration's model.
        expected: Arc<str>,
    },
    /// The event has blocks of another size than the publisher's registration.
    #[error(
        "its events have blocks of {found} tokens, expected are {expected}: set block_size to what the engine uses"
    )]
    OtherBlockSize {
        /// The event's block size.
        found: u32,
        /// The registration's block size.
        expected: u32,
    },
    /// Another backend owns the device.
    #[error(
        "event is about the device of backend {found:?}, but this rank's device is that of {expected:?}: give each \
         backend a publisher or a dp_rank of its own"
    )]
    OtherBackend {
        /// The event's backend.
        found: Arc<str>,
        /// The backend whose blocks are followed.
        expected: Arc<str>,
    },
    /// The index holds the block at another depth: the hash is another block's, too.
    #[error(
        "removed event places the block {hash} at depth {found}, but it is at depth {expected}: the block stays; check \
         the publisher's hash and its base_block_idx"
    )]
    Collision {
        /// The block's hash.
        hash: u64,
        /// The event's depth, in blocks.
        found: u64,
        /// The depth in the index.
        expected: u64,
    },
}

impl EventRejection {
    /// Returns whether the event contradicts itself, so that other events of the publisher may be
    /// wrong too. It counts as a decode error then.
    pub fn is_contradiction(&self) -> bool {
        matches!(
            self,
            Self::Mismatch { .. } | Self::TokenCount { .. } | Self::Repeated
        )
    }

    /// Returns the metric's label, one of a closed set.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::NotStandard => "not_standard",
            Self::NoBlockSize => "no_block_size",
            Self::TokenCount { .. } => "token_count",
            Self::Mismatch { .. } => "mismatch",
            Self::Repeated => "repeated",
            Self::Unplaced { .. } => "unplaced",
            Self::NoNames => "no_names",
            Self::OnDevice => "on_device",
            Self::OwnHashes => "own_hashes",
            Self::NoNamespace => "no_namespace",
            Self::OtherTenant { .. } => "other_tenant",
            Self::OtherModel { .. } => "other_model",
            Self::OtherBlockSize { .. } => "other_block_size",
            Self::OtherBackend { .. } => "other_backend",
            Self::Collision { .. } => "collision",
        }
    }
}
