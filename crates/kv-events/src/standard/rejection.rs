//! Rejection of events that are well formed and still unusable.

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
    /// A clear covers only a tier of a namespace, and the event names no namespace.
    #[error(
        "cleared event of {tier} names no model and block_size: expected them in the event or in the registration"
    )]
    NoNamespace {
        /// The tier that was cleared.
        tier: &'static str,
    },
}

impl EventRejection {
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
            Self::NoNamespace { .. } => "no_namespace",
        }
    }
}
